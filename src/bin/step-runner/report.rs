//! What is said to people, on standard error.

use std::io::{self, Write as _};

use clap::ValueEnum;

/// What is worth saying.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Level {
    /// What could not be done
    Error,
    /// What should not have happened
    Warn,
    /// What became of jobs
    Info,
    /// More than that
    Debug,
}

impl Level {
    /// Says something if it is worth it.
    pub(crate) fn say(self, level: Level, text: &str) {
        if level <= self {
            let name = match level {
                Level::Error => "error",
                Level::Warn => "warning",
                Level::Info => "info",
                Level::Debug => "debug",
            };
            line(&format!("step-runner: {name}: {text}"));
        }
    }
}

/// Says why a command could not do its work, as GitLab's step-runner does.
pub(crate) fn error(text: &str) {
    line(&format!("Error: {text}"));
}

/// Returns what the system says of an error, as Go has it.
pub(crate) fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error ").next().unwrap_or_default().to_lowercase()
}

/// Writes a line at once, so that lines of other threads do not come in between.
pub(crate) fn line(text: &str) {
    // If standard error is gone there is nobody to tell.
    let _ = io::stderr().write_all(format!("{text}\n").as_bytes());
}
