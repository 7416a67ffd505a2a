//! What of a cluster can fail under a command of the runner.

use std::io;

use super::agent::AgentError;
use super::client::ClusterError;
use super::files::FilesError;
use super::wait::WaitError;
use crate::container_hook::error::HookError;

/// A pod, a secret, or what is in a container failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KubernetesError {
    #[error("cannot catch the signals of the runner")]
    Signals(#[source] io::Error),
    /// The runner has cancelled the job.
    #[error("interrupted by signal {signal}")]
    Interrupted { signal: i32 },
    /// Whoever cancelled the step does not wait for its files.
    #[error("the step was cancelled, and its files did not come back within {seconds} s")]
    Cancelled { seconds: u64 },
}

impl From<KubernetesError> for HookError {
    fn from(error: KubernetesError) -> Self {
        HookError::Backend(Box::new(error))
    }
}

/// Makes a command fail with an error of what it uses.
macro_rules! into_hook_error {
    ($($error:ty),*) => {
        $(impl From<$error> for HookError {
            fn from(error: $error) -> Self {
                HookError::Backend(Box::new(error))
            }
        })*
    };
}

into_hook_error!(ClusterError, WaitError, AgentError, FilesError);
