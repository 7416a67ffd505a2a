//! `container-hook logs`.

use std::io::IsTerminal as _;

use clap::Args;
use jiff::Timestamp;
use oci_hooks::container::{LogLine, Stream};
use serde::Serialize;

use crate::Exit;
use crate::context::Context;
use crate::engine;
use crate::error::Error;

/// Show what a service wrote
#[derive(Debug, Args)]
#[command(after_help = "\
What the job's container and container actions write is in the log of the step.")]
pub(crate) struct LogsArgs {
    /// The container's id, the beginning of it, or its name
    id: String,

    /// Show the last lines only
    #[arg(long, short = 'n', value_name = "COUNT")]
    tail: Option<usize>,

    /// Say when each line was written
    #[arg(long)]
    timestamps: bool,
}

/// A line, for programs.
#[derive(Serialize)]
struct Json {
    time: Timestamp,
    stream: &'static str,
    text: String,
}

impl From<&LogLine> for Json {
    fn from(line: &LogLine) -> Self {
        let stream = match line.stream {
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
        };
        Json { time: line.at, stream, text: String::from_utf8_lossy(&line.text).into_owned() }
    }
}

pub(crate) fn run(args: &LogsArgs, context: &mut Context) -> Result<Exit, Error> {
    let engine = engine::existing(&context.settings()?.settings)?;
    let record = engine.find(&args.id)?;
    let lines = engine.logs(&record, args.tail.unwrap_or(usize::MAX))?;
    if context.is_json() {
        context.json(&lines.iter().map(Json::from).collect::<Vec<_>>())?;
        return Ok(Exit::Done);
    }
    let is_terminal = std::io::stdout().is_terminal();
    for line in &lines {
        if args.timestamps {
            context.write(format!("{:.3} ", line.at))?;
        }
        // A service must not be able to change the terminal of whoever looks at its log.
        match is_terminal {
            true => context.write(visible(&line.text))?,
            false => context.write(&line.text)?,
        }
        context.write("\n")?;
    }
    Ok(Exit::Done)
}

/// Returns text with control characters escaped.
fn visible(text: &[u8]) -> String {
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
