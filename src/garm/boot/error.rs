//! Why a runner did not come up.

use std::time::Duration;

use super::guest::GuestError;
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
    /// It took too long.
    #[error("the runner was not brought up within {} s", timeout.as_secs())]
    TimedOut {
        /// How long it had.
        timeout: Duration,
    },
    /// The packages are not there.
    #[error("cannot install the extra packages {packages}: code {code}, see the instance's log")]
    Packages {
        /// Their names.
        packages: String,
        /// How the installation ended.
        code: i32,
    },
    /// A script of the pool failed.
    #[error("the pre-install script {name:?} ended with code {code}, see the instance's log")]
    Script {
        /// Its name.
        name: String,
        /// How it ended.
        code: i32,
    },
    /// The runner cannot run in this image.
    #[error("the runner does not start in this image, code {code}: {output}")]
    Start {
        /// How it ended.
        code: i32,
        /// What it said.
        output: String,
    },
    /// The forge does not know the runner.
    #[error("cannot register the runner: code {code} {tries} times, see the instance's log")]
    Registration {
        /// How the last try ended.
        code: i32,
        /// How often it was tried.
        tries: u32,
    },
    /// The runner's own file says something else.
    #[error("cannot learn the runner's number from {file}")]
    RunnerFile {
        /// The file.
        file: String,
        /// What is wrong with it.
        source: RunnerFileError,
    },
    /// GARM has no script.
    #[error(
        "GARM gives no install script: use_garm_template needs GARM 0.2 and a template for the pool"
    )]
    Template {
        /// What it answered.
        source: HttpError,
    },
}

/// What is wrong with a runner's own file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunnerFileError {
    /// There is none.
    #[error("it is not there")]
    Missing,
    /// It is no JSON.
    #[error("it is not a JSON object")]
    Syntax(#[source] serde_json::Error),
    /// The number is not there, or not one.
    #[error("there is no {key} in it that is a number greater than zero")]
    Key {
        /// What it should be called.
        key: &'static str,
    },
}
