//! The pods that requests would get, and what jobs of a runner will find.

use std::path::Path;

use k8s_openapi::api::core::v1::Pod;

use crate::container_hook::context::HookContext;
use crate::container_hook::error::HookError;
use crate::container_hook::kubernetes::client::{Cluster, ClusterError};
use crate::container_hook::kubernetes::own_pod::{OwnPod, PodIdentity};
use crate::container_hook::kubernetes::pod::{self, ImageFacts, MadePod};
use crate::container_hook::kubernetes::settings::KubernetesSettings;
use crate::container_hook::request::Command;

/// A pod that is not made.
#[derive(Clone, Debug)]
pub struct Preview {
    pub pod: Pod,
    /// The names of the secrets that would be made before it, with the names of what is in each.
    pub secrets: Vec<(String, Vec<String>)>,
    /// What people should know of what they wrote.
    pub notes: Vec<String>,
}

/// Returns the pod that a command would get; none if it gets none. Neither a cluster nor a registry is asked:
/// what they would say is missing.
///
/// # Errors
///
/// Fails with what a container asks for and cannot have, or if the template is none.
pub fn preview(
    context: &HookContext<'_>,
    settings: &KubernetesSettings,
    identity: &PodIdentity,
    command: &Command,
) -> Result<Option<Preview>, HookError> {
    let own = OwnPod::new(identity, None, context.runner.work());
    let images = ImageFacts::default();
    let made = match command {
        Command::PrepareJob(job) => pod::job(context, settings, &own, job, &images)?,
        Command::RunContainerStep(step) => pod::step(context, settings, &own, step, &images, None)?,
        _ => return Ok(None),
    };
    let MadePod { pod, secrets, notes, .. } = made;
    let secrets = secrets.into_iter().map(|secret| {
        let keys = secret.data.into_iter().flatten().map(|(key, _)| key);
        let keys = keys.chain(secret.string_data.into_iter().flatten().map(|(key, _)| key));
        (secret.metadata.name.unwrap_or_default(), keys.collect())
    });
    Ok(Some(Preview { pod, secrets: secrets.collect(), notes }))
}

/// What is found of the pod of a runner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunnerPod {
    /// Whether it is in the namespace of the pods of its jobs, and owns them.
    pub is_found: bool,
    pub image: Option<String>,
    pub node: Option<String>,
    /// The claim that its work directory is on.
    pub claim: Option<String>,
}

/// Looks for the pod of a runner with this work directory.
///
/// # Errors
///
/// Fails if the cluster cannot be asked. That there is no such pod is no error.
pub async fn inspect(
    cluster: &Cluster,
    identity: &PodIdentity,
    work: &Path,
) -> Result<RunnerPod, ClusterError> {
    let pod = cluster.pod(&identity.name).await?;
    let own = OwnPod::new(identity, pod.as_ref(), work);
    Ok(RunnerPod {
        is_found: pod.is_some(),
        image: own.image,
        node: own.node,
        claim: own.claim.map(|claim| claim.name),
    })
}
