//! Messages on standard error, filtered by log level.

use std::io::{self, Write as _};

use clap::ValueEnum;
use oci_hooks_cli::context::OutputError;
use oci_hooks_cli::exit::CliExit;

use crate::error::StepRunnerError;

/// Log level of messages on standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum MessageLevel {
    /// Errors that end the server
    Error,
    /// Also unexpected events, such as rejected connections and jobs of a crashed server
    Warn,
    /// Also the start and end of jobs
    Info,
    /// Also details for debugging
    Debug,
}

impl MessageLevel {
    /// Prints a message if its level is enabled.
    pub fn print(self, level: MessageLevel, text: &str) {
        if level <= self {
            let name = match level {
                MessageLevel::Error => "error",
                MessageLevel::Warn => "warning",
                MessageLevel::Info => "info",
                MessageLevel::Debug => "debug",
            };
            line(&format!("step-runner: {name}: {text}"));
        }
    }
}

/// Prints a text on standard output.
pub fn print(text: impl AsRef<[u8]>) -> Result<CliExit, StepRunnerError> {
    io::stdout().write_all(text.as_ref()).map_err(OutputError::from)?;
    Ok(CliExit::Done)
}

/// Prints the error of a command.
pub fn error(text: &str) {
    line(&format!("error: {text}"));
}

/// Returns the message of an I/O error in Go's format.
pub fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error ").next().unwrap_or_default().to_lowercase()
}

/// Writes a line with one call, so that lines of several threads do not mix.
pub fn line(text: &str) {
    // A closed standard error is no reason to fail.
    let _ = io::stderr().write_all(format!("{text}\n").as_bytes());
}
