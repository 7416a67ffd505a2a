//! What can go wrong with an instance.

use std::path::PathBuf;

use super::call::Exit;
use super::http::HttpError;
use super::plan::PlanError;
use super::runner::RunnerError;
use super::supervisor::SupervisorError;
use crate::container::ContainerError;
use crate::image::{PullError, StoreError};
use crate::network::NetworkError;
use crate::runtime::RuntimeError;
use crate::sys::fs::PathError;

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProviderError {
    /// GARM asks for what there cannot be, or not here.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// There is no such instance.
    #[error("there is no instance {name:?}")]
    Unknown {
        /// What was asked for.
        name: String,
    },
    /// There is one already.
    #[error("instance {name} is there already, and runs")]
    Duplicate {
        /// Its name.
        name: String,
    },
    /// It cannot be started again.
    #[error(
        "instance {name} has ended, and does not start again: its runner was good for one job; \
         delete it"
    )]
    Ended {
        /// Its name.
        name: String,
    },
    /// Its image cannot be had.
    #[error(transparent)]
    Pull(#[from] Box<PullError>),
    /// What is kept of images cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Its image has no runner where the settings say.
    #[error("there is no runner in {} of {image}: `runner-dir` of the image says there is", dir.display())]
    NoRunner {
        /// The image.
        image: String,
        /// Where it should be.
        dir: PathBuf,
    },
    /// Its runner cannot be had.
    #[error(transparent)]
    Runner(#[from] RunnerError),
    /// Nothing can be downloaded.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// Its container fails.
    #[error(transparent)]
    Container(#[from] ContainerError),
    /// Its network fails.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// Nobody stays with it.
    #[error(transparent)]
    Supervisor(#[from] SupervisorError),
    /// The runtime fails.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// The system says no.
    #[error(transparent)]
    Path(#[from] PathError),
}

impl ProviderError {
    /// Returns how GARM is told.
    pub fn exit(&self) -> Exit {
        match self {
            ProviderError::Unknown { .. } => Exit::NotFound,
            ProviderError::Duplicate { .. } => Exit::Duplicate,
            _ => Exit::Failed,
        }
    }
}
