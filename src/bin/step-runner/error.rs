//! What can go wrong in a command.

use std::io;
use std::path::PathBuf;

use oci_hooks::image::RegistryError;
use oci_hooks::program::exit::Failure;
use oci_hooks::step_runner::Type;
use oci_hooks::step_runner::document::{DocumentError, ReferenceError};
use oci_hooks::step_runner::engine::StepError;
use oci_hooks::step_runner::jobs::StateError;
use oci_hooks::step_runner::log::TooMuchToMask;
use oci_hooks::step_runner::resolve::ResolveError;
use oci_hooks::step_runner::service::ServeError;
use oci_hooks::step_runner::socket::SocketError;
use oci_hooks::sys::fs::PathError;

/// Why a command could not do its work.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Step(#[from] StepError),
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    #[error("compiling reference: {0}")]
    Reference(#[from] ReferenceError),
    #[error(transparent)]
    Registry(#[from] RegistryError),
    #[error(transparent)]
    Masking(#[from] TooMuchToMask),
    #[error("log level: {0} not supported")]
    LogLevel(String),
    #[error("the variable STEPS is not set: it holds the steps of the job, a YAML list")]
    NoSteps,
    #[error("reading STEPS: {0}")]
    Steps(Box<DocumentError>),
    #[error("{}: it has more than {limit} bytes", path.display())]
    TooLarge { path: PathBuf, limit: u64 },
    #[error("{option} {text:?}: write NAME=VALUE")]
    Pair { option: &'static str, text: String },
    #[error("--input {name}={text}: the input is declared {kind}; write it as JSON")]
    Input { name: String, kind: Type, text: String },
    #[error(transparent)]
    Path(#[from] PathError),
    #[error("cannot write to standard output")]
    Print(#[source] io::Error),
    #[error("initializing step-runner: invalid empty socket dir")]
    EmptyDir,
    #[error("initializing step-runner: invalid socket dir {}", .0.display())]
    NoDir(PathBuf),
    #[error(transparent)]
    Socket(#[from] SocketError),
    #[error(transparent)]
    State(#[from] StateError),
    #[error("cannot start threads")]
    Threads(#[source] io::Error),
    #[error("cannot listen to signals")]
    Signals(#[source] io::Error),
    #[error(transparent)]
    Serve(#[from] ServeError),
    #[error("cannot execute {}", name.display())]
    Execute { name: PathBuf, source: io::Error },
    #[error("cannot follow the command")]
    Command(#[source] io::Error),
    #[error("dialing: dial unix {}: connect: {reason}", path.display())]
    Dial { path: PathBuf, reason: String },
    #[error("the server has closed the connection")]
    ServerGone,
    #[error("the connection to the server is broken")]
    Broken(#[source] io::Error),
}

impl Failure for Error {
    fn is_broken_pipe(&self) -> bool {
        matches!(self, Error::Print(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}
