//! How a program ends.

use std::error::Error;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitCode, ExitStatus};

/// How a command ended that could do its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It was done, and all is well.
    Done,
    Findings,
    /// The code of the program that the command ran.
    Code(u8),
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        match exit {
            Exit::Done => ExitCode::SUCCESS,
            Exit::Findings => ExitCode::FAILURE,
            Exit::Code(code) => ExitCode::from(code),
        }
    }
}

impl From<ExitStatus> for Exit {
    /// As a shell has it: of a process that was killed, 128 and the signal.
    fn from(status: ExitStatus) -> Self {
        let code = status.code().or(status.signal().map(|signal| 128 + signal));
        Exit::Code(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
    }
}

/// Why a command of a program could not do its work.
pub trait Failure: Error {
    /// Returns whether standard output was closed by whoever read it.
    fn is_broken_pipe(&self) -> bool;

    /// Returns what to do about it, where the message does not say.
    fn hint(&self) -> Option<String> {
        None
    }
}

/// Returns the exit code of a program by the result of its command; a failure has the code that `report` returns.
pub fn exit_code<F: Failure>(
    result: Result<impl Into<ExitCode>, F>,
    report: impl FnOnce(&F) -> ExitCode,
) -> ExitCode {
    match result {
        Ok(exit) => exit.into(),
        // Whoever read the output has what they wanted.
        Err(error) if error.is_broken_pipe() => ExitCode::SUCCESS,
        Err(error) => report(&error),
    }
}
