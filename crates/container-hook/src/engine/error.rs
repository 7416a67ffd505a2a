//! Errors of the backend for a single host.

use oci_hooks_engine::container::{ContainerError, HostSystemError};
use oci_hooks_engine::network::NetworkError;
use oci_hooks_image::{PullError, StoreError};

use super::build::BuildError;
use super::unkept::UnkeptLimits;
use crate::error::HookError;

/// Errors of images, networks and containers of this host.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
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
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Build(#[from] BuildError),
    #[error(transparent)]
    Network(#[from] NetworkError),
    #[error(transparent)]
    Container(#[from] ContainerError),
    #[error(transparent)]
    HostSystem(#[from] HostSystemError),
    #[error(transparent)]
    Limits(#[from] UnkeptLimits),
}

impl From<EngineError> for HookError {
    fn from(error: EngineError) -> Self {
        HookError::Backend(Box::new(error))
    }
}

/// Returns the exit code of a container whose program could not be started; none for other errors.
pub fn program_code(error: &HookError) -> Option<u8> {
    match error {
        HookError::In { source, .. } => program_code(source),
        HookError::Backend(error) => match error.downcast_ref()? {
            EngineError::Container(ContainerError::Runtime(error)) => error.program_code(),
            _ => None,
        },
        _ => None,
    }
}

/// Implements `From` for `HookError`, by way of [`EngineError`].
macro_rules! into_hook_error {
    ($($error:ty),*) => {
        $(impl From<$error> for HookError {
            fn from(error: $error) -> Self {
                EngineError::from(error).into()
            }
        })*
    };
}

into_hook_error!(
    PullError,
    StoreError,
    BuildError,
    NetworkError,
    ContainerError,
    HostSystemError,
    UnkeptLimits
);
