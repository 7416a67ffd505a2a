//! Errors of booting a runner.

use std::time::Duration;

use super::guest::GuestError;
use super::output::LastLines;
use crate::http::HttpError;

/// Errors of booting a runner.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    #[error(transparent)]
    Http(#[from] HttpError),
    #[error(transparent)]
    Guest(#[from] GuestError),
    #[error(
        "timed out: the runner did not start within {} s, the `timeout` under [boot]",
        timeout.as_secs()
    )]
    TimedOut { timeout: Duration },
    #[error(
        "cannot install the extra packages {packages}: exit code {code}, see `garm-provider-runc logs NAME`"
    )]
    Packages { packages: String, code: i32 },
    #[error(
        "the pre-install script {name:?} ended with code {code}, see `garm-provider-runc logs NAME`"
    )]
    Script { name: String, code: i32 },
    #[error(
        "the runner does not start in this image, code {code}: {}",
        if output.is_empty() { "no output" } else { output.as_str() }
    )]
    Start { code: i32, output: String },
    #[error(
        "cannot register the runner: {tries} attempts failed, exit code {code}, see `garm-provider-runc logs NAME`"
    )]
    Registration {
        /// Exit code of the last attempt.
        code: i32,
        tries: u32,
    },
    /// The runner's file, which has its id, is missing or invalid.
    #[error("cannot read the runner's id from {file}")]
    RunnerFile { file: String, source: RunnerFileError },
    /// The runner is running, but has no session with its forge.
    #[error(
        "the runner did not listen for jobs within {} s, the `timeout` under [boot]{last}",
        timeout.as_secs()
    )]
    NotListening { timeout: Duration, last: LastLines },
    /// The runner exited before it could get a job.
    #[error("the runner ended with code {code} before it listened for jobs{last}")]
    EndedEarly { code: i32, last: LastLines },
    /// The runner failed after it had listened for jobs.
    #[error("the runner ended with code {code}{last}")]
    Ended { code: i32, last: LastLines },
    /// As `Ended`, for GitHub's runner, whose scripts always exit with 0.
    #[error("the runner ended: {reason}{last}")]
    Listener { reason: String, last: LastLines },
    #[error("GARM's install script ended with code {code}{last}")]
    InstallScript { code: i32, last: LastLines },
    /// GARM's script, not this program, must report the runner as idle.
    #[error("GARM's install script ended without reporting the runner as idle{last}")]
    NeverIdle { last: LastLines },
    #[error(
        "GARM returned no install script: use_garm_template needs GARM 0.2 or later and a template for the pool"
    )]
    Template { source: HttpError },
}

/// Errors of reading the id of a runner from its file.
#[derive(Debug, thiserror::Error)]
pub enum RunnerFileError {
    #[error("not found")]
    Missing,
    #[error("not a JSON object")]
    Syntax(#[source] serde_json::Error),
    #[error("{key} is missing or not a number greater than zero")]
    Key { key: &'static str },
}
