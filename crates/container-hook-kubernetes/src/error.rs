//! Errors of the Kubernetes backend.

use std::io;

use super::agent::AgentError;
use super::client::ClusterError;
use super::files::FilesError;
use super::wait::WaitError;

/// Errors of catching the runner's signals, and of work that a signal has cut short.
#[derive(Debug, thiserror::Error)]
pub enum SignalError {
    #[error("cannot catch the signals of the runner")]
    Signals(#[source] io::Error),
    /// The runner cancelled the job.
    #[error("interrupted by signal {signal}")]
    Interrupted { signal: i32 },
    /// The files of a cancelled step did not arrive in time.
    #[error("the step was cancelled, and its files were not downloaded within {seconds} s")]
    Cancelled { seconds: u64 },
}

container_hook_job::backend_errors!(SignalError, ClusterError, WaitError, AgentError, FilesError);
