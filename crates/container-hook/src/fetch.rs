//! Pulls the image of a container, or begins to build it.

use std::path::Path;

use container_hook_job::HookError;
use container_hook_job::options::PullOption;
use container_hook_job::request::{ImageSource, RegistryLogin};
use oci_hooks_host::privilege::host_network;
use oci_hooks_image::{
    Credentials, Image, ImageReference, LoginMethod, PullError, PullPolicy, PullRequest,
    RegistryCredential, Secret, pull,
};

use super::backend::EngineBackend;
use super::build::{self, BuildError, ImageOrBuild};
use super::error::ImageError;
use super::plan::LaunchPlan;

/// Returns the image of a container, pulled according to the pull policy; fails for a Dockerfile.
pub fn image(backend: &EngineBackend<'_>, plan: &LaunchPlan<'_>) -> Result<Image, HookError> {
    if let Some(system) = &plan.system {
        return Ok(system.image(&backend.engine.store)?);
    }
    match source(backend, plan)? {
        ImageOrBuild::Image(image) => Ok(*image),
        ImageOrBuild::Dockerfile(_) => Err(BuildError::NotAStep.into()),
    }
}

/// Returns the image of a container, pulled according to the pull policy, or the build of its Dockerfile.
pub fn source(
    backend: &EngineBackend<'_>,
    plan: &LaunchPlan<'_>,
) -> Result<ImageOrBuild, HookError> {
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
        Some(PullOption::Always) => PullPolicy::Always,
        Some(PullOption::Missing) => PullPolicy::Missing,
        Some(PullOption::Never) => PullPolicy::Never,
    };
    let credentials = credentials(backend, plan, Some(reference));
    let request = PullRequest {
        reference,
        platform: &container.platform,
        credentials: &credentials,
        policy,
        progress: backend.context.log,
    };
    Ok(ImageOrBuild::Image(Box::new(pull_named(backend, &request)?)))
}

/// Pulls an image that a workflow or a Dockerfile names, through the host's network, not the job's.
pub fn pull_named(
    backend: &EngineBackend<'_>,
    request: &PullRequest<'_>,
) -> Result<Image, ImageError> {
    let reference = request.reference;
    if build::is_reserved(reference) {
        return Err(ImageError::ReservedName { image: reference.familiar_name() });
    }
    // A port that a job publishes on loopback could impersonate the registry.
    let is_untrusted = backend.registries.is_unnamed_on_loopback(reference.registry());
    let policy = if is_untrusted { PullPolicy::Never } else { request.policy };
    let request = PullRequest { policy, ..*request };
    let pulled = host_network::run(|| pull(&backend.engine.store, backend.registries, &request));
    pulled.map_err(|error| match error {
        PullError::NotStored { .. } if is_untrusted => ImageError::UnnamedRegistry {
            image: reference.familiar_name(),
            registry: reference.registry().to_owned(),
        },
        error => error.into(),
    })
}

/// Returns the logins for a container's image: from the request, the settings and the template.
fn credentials(
    backend: &EngineBackend<'_>,
    plan: &LaunchPlan<'_>,
    image: Option<&ImageReference>,
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

/// Returns the login that the runner sent, valid only for the registry of its image.
fn credential(registry: &RegistryLogin, reference: &ImageReference) -> RegistryCredential {
    let password = Secret::new(registry.password.expose());
    let login = LoginMethod::Password { username: registry.username.clone(), password };
    RegistryCredential::new(reference.registry(), login)
}
