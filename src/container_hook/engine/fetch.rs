//! The image of a container: pulled, or about to be built.

use std::path::Path;

use super::backend::EngineBackend;
use super::build::{self, BuildError, Source};
use super::plan::Plan;
use crate::container_hook::error::HookError;
use crate::container_hook::options::Pull;
use crate::container_hook::request::{ImageSource, Registry};
use crate::image::{
    Credential, Credentials, Image, Login, PullPolicy, PullRequest, Reference, Secret, pull,
};
use crate::sys::privilege::outside;

/// Returns the image of a container that has one, pulled if the policy says so.
pub fn image(backend: &EngineBackend<'_>, plan: &Plan<'_>) -> Result<Image, HookError> {
    if let Some(system) = &plan.system {
        return Ok(system.image(&backend.engine.store)?);
    }
    match source(backend, plan)? {
        Source::Image(image) => Ok(*image),
        Source::Dockerfile(_) => Err(BuildError::NotAStep.into()),
    }
}

/// Returns the image of a container, pulled if the policy says so, or what builds it.
pub fn source(backend: &EngineBackend<'_>, plan: &Plan<'_>) -> Result<Source, HookError> {
    let container = &plan.container;
    let reference = match (&container.reference, &container.args.source) {
        (Some(reference), _) => reference,
        (None, ImageSource::Dockerfile(path)) => {
            let credentials = credentials(backend, plan, None);
            return Ok(build::begin(backend, Path::new(path), &credentials)?);
        }
        (None, ImageSource::Image(_)) => unreachable!("an image's name was parsed before"),
    };
    let policy = match container.options.pull {
        None => backend.settings.pull,
        Some(Pull::Always) => PullPolicy::Always,
        Some(Pull::Missing) => PullPolicy::Missing,
        Some(Pull::Never) => PullPolicy::Never,
    };
    let credentials = credentials(backend, plan, Some(reference));
    let request = PullRequest {
        reference,
        platform: &container.platform,
        credentials: &credentials,
        policy,
        progress: backend.context.log,
    };
    // Registries are reached as the user of the host reaches them, not as the job does.
    let pulled = outside::run(|| pull(&backend.engine.store, backend.registries, &request));
    Ok(Source::Image(Box::new(pulled?)))
}

/// Returns the logins for what a container is made from: the runner's own for its image, those of the
/// settings, and those of the template.
fn credentials(
    backend: &EngineBackend<'_>,
    plan: &Plan<'_>,
    image: Option<&Reference>,
) -> Credentials {
    let mut credentials = backend.credentials.clone();
    if let (Some(registry), Some(image)) = (&plan.container.args.registry, image) {
        credentials = credentials.with_login(credential(registry, image));
    }
    for file in &plan.additions.logins {
        credentials = credentials.with_file(file.clone());
    }
    credentials
}

/// Returns the login that the runner sent, for the registry of its image alone.
fn credential(registry: &Registry, reference: &Reference) -> Credential {
    let password = Secret::new(registry.password.expose());
    let login = Login::Password { username: registry.username.clone(), password };
    Credential::new(reference.registry(), login)
}
