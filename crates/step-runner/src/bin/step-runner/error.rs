//! Errors of commands.

use std::io;
use std::path::PathBuf;

use oci_hooks_cli::context::OutputError;
use oci_hooks_cli::exit::CliError;
use oci_hooks_files::fs::{PathError, ReadError};
use oci_hooks_image::RegistryError;
use step_runner::DeclaredType;
use step_runner::client::ClientError;
use step_runner::document::{DocumentError, ReferenceError};
use step_runner::engine::StepError;
use step_runner::jobs::StateError;
use step_runner::log::TooMuchToMask;
use step_runner::resolve::ResolveError;
use step_runner::service::ServeError;
use step_runner::socket::SocketError;
use step_runner::trace::DefinitionError;

/// An error of a command. Its exit code is 1.
#[derive(Debug, thiserror::Error)]
pub enum StepRunnerError {
    #[error(transparent)]
    Step(#[from] StepError),
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    #[error("compiling reference")]
    Reference(#[from] ReferenceError),
    #[error(transparent)]
    Registry(#[from] RegistryError),
    #[error(transparent)]
    Masking(#[from] TooMuchToMask),
    #[error("log level: {0} not supported: set CI_STEPS_LOG_LEVEL to debug, info, warn or error")]
    LogLevel(String),
    #[error("environment variable STEPS is not set: expected a YAML list of steps")]
    NoSteps,
    #[error("reading STEPS: {0}")]
    Steps(Box<DocumentError>),
    #[error("{}: file too large: limit {limit} bytes", path.display())]
    TooLarge { path: PathBuf, limit: u64 },
    #[error("invalid {option} {text:?}: expected NAME=VALUE")]
    Pair { option: &'static str, text: String },
    #[error(transparent)]
    Call(Box<DocumentError>),
    #[error("reading {}", path.display())]
    Definition { path: PathBuf, source: DefinitionError },
    #[error("invalid --input {name}: expected a value of type {kind}")]
    Input { name: String, kind: DeclaredType },
    #[error(transparent)]
    Path(#[from] PathError),
    #[error("cannot start the launcher process, which starts the commands of steps")]
    Launcher(#[source] io::Error),
    #[error(transparent)]
    Read(ReadError),
    #[error("initializing step-runner: invalid empty socket dir")]
    EmptyDir,
    #[error("initializing step-runner: invalid socket dir {}", .0.display())]
    NoDir(PathBuf),
    #[error(transparent)]
    Socket(#[from] SocketError),
    #[error(transparent)]
    State(#[from] StateError),
    #[error("cannot create a thread or a file descriptor")]
    Threads(#[source] io::Error),
    #[error("cannot set up the handling of signals")]
    Signals(#[source] io::Error),
    #[error(transparent)]
    Serve(#[from] ServeError),
    #[error(transparent)]
    Submit(#[from] ClientError),
    #[error("socket {}", socket.display())]
    Server { socket: PathBuf, source: ClientError },
    #[error(transparent)]
    Output(#[from] OutputError),
    #[error("cannot execute {}", name.display())]
    Execute { name: PathBuf, source: io::Error },
    /// An invalid command line of gitlab-runner.
    #[error("{0}")]
    Usage(String),
    /// GitLab's helper program, which alone has the command, is missing beside this program.
    #[error(
        "cannot run {command}, a command of GitLab's own program: that program is not at {}: copy it \
         there from GitLab's helper image or package",
        path.display()
    )]
    NoOriginal { command: String, path: PathBuf },
    /// No directory for temporary files is usable; `tried` contains each with the reason.
    #[error(
        "no usable directory for sockets and files of jobs ({}): mount a tmpfs at /tmp, or set TMPDIR to a \
         directory that this user can write to",
        tried.join(", ")
    )]
    NoDirectory { tried: Vec<String> },
    #[error("cannot monitor the command that serve runs")]
    Command(#[source] io::Error),
    #[error("dialing: dial unix {}: connect: {reason}", path.display())]
    Dial { path: PathBuf, reason: String },
    #[error("connection closed by the server")]
    ServerGone,
    #[error("connection to the server lost")]
    Broken(#[source] io::Error),
}

impl CliError for StepRunnerError {
    fn is_broken_pipe(&self) -> bool {
        matches!(self, StepRunnerError::Output(error) if error.is_broken_pipe())
    }
}
