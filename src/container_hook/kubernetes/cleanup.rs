//! `cleanup_job`: nothing of the runner's job is left in the cluster.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use tokio::time::timeout;
use tracing::debug;

use super::backend::{JOB, KubernetesBackend, name};
use super::wait::{self, WaitError};
use crate::container_hook::error::HookError;
use crate::sys::error::chain;

/// How long containers may take to end, in seconds. Our own first process ends at once; of services there is
/// nothing to be kept.
pub const GRACE_SECONDS: u32 = 1;
/// How long pods may take to be gone by themselves. Kubelets report it when they come to it, some every ten
/// seconds; the containers have ended by then.
const GONE_WITHIN: Duration = Duration::from_millis(2500);
/// How long pods may take to be gone that are removed without their kubelet.
const FORCED_WITHIN: Duration = Duration::from_secs(10);
/// How much of a service's log is shown, in lines, and how long is waited for it.
const LOG_LINES: u32 = 2000;
const LOG_WITHIN: Duration = Duration::from_secs(5);

/// Whether one waits until pods are gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Until all pods are deleted and their names are free.
    UntilGone,
    /// The same if a pod has a shared volume, to which a remaining process could write while other jobs use it.
    WhereShared,
    Not,
}

pub(super) async fn run(backend: &KubernetesBackend<'_>) -> Result<(), HookError> {
    let pods = backend.cluster.pods(&backend.selector()).await;
    for pod in pods.iter().flatten() {
        show_services(backend, pod).await;
    }
    remove_all(backend, Wait::WhereShared).await?;
    Ok(backend.files()?.forget()?)
}

/// Removes everything of the runner, whatever the state of the job says: a `prepare_job` that was killed has
/// none. What is gone by then is no error.
pub async fn remove_all(backend: &KubernetesBackend<'_>, wait: Wait) -> Result<(), HookError> {
    let selector = backend.selector();
    let (pods, secrets) =
        tokio::join!(backend.cluster.pods(&selector), backend.cluster.secrets(&selector));
    // What is left of one thing keeps nobody from the others.
    let mut first_error = None;
    let mut note = |result: Result<(), _>| {
        if let Err(error) = result {
            first_error.get_or_insert(error);
        }
    };
    let waits = pods.as_ref().is_ok_and(|pods| match wait {
        Wait::UntilGone => !pods.is_empty(),
        Wait::WhereShared => pods.iter().any(shares),
        Wait::Not => false,
    });
    match pods {
        Ok(pods) => {
            for pod in &pods {
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
        None if waits => until_gone(backend).await,
        None => Ok(()),
    }
}

/// Returns how long the containers of a pod may take to end. What was told to end before, and has all that it
/// can write to for itself, goes at once: its kubelet ends it whatever the API server still knows of it.
fn grace(pod: &Pod) -> u32 {
    let is_going = pod.metadata.deletion_timestamp.is_some();
    if is_going && !shares(pod) { 0 } else { GRACE_SECONDS }
}

/// Returns whether a pod has volumes that others can have too, or that stay when it goes.
fn shares(pod: &Pod) -> bool {
    let mut volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.any(|volume| {
        volume.empty_dir.is_none()
            && volume.secret.is_none()
            && volume.config_map.is_none()
            && volume.projected.is_none()
            && volume.downward_api.is_none()
    })
}

/// Waits until the runner has no pod any more. Those that stay are removed without their kubelet: it may be
/// slow, or its node lost.
async fn until_gone(backend: &KubernetesBackend<'_>) -> Result<(), HookError> {
    let selector = backend.selector();
    match wait::until_gone(backend.cluster, &selector, GONE_WITHIN).await {
        Err(WaitError::Left { pods, .. }) => {
            for pod in &pods {
                backend.cluster.delete_pod(pod, Some(0)).await?;
            }
        }
        result => return Ok(result?),
    }
    Ok(wait::until_gone(backend.cluster, &selector, FORCED_WITHIN).await?)
}

/// Shows what the services of a job wrote, as the runner does that has no hooks. A log that cannot be had is
/// no reason to leave the job as it is.
async fn show_services(backend: &KubernetesBackend<'_>, pod: &Pod) {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    for service in containers.filter(|container| container.name != JOB) {
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
            Ok(Err(error)) => debug!(service = service.name, error = chain(&error), "no log"),
            Err(_) => debug!(service = service.name, "no log in time"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use serde_json::json;

    use super::*;
    use crate::container_hook::kubernetes::client::testing::{Reply, answer, answering};
    use crate::container_hook::kubernetes::testing::with_backend;

    /// Answers as an API server does that has these pods and a secret. Of pods that are deleted with some grace
    /// only those go that do not stay.
    fn server(pods: &[&str], staying: &'static str) -> impl FnMut(&str, &str) -> Reply + use<> {
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

    fn deleted(calls: &[(String, String)]) -> Vec<&str> {
        let paths = calls.iter().filter(|(line, _)| line.starts_with("DELETE"));
        let paths = paths.map(|(line, _)| line.split(' ').nth(1).unwrap());
        paths.map(|path| path.rsplit('/').next().unwrap().split('?').next().unwrap()).collect()
    }

    #[test]
    fn everything_with_the_label_of_the_runner_goes() {
        let (cluster, calls) = answering(server(&["a-workflow", "a-step-1"], ""));
        with_backend(&cluster, |backend| {
            cluster.run(remove_all(backend, Wait::UntilGone)).unwrap();
        });
        let calls = calls.lock().unwrap();
        assert_eq!(deleted(&calls), ["a-workflow", "a-step-1", "login"]);
        assert!(calls[0].0.contains("labelSelector=runner-pod%3Drunner-1"), "{calls:?}");
    }

    #[test]
    fn a_pod_that_its_kubelet_keeps_is_removed_without_it() {
        let (cluster, calls) = answering(server(&["a-workflow"], "a-workflow"));
        with_backend(&cluster, |backend| {
            cluster.run(remove_all(backend, Wait::UntilGone)).unwrap();
        });
        assert_eq!(deleted(&calls.lock().unwrap()), ["a-workflow", "login", "a-workflow"]);
    }

    #[test]
    fn only_what_shares_a_volume_is_waited_for() {
        let pod = |volumes: serde_json::Value, going: bool| -> Pod {
            let at = going.then_some("2026-01-01T00:00:00Z");
            let metadata = json!({"name": "p", "deletionTimestamp": at});
            let spec = json!({"containers": [], "volumes": volumes});
            serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
        };
        let own = json!([{"name": "work", "emptyDir": {}}, {"name": "s", "secret": {}}]);
        let claim = json!([{"name": "work", "persistentVolumeClaim": {"claimName": "c"}}]);
        let host = json!([{"name": "cache", "hostPath": {"path": "/cache"}}]);
        for (volumes, shared) in [(own, false), (claim, true), (host, true)] {
            assert_eq!(shares(&pod(volumes.clone(), false)), shared, "{volumes}");
            assert_eq!(grace(&pod(volumes.clone(), false)), GRACE_SECONDS);
            let expected = if shared { GRACE_SECONDS } else { 0 };
            assert_eq!(grace(&pod(volumes, true)), expected);
        }
    }

    #[test]
    fn a_cleanup_does_not_wait_for_what_nobody_shares() {
        let (cluster, calls) = answering(server(&["a-workflow"], "a-workflow"));
        with_backend(&cluster, |backend| {
            cluster.run(remove_all(backend, Wait::WhereShared)).unwrap();
        });
        assert_eq!(deleted(&calls.lock().unwrap()), ["a-workflow", "login"]);
    }

    #[test]
    fn whoever_does_not_wait_asks_once() {
        let (cluster, calls) = answering(server(&["a-workflow"], "a-workflow"));
        with_backend(&cluster, |backend| {
            cluster.run(remove_all(backend, Wait::Not)).unwrap();
        });
        assert_eq!(deleted(&calls.lock().unwrap()), ["a-workflow", "login"]);
    }
}
