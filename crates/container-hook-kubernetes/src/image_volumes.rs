//! Whether pods mount the runner image as a volume. Otherwise an init container copies the agent and the runner's
//! externals from the image, which takes longer.

use std::path::Path;

use container_hook_job::HookError;
use container_hook_job::kubernetes::KubernetesSettings;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStateWaiting, Pod};
use oci_hooks_init::NO_EXTERNALS;

use super::agent::INSTALLED;
use super::backend::JOB;
use super::client::{ClusterClient, ClusterError, ServerVersion};
use super::fill::is_installed;
use super::own_pod::OwnPod;
use super::pod::{IMAGE_VOLUME, runner_image};
use super::wait::WaitError;
use super::wait::ended::{self, join_reason};

/// First version of Kubernetes, 1.35, that supports image volumes by default.
const FIRST: (u32, u32) = (1, 35);

/// Runtime that mounts image volumes in such a way that programs can be executed; CRI-O mounts them `noexec`.
const RUNTIME: &str = "containerd";

/// Parts of messages of a slow container runtime: the kubelet tries again.
const TEMPORARY: [&str; 2] = ["deadline exceeded", "is reserved for"];

/// Reasons why pods do not mount the runner image.
#[derive(Debug, thiserror::Error)]
pub enum NoImageVolume {
    #[error("`image-volumes = false` under [kubernetes]")]
    Setting,
    #[error("the runner image {image} is not the image of the runner's pod")]
    OtherImage { image: String },
    #[error("the container runtime of the runner's node is {runtime}, not {RUNTIME}")]
    Runtime { runtime: String },
    #[error("the runner's image has no {INSTALLED}, or that of another version")]
    Agent,
    #[error("Kubernetes {version} is older than 1.35")]
    Version { version: String },
    #[error(transparent)]
    Cluster(#[from] ClusterError),
}

/// Checks that pods can mount the runner image, by the settings, else by this pod and the cluster's version.
///
/// # Errors
///
/// Returns the reason why they cannot.
pub async fn check(
    cluster: &ClusterClient,
    settings: &KubernetesSettings,
    own: &OwnPod,
) -> Result<(), NoImageVolume> {
    match settings.image_volumes {
        Some(true) => return Ok(()),
        Some(false) => return Err(NoImageVolume::Setting),
        None => {}
    }
    let image = runner_image(settings, own);
    if own.image.as_deref() != Some(image) {
        return Err(NoImageVolume::OtherImage { image: image.to_owned() });
    }
    // The runtime is unknown until the kubelet has reported that the runner's pod runs.
    if let Some(runtime) = own.runtime.as_ref().filter(|runtime| *runtime != RUNTIME) {
        return Err(NoImageVolume::Runtime { runtime: runtime.clone() });
    }
    if !is_installed(Path::new(INSTALLED)) {
        return Err(NoImageVolume::Agent);
    }
    let ServerVersion { git_version: version, .. } = cluster.version().await?;
    match is_supported(&version) {
        true => Ok(()),
        false => Err(NoImageVolume::Version { version }),
    }
}

/// Returns whether a pod mounts the runner image.
pub fn is_in(pod: &Pod) -> bool {
    mounted_image(pod).is_some()
}

/// Returns the name of the runner image that a pod mounts.
pub fn mounted_image(pod: &Pod) -> Option<&str> {
    let mut volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let volume = volumes.find(|volume| volume.name == IMAGE_VOLUME)?;
    volume.image.as_ref()?.reference.as_deref()
}

/// Returns the reason why the container of steps cannot be started with the runner image as a volume; `None` if it may
/// still be. `is_late` means that half of the time for its start has passed since the pod has a node.
pub fn start_problem(pod: &Pod, is_late: bool) -> Option<String> {
    if pod.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let status = ended::statuses(pod).find(|status| status.name == JOB);
    let state = status.and_then(|status| status.state.as_ref());
    // A template may restart containers.
    let last = status.and_then(|status| status.last_state.as_ref());
    if let Some(ContainerStateTerminated { reason, message, exit_code, .. }) =
        state.into_iter().chain(last).find_map(|state| state.terminated.as_ref())
    {
        let is_started = !matches!(reason.as_deref(), Some("StartError" | "ContainerCannotRun"));
        return match is_started {
            true => {
                (*exit_code == NO_EXTERNALS).then(|| "its externals cannot be linked".to_owned())
            }
            false => join_reason(reason.as_deref(), message.as_deref()),
        };
    }
    if let Some(ContainerStateWaiting { reason, message }) =
        state.and_then(|state| state.waiting.as_ref())
        && matches!(reason.as_deref(), Some("CreateContainerError" | "RunContainerError"))
        && message.iter().all(|message| !TEMPORARY.iter().any(|text| message.contains(text)))
    {
        return join_reason(reason.as_deref(), message.as_deref());
    }
    // A kubelet without the feature does not start the pod, and reports nothing. Kubelets before 1.36 report the sandbox
    // only when all images are pulled.
    let pod_status =
        pod.status.as_ref().filter(|status| status.phase.as_deref() == Some("Pending"));
    let mut conditions =
        pod_status.into_iter().flat_map(|status| status.conditions.iter().flatten());
    let has_no_sandbox =
        conditions.any(|one| one.type_ == "PodReadyToStartContainers" && one.status == "False");
    (is_late && has_no_sandbox)
        .then(|| "the kubelet reports no sandbox after half of `prepare-timeout`".to_owned())
}

/// Returns the warning about a pod that is created again with an init container; `None` if the error has another cause.
pub fn warning(error: &HookError) -> Option<String> {
    let HookError::Backend(error) = error else { return None };
    let error: &WaitError = error.downcast_ref()?;
    matches!(error, WaitError::ImageVolume { .. }).then(|| {
        format!(
            "{error}; an init container copies from the image instead: `image-volumes = false` under [kubernetes] of the \
             settings avoids the attempt"
        )
    })
}

fn is_supported(version: &str) -> bool {
    let mut numbers = version.trim_start_matches('v').split('.').map(str::parse::<u32>);
    matches!((numbers.next(), numbers.next()), (Some(Ok(major)), Some(Ok(minor))) if (major, minor) >= FIRST)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn start_fails_for_causes_that_an_image_volume_may_have() {
        let problem = |state: &Value, sandbox: &str, is_late: bool| {
            let status = json!({"name": "job", "image": "", "imageID": "", "ready": false,
                "restartCount": 0, "state": state});
            let condition = json!({"type": "PodReadyToStartContainers", "status": sandbox});
            let status = json!({"phase": "Pending", "containerStatuses": [status],
                "conditions": [condition]});
            let pod: Pod = serde_json::from_value(json!({"status": status})).unwrap();
            start_problem(&pod, is_late)
        };
        let waiting = |reason: &str| json!({"waiting": {"reason": reason, "message": "mount"}});
        let ended =
            |reason: &str, code: i32| json!({"terminated": {"exitCode": code, "reason": reason}});
        let creating = waiting("ContainerCreating");
        let late = "the kubelet reports no sandbox after half of `prepare-timeout`";
        let slow = json!({"waiting": {"reason": "CreateContainerError", "message": "context deadline exceeded"}});
        for (state, sandbox, is_late, expected) in [
            (waiting("CreateContainerError"), "True", false, Some("CreateContainerError: mount")),
            (waiting("CreateContainerConfigError"), "True", false, None),
            (slow, "True", false, None),
            (ended("StartError", 128), "True", false, Some("StartError")),
            (ended("Error", NO_EXTERNALS), "True", false, Some("its externals cannot be linked")),
            (ended("Error", 1), "True", false, None),
            (creating.clone(), "False", false, None),
            (creating.clone(), "True", true, None),
            (creating, "False", true, Some(late)),
        ] {
            assert_eq!(problem(&state, sandbox, is_late).as_deref(), expected, "{state}");
        }
    }

    #[test]
    fn kubernetes_1_35_and_later_have_image_volumes() {
        for (version, expected) in [
            ("v1.34.9", false),
            ("v1.35.0-gke.100+a", true),
            ("v1.36.2", true),
            ("v2.0.0", true),
            ("v1", false),
            ("1.35+", false),
        ] {
            assert_eq!(is_supported(version), expected, "{version}");
        }
    }
}
