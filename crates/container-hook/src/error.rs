//! Errors of the backend for a single host.

use container_hook_job::HookError;
use oci_hooks_engine::container::ContainerError;
use oci_hooks_image::PullError;

use super::build::BuildError;
use super::unenforced::UnenforcedLimits;

/// An image that a workflow names cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error(transparent)]
    Pull(#[from] PullError),
    /// Only this program gives images this name.
    #[error("{image}: the name is reserved for images that container-hook makes: use another one")]
    ReservedName { image: String },
    /// The registry is on the loopback interface, where jobs can publish ports.
    #[error(
        "{image} is not in the image store, and a registry on this machine is asked only if the settings name it: add \
         [registry.{registry:?}]"
    )]
    UnnamedRegistry { image: String, registry: String },
}

container_hook_job::backend_errors!(ImageError, BuildError, UnenforcedLimits);

/// Returns the exit code of a container whose program could not be started; none for other errors.
pub fn program_code(error: &HookError) -> Option<u8> {
    match error {
        HookError::In { source, .. } => program_code(source),
        HookError::Backend(error) => match error.downcast_ref()? {
            ContainerError::Runtime(error) => error.program_code(),
            _ => None,
        },
        _ => None,
    }
}
