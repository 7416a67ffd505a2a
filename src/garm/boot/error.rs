//! Why a runner did not come up.

use std::time::Duration;

use super::guest::GuestError;
use super::output::LastLines;
use crate::garm::http::HttpError;

/// Why a runner did not come up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BootError {
    /// GARM does not answer as it should.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// The instance does not take what is done to it.
    #[error(transparent)]
    Guest(#[from] GuestError),
    #[error("timed out: the runner did not start within {} s", timeout.as_secs())]
    TimedOut { timeout: Duration },
    /// The packages are not there.
    #[error("cannot install the extra packages {packages}: code {code}, see the instance's log")]
    Packages { packages: String, code: i32 },
    /// A script of the pool failed.
    #[error("the pre-install script {name:?} ended with code {code}, see the instance's log")]
    Script { name: String, code: i32 },
    /// The runner cannot run in this image.
    #[error("the runner does not start in this image, code {code}: {output}")]
    Start { code: i32, output: String },
    /// The forge does not know the runner.
    #[error("cannot register the runner: code {code} {tries} times, see the instance's log")]
    Registration {
        /// How the last try ended.
        code: i32,
        /// How often it was tried.
        tries: u32,
    },
    /// The runner's own file says something else.
    #[error("cannot read the runner's id from {file}")]
    RunnerFile {
        file: String,
        /// What is wrong with it.
        source: RunnerFileError,
    },
    /// It runs, but has no session at its forge.
    #[error("the runner did not listen for jobs within {} s{last}", timeout.as_secs())]
    NotListening { timeout: Duration, last: LastLines },
    /// It ended before any job could come.
    #[error("the runner ended with code {code} before it listened for jobs{last}")]
    EndedEarly { code: i32, last: LastLines },
    /// It ended later, and not as one whose job is done.
    #[error("the runner ended with code {code}{last}")]
    Ended { code: i32, last: LastLines },
    /// The same, of a runner whose scripts end with 0 in any case.
    #[error("the runner ended: {reason}{last}")]
    Listener { reason: String, last: LastLines },
    #[error("GARM's install script ended with code {code}{last}")]
    InstallScript { code: i32, last: LastLines },
    /// GARM waited for its script to say so.
    #[error("GARM's install script ended without reporting the runner as idle{last}")]
    NeverIdle { last: LastLines },
    #[error(
        "GARM returned no install script: use_garm_template needs GARM 0.2 and a template for the pool"
    )]
    Template { source: HttpError },
}

/// What is wrong with a runner's own file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunnerFileError {
    /// There is none.
    #[error("not found")]
    Missing,
    #[error("not a JSON object")]
    Syntax(#[source] serde_json::Error),
    /// The number is not there, or not one.
    #[error("{key} is missing or not a number greater than zero")]
    Key {
        /// What it should be called.
        key: &'static str,
    },
}
