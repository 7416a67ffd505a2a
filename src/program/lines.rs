//! Lines that containers wrote.

use std::io::IsTerminal as _;

use jiff::Timestamp;
use serde::Serialize;

use super::context::{Context, OutputError};
use crate::container::{LogLine, Stream};

/// A line, as `logs --format json` prints it.
#[derive(Serialize)]
struct LogEntry {
    time: Timestamp,
    stream: &'static str,
    text: String,
}

impl From<&LogLine> for LogEntry {
    fn from(line: &LogLine) -> Self {
        let stream = match line.stream {
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
        };
        LogEntry { time: line.at, stream, text: String::from_utf8_lossy(&line.text).into_owned() }
    }
}

/// Prints lines as a JSON list.
pub fn json(lines: &[LogLine], context: &mut Context) -> Result<(), OutputError> {
    context.json(&lines.iter().map(LogEntry::from).collect::<Vec<_>>())
}

/// Prints lines as they were written, after the time of each if `timestamps` says so.
pub fn write(
    lines: &[LogLine],
    timestamps: bool,
    context: &mut Context,
) -> Result<(), OutputError> {
    let is_terminal = std::io::stdout().is_terminal();
    for line in lines {
        if timestamps {
            context.write(format!("{:.3} ", line.at))?;
        }
        // What runs in a container must not be able to change the terminal of whoever looks.
        match is_terminal {
            true => context.write(visible(&line.text))?,
            false => context.write(&line.text)?,
        }
        context.write("\n")?;
    }
    Ok(())
}

/// Returns text with control characters escaped.
pub fn visible(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let is_harmless = |c: char| c == '\t' || !c.is_control();
    let chars = text.trim_end_matches('\r').chars();
    chars.fold(String::new(), |mut out, c| {
        if is_harmless(c) {
            out.push(c);
        } else {
            out.extend(c.escape_default());
        }
        out
    })
}

#[test]
fn control_characters_are_shown_and_not_sent() {
    assert_eq!(visible(b"a\tb\x1b[2J\xff\r"), "a\tb\\u{1b}[2J\u{fffd}");
}
