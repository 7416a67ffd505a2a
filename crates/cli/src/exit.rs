//! Exit codes of the programs.

use std::error::Error;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitCode, ExitStatus};

/// Result of a command that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CliExit {
    Done,
    /// The command found problems, or nothing that matches; exit code 1.
    Findings,
    /// Exit code of the program that the command ran.
    Code(u8),
}

impl From<CliExit> for ExitCode {
    fn from(exit: CliExit) -> Self {
        match exit {
            CliExit::Done => ExitCode::SUCCESS,
            CliExit::Findings => ExitCode::FAILURE,
            CliExit::Code(code) => ExitCode::from(code),
        }
    }
}

impl From<ExitStatus> for CliExit {
    /// Returns 128 plus the signal number for a killed process, like a shell.
    fn from(status: ExitStatus) -> Self {
        let code = status.code().or(status.signal().map(|signal| 128 + signal));
        CliExit::Code(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
    }
}

/// Error of a command.
pub trait CliError: Error {
    /// Returns whether the reader of standard output closed it.
    fn is_broken_pipe(&self) -> bool;

    /// Returns a hint, if the message does not contain the fix.
    fn hint(&self) -> Option<String> {
        None
    }
}

/// Converts the result of a command to the exit code of the program; `report` chooses the code of a failure.
pub fn exit_code<F: CliError>(
    result: Result<impl Into<ExitCode>, F>,
    report: impl FnOnce(&F) -> ExitCode,
) -> ExitCode {
    match result {
        Ok(exit) => exit.into(),
        // The reader closed standard output because it needs no more. As with a program that SIGPIPE ends, the exit code
        // says that the command is not complete, and nothing is printed.
        Err(error) if error.is_broken_pipe() => ExitCode::from(128 + 13),
        Err(error) => report(&error),
    }
}
