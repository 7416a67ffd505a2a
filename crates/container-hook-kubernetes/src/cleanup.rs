//! `cleanup_job`: removes all objects of the runner's job from the cluster.

use std::time::Duration;

use container_hook_job::HookError;
use k8s_openapi::api::core::v1::Pod;
use oci_hooks_files::error::chain;
use tokio::time::timeout;
use tracing::debug;

use super::backend::{KubernetesBackend, name};
use super::services::{self, is_service};
use super::wait::{self, WaitError};

/// Grace period of containers, in seconds. The agent ends at once; services have nothing to save.
pub const GRACE_SECONDS: u32 = 1;
/// Time limit for kubelets to delete pods. Some report the deletion only every ten seconds, long after the containers
/// have ended.
const GONE_WITHIN: Duration = Duration::from_millis(2500);
/// Time limit for a forced deletion of pods, without their kubelet.
const FORCED_WITHIN: Duration = Duration::from_secs(10);
/// Maximum number of log lines shown for a service.
const LOG_LINES: u32 = 2000;
/// Time limit for reading the log of a service.
const LOG_WITHIN: Duration = Duration::from_secs(5);

/// Condition for waiting until pods are deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeletionWait {
    /// Until all pods are deleted and their names are free.
    UntilGone,
    /// Like `UntilGone` if a pod has a shared volume, to which a remaining process could write
    /// while other jobs use it; otherwise not at all.
    WhereShared,
    Not,
}

pub(super) async fn run(backend: &KubernetesBackend<'_>) -> Result<(), HookError> {
    let pods = backend.cluster.pods(&backend.selector()).await;
    for pod in pods.iter().flatten() {
        for problem in services::new_problems(pod) {
            backend.context.log.warning(&problem.text);
        }
        show_services(backend, pod).await;
    }
    remove_all(backend, DeletionWait::WhereShared).await?;
    Ok(backend.files()?.forget()?)
}

/// Removes all pods and secrets of the runner, whatever the job's state says: a `prepare_job` that was killed
/// leaves no state. Objects that no longer exist are no error.
pub async fn remove_all(
    backend: &KubernetesBackend<'_>,
    wait: DeletionWait,
) -> Result<(), HookError> {
    let selector = backend.selector();
    let (pods, secrets) =
        tokio::join!(backend.cluster.pods(&selector), backend.cluster.secrets(&selector));
    // A failed deletion does not stop the other deletions.
    let mut first_error = None;
    let mut note = |result: Result<(), _>| {
        if let Err(error) = result {
            first_error.get_or_insert(error);
        }
    };
    let waits = pods.as_ref().is_ok_and(|pods| match wait {
        DeletionWait::UntilGone => !pods.is_empty(),
        DeletionWait::WhereShared => pods.iter().any(has_shared_volumes),
        DeletionWait::Not => false,
    });
    match pods {
        Ok(pods) => {
            for pod in &pods {
                services::forget(pod);
                note(backend.cluster.delete_pod(name(pod), Some(grace(pod))).await);
            }
        }
        Err(error) => note(Err(error)),
    }
    match secrets {
        Ok(secrets) => {
            for secret in &secrets {
                let name = secret.metadata.name.as_deref().unwrap_or_default();
                note(backend.cluster.delete_secret(name).await);
            }
        }
        Err(error) => note(Err(error)),
    }
    match first_error {
        Some(error) => Err(error.into()),
        None if waits => wait_until_gone(backend).await,
        None => Ok(()),
    }
}

/// Returns the grace period of a pod, in seconds. A pod that is already terminating and shares no volume gets
/// 0: its kubelet ends it even after the API server has removed it.
fn grace(pod: &Pod) -> u32 {
    let is_going = pod.metadata.deletion_timestamp.is_some();
    if is_going && !has_shared_volumes(pod) { 0 } else { GRACE_SECONDS }
}

/// Returns whether a pod has writable volumes that other pods may share, or that outlive the pod.
fn has_shared_volumes(pod: &Pod) -> bool {
    let mut volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.any(|volume| {
        volume.empty_dir.is_none()
            && volume.secret.is_none()
            && volume.config_map.is_none()
            && volume.projected.is_none()
            && volume.downward_api.is_none()
            && volume.image.is_none()
    })
}

/// Waits until all pods of the runner are deleted. Forces the deletion of pods that remain: their kubelet may
/// be slow, or their node lost.
async fn wait_until_gone(backend: &KubernetesBackend<'_>) -> Result<(), HookError> {
    let selector = backend.selector();
    match wait::wait_for_deletion(backend.cluster, &selector, GONE_WITHIN).await {
        Err(WaitError::PodsRemain { pods, .. }) => {
            for pod in &pods {
                backend.cluster.delete_pod(pod, Some(0)).await?;
            }
        }
        result => return Ok(result?),
    }
    Ok(wait::wait_for_deletion(backend.cluster, &selector, FORCED_WITHIN).await?)
}

/// Prints the logs of a job's services, as the runner does for jobs without container hooks. A log
/// that cannot be read does not stop the cleanup.
async fn show_services(backend: &KubernetesBackend<'_>, pod: &Pod) {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    for service in containers.filter(|container| is_service(pod, &container.name)) {
        let log = backend.cluster.log(name(pod), &service.name, Some(LOG_LINES));
        match timeout(LOG_WITHIN, log).await {
            Ok(Ok(text)) => {
                let log = backend.context.log;
                log.group(&format!("Print service container logs: {}", service.name));
                if !text.is_empty() {
                    log.output(&service.name, &text);
                }
                log.end_group();
            }
            Ok(Err(error)) => debug!(
                service = service.name,
                error = chain(&error),
                "cannot read the log of the service"
            ),
            Err(_) => debug!(service = service.name, "reading the log of the service timed out"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use serde_json::json;

    use super::*;
    use crate::client::testing::{ScriptedReply, answer, cluster_with_replies};
    use crate::testing::with_backend;

    /// Answers like an API server with these pods and a secret. A deletion with a grace period does not
    /// delete the pod `staying`.
    fn server(
        pods: &[&str],
        staying: &'static str,
    ) -> impl FnMut(&str, &str) -> ScriptedReply + use<> {
        let pods = Arc::new(Mutex::new(pods.iter().map(ToString::to_string).collect::<Vec<_>>()));
        move |line, body| {
            let mut pods = pods.lock().unwrap();
            let path = line.split(' ').nth(1).unwrap();
            let name = path.rsplit('/').next().unwrap().split('?').next().unwrap();
            if line.starts_with("DELETE") && path.contains("/pods/") {
                if !pods.iter().any(|pod| pod == name) {
                    return answer(404, r#"{"kind":"Status","code":404}"#);
                }
                let is_forced = body.contains("\"gracePeriodSeconds\":0");
                pods.retain(|pod| pod != name || pod == staying && !is_forced);
                return answer(200, "{}");
            }
            let items = match path {
                path if path.contains("/pods?") => pods.clone(),
                path if path.contains("/secrets?") => vec!["login".to_owned()],
                _ => return answer(200, "{}"),
            };
            let named = items.iter().map(|name| json!({"metadata": {"name": name}}));
            answer(200, &json!({"items": named.collect::<Vec<_>>()}).to_string())
        }
    }

    fn deleted_names(calls: &[(String, String)]) -> Vec<&str> {
        let paths = calls.iter().filter(|(line, _)| line.starts_with("DELETE"));
        let paths = paths.map(|(line, _)| line.split(' ').nth(1).unwrap());
        paths.map(|path| path.rsplit('/').next().unwrap().split('?').next().unwrap()).collect()
    }

    #[test]
    fn cleanup_deletes_all_objects_with_the_runner_label() {
        let (cluster, calls) = cluster_with_replies(server(&["a-workflow", "a-step-1"], ""));
        with_backend(&cluster, |backend| {
            cluster.run(remove_all(backend, DeletionWait::UntilGone)).unwrap();
        });
        let calls = calls.lock().unwrap();
        assert_eq!(deleted_names(&calls), ["a-workflow", "a-step-1", "login"]);
        assert!(calls[0].0.contains("labelSelector=runner-pod%3Drunner-1"), "{calls:?}");
    }

    #[test]
    fn pod_kept_by_its_kubelet_is_deleted_by_force() {
        let (cluster, calls) = cluster_with_replies(server(&["a-workflow"], "a-workflow"));
        with_backend(&cluster, |backend| {
            cluster.run(remove_all(backend, DeletionWait::UntilGone)).unwrap();
        });
        assert_eq!(deleted_names(&calls.lock().unwrap()), ["a-workflow", "login", "a-workflow"]);
    }

    #[test]
    fn cleanup_waits_only_for_pods_with_shared_volumes() {
        let pod = |volumes: serde_json::Value, going: bool| -> Pod {
            let at = going.then_some("2026-01-01T00:00:00Z");
            let metadata = json!({"name": "p", "deletionTimestamp": at});
            let spec = json!({"containers": [], "volumes": volumes});
            serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
        };
        let own = json!([{"name": "work", "emptyDir": {}}, {"name": "s", "secret": {}},
            {"name": "i", "image": {"reference": "runner"}}]);
        let claim = json!([{"name": "work", "persistentVolumeClaim": {"claimName": "c"}}]);
        let host = json!([{"name": "cache", "hostPath": {"path": "/cache"}}]);
        for (volumes, shared) in [(own, false), (claim, true), (host, true)] {
            assert_eq!(has_shared_volumes(&pod(volumes.clone(), false)), shared, "{volumes}");
            assert_eq!(grace(&pod(volumes.clone(), false)), GRACE_SECONDS);
            let expected = if shared { GRACE_SECONDS } else { 0 };
            assert_eq!(grace(&pod(volumes, true)), expected);
        }
    }

    #[test]
    fn cleanup_does_not_wait_for_pods_without_shared_volumes() {
        let (cluster, calls) = cluster_with_replies(server(&["a-workflow"], "a-workflow"));
        with_backend(&cluster, |backend| {
            cluster.run(remove_all(backend, DeletionWait::WhereShared)).unwrap();
        });
        assert_eq!(deleted_names(&calls.lock().unwrap()), ["a-workflow", "login"]);
    }

    #[test]
    fn cleanup_without_waiting_queries_once() {
        let (cluster, calls) = cluster_with_replies(server(&["a-workflow"], "a-workflow"));
        with_backend(&cluster, |backend| {
            cluster.run(remove_all(backend, DeletionWait::Not)).unwrap();
        });
        assert_eq!(deleted_names(&calls.lock().unwrap()), ["a-workflow", "login"]);
    }
}
