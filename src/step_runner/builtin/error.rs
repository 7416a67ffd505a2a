//! Errors of built-in functions. Their texts end as those of GitLab's do: its runner reads the exit code there.

use super::super::Type;
use super::super::document::DocumentError;
use super::super::resolve::reason;
use crate::sys::fs::PathError;

/// Why a command did not succeed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct CommandError {
    pub failure: Failure,
    /// Ends with `exit status N` if the command exited.
    pub message: String,
    /// Exit code to report, 1 to 255.
    pub code: i32,
}

/// How a command failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It exited with another code than 0, or could not be started.
    Exit,
    /// It was ended by this signal.
    Signal(i32),
    /// Its time was over.
    Deadline,
    /// The job is cancelled.
    Cancelled,
}

impl CommandError {
    /// Returns the error of a command that was stopped, or not started, because its time is over.
    pub fn deadline() -> Self {
        let message = "context deadline exceeded".to_owned();
        CommandError { failure: Failure::Deadline, message, code: 1 }
    }

    /// Returns the error of a command that was stopped, or not started, because the job is cancelled.
    pub fn cancelled() -> Self {
        let message = "context canceled".to_owned();
        CommandError { failure: Failure::Cancelled, message, code: 1 }
    }
}

/// An error of a built-in function.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuiltinError {
    /// An input has another type than the function takes.
    #[error("input {name:?}: expected {}", expected.name())]
    Input { name: &'static str, expected: Type },
    /// A line of the script is no text.
    #[error("input \"script\": item {0}: expected string")]
    Line(usize),
    #[error("script input is empty")]
    EmptyScript,
    #[error("detecting shell: no shell found in any of: {0}")]
    NoShell(String),
    /// The input `config` cannot be read.
    #[error("config: {0}")]
    Config(String),
    /// The `run` keyword of the job cannot be read.
    #[error("config: run_steps: {0}")]
    Steps(#[from] DocumentError),
    #[error(transparent)]
    Command(#[from] CommandError),
    #[error("{}: {}", .0, reason(&.0.source))]
    Path(#[from] PathError),
    /// A whole job failed, in its scripts or after them.
    #[error("{0}")]
    Job(Box<BuiltinError>),
    /// A part of a job, and why it failed.
    #[error("{part}: {error}")]
    Within { part: String, error: Box<BuiltinError> },
    /// The job is written for a shell that this program cannot write scripts for.
    #[error("shell {0:?} is not supported: expected bash or sh")]
    Shell(String),
    #[error("unknown {variable}: {value}")]
    Strategy { variable: &'static str, value: String },
    /// A text that cannot be written to a configuration file of git.
    #[error("{0} contains a line break or a NUL byte")]
    GitConfig(&'static str),
    #[error("job canceled: context canceled")]
    Cancelled,
    #[error("job script timeout exceeded: context deadline exceeded")]
    ScriptTimeout,
}

impl BuiltinError {
    /// Returns the error with the part of the job in which it happened.
    pub(super) fn within(self, part: impl Into<String>) -> Self {
        BuiltinError::Within { part: part.into(), error: Box::new(self) }
    }

    /// Returns the exit code to report, 1 to 255.
    pub fn exit_code(&self) -> i32 {
        match self {
            BuiltinError::Command(error) => error.code,
            BuiltinError::Job(error) | BuiltinError::Within { error, .. } => error.exit_code(),
            _ => 1,
        }
    }

    /// Returns whether a whole job failed, which goes on after its scripts: a later cancellation does not
    /// change how it ended.
    pub fn is_of_job(&self) -> bool {
        matches!(self, BuiltinError::Job(_))
    }

    /// Returns how the innermost command failed; `Exit` for other errors.
    pub fn failure(&self) -> Failure {
        match self {
            BuiltinError::Command(error) => error.failure,
            BuiltinError::Job(error) | BuiltinError::Within { error, .. } => error.failure(),
            BuiltinError::Cancelled => Failure::Cancelled,
            BuiltinError::ScriptTimeout => Failure::Deadline,
            _ => Failure::Exit,
        }
    }
}

/// Adds the part of the job to an error.
pub trait Within<T> {
    fn within(self, part: impl Into<String>) -> Result<T, BuiltinError>;
}

impl<T, E: Into<BuiltinError>> Within<T> for Result<T, E> {
    fn within(self, part: impl Into<String>) -> Result<T, BuiltinError> {
        self.map_err(|error| error.into().within(part))
    }
}

/// Returns success for a command that was ended by a signal which scripts send to themselves, as GitLab's runner
/// does.
pub fn benign(ended: Result<(), CommandError>) -> Result<(), CommandError> {
    match ended {
        // HUP, USR1, USR2, PIPE.
        Err(CommandError { failure: Failure::Signal(1 | 10 | 12 | 13), .. }) => Ok(()),
        ended => ended,
    }
}
