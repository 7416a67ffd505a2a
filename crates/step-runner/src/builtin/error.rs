//! Errors of built-in functions. GitLab Runner reads the exit code from the end of a message, so
//! messages end as GitLab's do.

use oci_hooks_files::fs::PathError;

use super::super::DeclaredType;
use super::super::document::DocumentError;
use super::super::resolve::reason;

/// Error of a command.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct CommandError {
    pub failure: CommandFailure,
    /// Message; ends with `exit status N` if the command exited.
    pub message: String,
    /// Exit code to report, 1 to 255.
    pub code: i32,
}

/// Kinds of failures of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandFailure {
    /// Exited with a code other than 0, or could not be started.
    Exit,
    Signal(i32),
    Deadline,
    Cancelled,
}

impl CommandError {
    /// Returns the error of a command that was stopped, or not started, because its time is over.
    pub fn deadline() -> Self {
        let message = "context deadline exceeded".to_owned();
        CommandError { failure: CommandFailure::Deadline, message, code: 1 }
    }

    /// Returns the error of a command that was stopped, or not started, because the job is cancelled.
    pub fn cancelled() -> Self {
        let message = "context canceled".to_owned();
        CommandError { failure: CommandFailure::Cancelled, message, code: 1 }
    }
}

/// An error of a built-in function.
#[derive(Debug, thiserror::Error)]
pub enum BuiltinError {
    /// An input of the wrong type.
    #[error("input {name:?}: expected {}", expected.name())]
    Input { name: &'static str, expected: DeclaredType },
    /// An item of the script is not a string.
    #[error("input \"script\": item {0}: expected string")]
    Line(usize),
    #[error("script input is empty")]
    EmptyScript,
    #[error("detecting shell: no shell found in any of: {0}")]
    NoShell(String),
    /// The input `config` is invalid.
    #[error("config: {0}")]
    Config(String),
    /// The `run` keyword of the job is invalid.
    #[error("config: run_steps: {0}")]
    Steps(#[from] DocumentError),
    #[error(transparent)]
    Command(#[from] CommandError),
    #[error("{}: {}", .0, reason(&.0.source))]
    Path(#[from] PathError),
    /// A job of `builtin://concrete` failed in its scripts, or when it stored caches and artifacts.
    #[error("{0}")]
    Job(Box<BuiltinError>),
    /// An error with the part of the job in which it occurred.
    #[error("{part}: {error}")]
    Within { part: String, error: Box<BuiltinError> },
    /// A shell that is not supported: PowerShell.
    #[error("shell {0:?} is not supported: expected bash or sh")]
    Shell(String),
    #[error("unknown {variable}: {value}")]
    Strategy { variable: &'static str, value: String },
    /// A text that cannot be written to a configuration file of git.
    #[error("the {part} of git setting {setting} contains a line break or a NUL byte")]
    GitConfig {
        /// What contains it: the URL in the name of the setting, or the value.
        part: &'static str,
        /// Section and key, without the URL, which may contain a password.
        setting: String,
    },
    #[error("job canceled: context canceled")]
    Cancelled,
    #[error("job script timeout exceeded: context deadline exceeded")]
    ScriptTimeout,
}

impl BuiltinError {
    /// Returns the exit code to report, 1 to 255.
    pub fn exit_code(&self) -> i32 {
        match self {
            BuiltinError::Command(error) => error.code,
            BuiltinError::Job(error) | BuiltinError::Within { error, .. } => error.exit_code(),
            _ => 1,
        }
    }

    /// Returns whether a job of `builtin://concrete` failed, or was cancelled, in its scripts or
    /// after them. A later cancellation does not replace a failure.
    pub fn is_job_failure(&self) -> bool {
        matches!(self, BuiltinError::Job(_))
    }

    /// Returns the failure of the innermost command. Without a command, returns `Cancelled` for a
    /// cancellation, `Deadline` for a script timeout, and `Exit` for other errors.
    pub fn failure(&self) -> CommandFailure {
        match self {
            BuiltinError::Command(error) => error.failure,
            BuiltinError::Job(error) | BuiltinError::Within { error, .. } => error.failure(),
            BuiltinError::Cancelled => CommandFailure::Cancelled,
            BuiltinError::ScriptTimeout => CommandFailure::Deadline,
            _ => CommandFailure::Exit,
        }
    }
}

/// Adds to an error the part of the job in which it occurred.
pub trait JobPartContext<T> {
    fn with_part(self, part: impl Into<String>) -> Result<T, BuiltinError>;
}

impl<T, E: Into<BuiltinError>> JobPartContext<T> for Result<T, E> {
    fn with_part(self, part: impl Into<String>) -> Result<T, BuiltinError> {
        self.map_err(|error| BuiltinError::Within {
            part: part.into(),
            error: Box::new(error.into()),
        })
    }
}

/// Treats a command as successful if it was killed by `SIGHUP`, `SIGUSR1`, `SIGUSR2` or `SIGPIPE`,
/// as GitLab Runner does: scripts send these signals to themselves.
pub fn ignore_benign(ended: Result<(), CommandError>) -> Result<(), CommandError> {
    match ended {
        // HUP, USR1, USR2, PIPE.
        Err(CommandError { failure: CommandFailure::Signal(1 | 10 | 12 | 13), .. }) => Ok(()),
        ended => ended,
    }
}
