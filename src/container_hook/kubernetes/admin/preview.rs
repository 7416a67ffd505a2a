//! The pods that requests would get.

use k8s_openapi::api::core::v1::Pod;

use super::super::own_pod::{OwnPod, PodIdentity};
use super::super::pod::{self, ImageFacts, MadePod};
use super::super::settings::KubernetesSettings;
use crate::container_hook::context::HookContext;
use crate::container_hook::error::HookError;
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
