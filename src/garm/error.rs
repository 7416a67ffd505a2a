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
    #[error("unknown instance {name:?}")]
    Unknown { name: String },
    #[error("instance {name} already exists and is running")]
    Duplicate { name: String },
    /// It cannot be started again.
    #[error(
        "instance {name} has ended, and does not start again: its runner was good for one job{}", fault.as_ref().map(|fault| format!(" ({fault})")).unwrap_or_default()
    )]
    Ended {
        name: String,
        /// What went wrong with it.
        fault: Option<String>,
    },
    /// Its image cannot be had.
    #[error(transparent)]
    Pull(#[from] Box<PullError>),
    /// What is kept of images cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Its image has no runner where the settings say.
    #[error("no runner found in {} of {image}, which `runner-dir` of the image names", dir.display())]
    NoRunner { image: String, dir: PathBuf },
    /// Not all of its processes could be found.
    #[error("cannot {action} the processes of instance {name}")]
    Signal { name: String, action: &'static str, source: std::io::Error },
    /// Something of an ordinary user's instance could not be done in the namespaces that it has.
    #[error("instance {name}")]
    Elsewhere { name: String, source: Box<dyn std::error::Error + Send + Sync> },
    /// Nobody can be the user that its runner runs as.
    #[error(
        "the runner would run as {uid}:{gid}, and an instance has users 0 to {} and groups 0 to {}: set \
         `user` under [boot] or of the image{others}",
        uids - 1,
        gids - 1
    )]
    RunnerUser {
        uid: u32,
        gid: u32,
        uids: u32,
        gids: u32,
        /// How there can be more of them.
        others: &'static str,
    },
    /// Its runner cannot be had.
    #[error(transparent)]
    Runner(#[from] RunnerError),
    #[error(transparent)]
    Http(#[from] HttpError),
    #[error(transparent)]
    Container(#[from] ContainerError),
    #[error(transparent)]
    Network(#[from] NetworkError),
    #[error(transparent)]
    Supervisor(#[from] SupervisorError),
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
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
