//! Log lines of containers.

use std::io::IsTerminal as _;

use jiff::Timestamp;
use oci_hooks_cli::context::{CliContext, OutputError};
use oci_hooks_cli::terminal::escape_control;
use oci_hooks_engine::container::{LogLine, StdStream};
use serde::Serialize;

/// A log line in the output of `logs --format json`.
#[derive(Serialize)]
struct LogEntry {
    time: Timestamp,
    stream: &'static str,
    text: String,
}

impl From<&LogLine> for LogEntry {
    fn from(line: &LogLine) -> Self {
        let stream = match line.stream {
            StdStream::Stdout => "stdout",
            StdStream::Stderr => "stderr",
        };
        LogEntry { time: line.at, stream, text: String::from_utf8_lossy(&line.text).into_owned() }
    }
}

/// Prints log lines as a JSON list.
pub fn json(lines: &[LogLine], context: &mut CliContext) -> Result<(), OutputError> {
    context.json(&lines.iter().map(LogEntry::from).collect::<Vec<_>>())
}

/// Prints log lines unchanged, or with control characters escaped on a terminal, each after its time if `timestamps` is
/// set.
pub fn write(
    lines: &[LogLine],
    timestamps: bool,
    context: &mut CliContext,
) -> Result<(), OutputError> {
    let is_terminal = std::io::stdout().is_terminal();
    for line in lines {
        if timestamps {
            context.write(format!("{:.3} ", line.at))?;
        }
        // Escape sequences of a container must not reach the user's terminal.
        match is_terminal {
            true => context.write(escape_control(&line.text))?,
            false => context.write(&line.text)?,
        }
        context.write("\n")?;
    }
    Ok(())
}
