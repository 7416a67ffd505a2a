//! What of this host can fail under a command of the runner.

use super::build::BuildError;
use super::unkept::UnkeptLimits;
use crate::container::{ContainerError, HostSystemError};
use crate::container_hook::error::HookError;
use crate::image::{PullError, StoreError};
use crate::network::NetworkError;

/// An image, a network or a container of this host failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    #[error(transparent)]
    Pull(#[from] PullError),
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

/// Makes a command fail with an error of what it uses.
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
