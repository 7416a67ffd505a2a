//! `cleanup_job`: nothing of the runner's job is left in the cluster.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use tokio::time::timeout;
use tracing::debug;

use super::backend::{JOB, KubernetesBackend, name};
use super::wait::{WaitError, until_gone};
use crate::container_hook::error::HookError;
use crate::sys::error::chain;

/// How long containers may take to end, in seconds. Our own first process ends at once; of services there is
/// nothing to be kept.
pub(super) const GRACE_SECONDS: u32 = 1;
/// How long pods may take to be gone.
const GONE_WITHIN: Duration = Duration::from_secs(60);
/// How long one waits for that at the end of a job.
const SHORTLY: Duration = Duration::from_secs(3);
/// How much of a service's log is shown, in lines, and how long is waited for it.
const LOG_LINES: u32 = 2000;
const LOG_WITHIN: Duration = Duration::from_secs(5);

/// Whether one waits until pods are gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// Their names are free then.
    UntilGone,
    /// But no longer than people should: kubelets tell the API server that a pod is gone when they come to it,
    /// some every ten seconds.
    Shortly,
    Not,
}

pub(super) async fn run(backend: &KubernetesBackend<'_>) -> Result<(), HookError> {
    let pods = backend.cluster.pods(&backend.selector()).await;
    for pod in pods.iter().flatten() {
        show_services(backend, pod).await;
    }
    remove_all(backend, Wait::Shortly).await?;
    Ok(backend.files()?.forget()?)
}

/// Removes everything of the runner, whatever the state of the job says: a `prepare_job` that was killed has
/// none. What is gone by then is no error.
pub(super) async fn remove_all(
    backend: &KubernetesBackend<'_>,
    wait: Wait,
) -> Result<(), HookError> {
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
    let has_pods = pods.as_ref().is_ok_and(|pods| !pods.is_empty());
    match pods {
        Ok(pods) => {
            for pod in &pods {
                note(backend.cluster.delete_pod(name(pod), Some(GRACE_SECONDS)).await);
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
        None if has_pods => match wait {
            Wait::UntilGone => Ok(until_gone(backend.cluster, &selector, GONE_WITHIN).await?),
            Wait::Shortly => match until_gone(backend.cluster, &selector, SHORTLY).await {
                // The cluster was told to remove them, and does.
                Ok(()) | Err(WaitError::Left { .. }) => Ok(()),
                Err(error) => Err(error.into()),
            },
            Wait::Not => Ok(()),
        },
        None => Ok(()),
    }
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
