//! Errors of operations on instances.

use std::path::PathBuf;

use oci_hooks_engine::container::ContainerError;
use oci_hooks_engine::network::NetworkError;
use oci_hooks_engine::runtime::RuntimeError;
use oci_hooks_files::fs::PathError;
use oci_hooks_image::{PullError, StoreError};

use super::call::CallExit;
use super::http::HttpError;
use super::plan::PlanError;
use super::runner::RunnerError;
use super::supervisor::SupervisorError;

/// Errors of operations on instances.
#[derive(Debug, thiserror::Error)]
pub enum ProviderError {
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error("unknown instance {name:?}")]
    Unknown { name: String },
    #[error("instance {name} already exists and is running")]
    Duplicate { name: String },
    /// The instance cannot be started again.
    #[error(
        "instance {name} cannot be started again: its runner was for one job only{}",
        fault.as_ref().map(|fault| format!(" ({fault})")).unwrap_or_default()
    )]
    Ended { name: String, fault: Option<String> },
    #[error(transparent)]
    Pull(#[from] Box<PullError>),
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The image has no runner in the directory that the settings name.
    #[error(
        "image {image} has no runner in {}, its `runner-dir` in the settings: expected run.sh and \
         bin/Runner.Listener, or act_runner or gitea-runner",
        dir.display()
    )]
    NoRunner { image: String, dir: PathBuf },
    /// Not all processes of the instance, or not its supervisor, could be signalled.
    #[error("cannot {action} instance {name}")]
    Signal { name: String, action: &'static str, source: std::io::Error },
    /// The namespaces of rootless instances cannot be listed.
    #[error("cannot list the instances of this user")]
    ListInNamespaces { source: Box<dyn std::error::Error + Send + Sync> },
    /// An operation failed in the namespaces of a rootless instance.
    #[error("instance {name}")]
    InNamespaces { name: String, source: Box<dyn std::error::Error + Send + Sync> },
    /// The runner's user is outside the id mapping of the instance.
    #[error(
        "the runner cannot run as {uid}:{gid}, because an instance has users 0 to {} and groups 0 to {}: set \
         another `user` in the extra specs, under [images.NAME] or under [boot]{others}",
        uids - 1,
        gids - 1
    )]
    RunnerUser {
        uid: u32,
        gid: u32,
        uids: u32,
        gids: u32,
        /// Hint for a larger mapping; may be empty.
        others: &'static str,
    },
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
    /// Returns the exit status for GARM.
    pub fn exit(&self) -> CallExit {
        match self {
            ProviderError::Unknown { .. } => CallExit::NotFound,
            ProviderError::Duplicate { .. } => CallExit::Duplicate,
            _ => CallExit::Failed,
        }
    }
}
