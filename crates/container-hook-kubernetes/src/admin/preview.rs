//! Previews of the pods for requests, and the runner's pod as jobs will find it.

use std::path::Path;

use container_hook_job::HookContext;
use container_hook_job::HookError;
use container_hook_job::kubernetes::KubernetesSettings;
use container_hook_job::request::HookCommand;
use k8s_openapi::api::core::v1::Pod;
use oci_hooks_files::error::chain;

use crate::client::{ClusterClient, ClusterError};
use crate::image_volumes;
use crate::own_pod::{OwnPod, PodIdentity};
use crate::pod::{self, ImageFacts, PodManifest};

/// The manifest of a pod that is not created.
#[derive(Clone, Debug)]
pub struct PodPreview {
    pub pod: Pod,
    /// Names of the secrets that the pod needs, each with the names of its keys.
    pub secrets: Vec<(String, Vec<String>)>,
    /// Notes for the author of the workflow, such as options without effect.
    pub notes: Vec<String>,
}

/// Returns the pod that a command would get; `None` if the command creates no pod. Contacts neither
/// the cluster nor a registry, so values that only they know are missing.
///
/// # Errors
///
/// Fails if a container requests an option that it cannot have, or if the template is invalid.
pub fn preview(
    context: &HookContext<'_>,
    settings: &KubernetesSettings,
    identity: &PodIdentity,
    command: &HookCommand,
) -> Result<Option<PodPreview>, HookError> {
    let own = OwnPod::new(identity, None, context.runner.work());
    let images = ImageFacts::default();
    let made = match command {
        HookCommand::PrepareJob(job) => pod::job(context, settings, &own, job, &images)?,
        HookCommand::RunContainerStep(step) => {
            pod::step(context, settings, &own, step, &images, None)?
        }
        _ => return Ok(None),
    };
    let PodManifest { pod, secrets, mut notes, warnings, .. } = made;
    notes.extend(warnings);
    let secrets = secrets.into_iter().map(|secret| {
        let keys = secret.data.into_iter().flatten().map(|(key, _)| key);
        let keys = keys.chain(secret.string_data.into_iter().flatten().map(|(key, _)| key));
        (secret.metadata.name.unwrap_or_default(), keys.collect())
    });
    Ok(Some(PodPreview { pod, secrets: secrets.collect(), notes }))
}

/// The runner's pod as the cluster describes it. If the pod is not found, only `claim` can be set,
/// from the environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunnerPod {
    /// If set, the runner's pod exists in the namespace of its jobs' pods, and owns them.
    pub is_found: bool,
    pub image: Option<String>,
    pub node: Option<String>,
    /// Name of the persistent volume claim with the runner's work directory; `None` without one.
    pub claim: Option<String>,
    /// Reason why pods of jobs do not mount the runner image, but copy from it; `None` if they do.
    pub no_image_volume: Option<String>,
}

/// Returns facts about the pod of a runner with this work directory.
///
/// # Errors
///
/// Fails if the cluster cannot be queried. A missing pod is no error.
pub async fn inspect(
    cluster: &ClusterClient,
    settings: &KubernetesSettings,
    identity: &PodIdentity,
    work: &Path,
) -> Result<RunnerPod, ClusterError> {
    let pod = cluster.pod(&identity.name).await?;
    let own = OwnPod::new(identity, pod.as_ref(), work);
    let no_image_volume = image_volumes::check(cluster, settings, &own).await.err();
    Ok(RunnerPod {
        is_found: pod.is_some(),
        image: own.image,
        node: own.node,
        claim: own.claim.map(|claim| claim.name),
        no_image_volume: no_image_volume.map(|reason| chain(&reason)),
    })
}
