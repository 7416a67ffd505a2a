//! Errors of the Kubernetes backend.

use std::io;

use container_hook_job::HookError;

use super::agent::AgentError;
use super::client::ClusterError;
use super::files::FilesError;
use super::wait::WaitError;

/// Errors of handling signals and cancelled steps.
#[derive(Debug, thiserror::Error)]
pub enum KubernetesError {
    #[error("cannot catch the signals of the runner")]
    Signals(#[source] io::Error),
    /// The runner cancelled the job.
    #[error("interrupted by signal {signal}")]
    Interrupted { signal: i32 },
    /// The files of a cancelled step did not arrive in time.
    #[error("the step was cancelled, and its files did not come back within {seconds} s")]
    Cancelled { seconds: u64 },
}

impl From<KubernetesError> for HookError {
    fn from(error: KubernetesError) -> Self {
        HookError::Backend(Box::new(error))
    }
}

/// Converts the errors of the backend's modules to [`HookError`].
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
