//! Log lines of containers.

use std::io::IsTerminal as _;
use std::thread;
use std::time::Duration;

use jiff::Timestamp;
use oci_hooks_cli::context::{CliContext, OutputError};
use oci_hooks_cli::terminal::escape_control;
use oci_hooks_engine::container::{LogLine, LogReader, StdStream};
use oci_hooks_files::fs::PathError;
use serde::Serialize;

/// Interval at which a followed log is read.
pub const POLL_INTERVAL: Duration = Duration::from_millis(200);

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

/// Prints the last `count` lines of a log, and lines that are added to it until `is_over` returns true.
pub fn follow<E: From<PathError> + From<OutputError>>(
    mut reader: LogReader,
    count: usize,
    timestamps: bool,
    context: &mut CliContext,
    mut is_over: impl FnMut() -> Result<bool, E>,
) -> Result<(), E> {
    let lines = reader.lines()?;
    write(&lines[lines.len().saturating_sub(count)..], timestamps, context)?;
    loop {
        // Checked first, so that the last lines are not missed.
        let is_over = is_over()?;
        write(&reader.lines()?, timestamps, context)?;
        context.flush()?;
        if is_over {
            return Ok(());
        }
        thread::sleep(POLL_INTERVAL);
    }
}
