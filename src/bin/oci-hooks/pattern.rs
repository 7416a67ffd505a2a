//! `oci-hooks pattern`.

use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use clap::Args;
use oci_hooks::hooks::pattern::syntax;
use oci_hooks::hooks::{Pattern, PatternError};
use oci_hooks::json::{JsonDocument, JsonKind};
use oci_hooks_cli::exit::CliExit;
use oci_hooks_files::fs::PathContext;
use serde::Serialize;

use crate::context::CommandContext;
use crate::error::HooksCommandError;
use crate::style;

/// Test what a pattern of a hook file matches
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  oci-hooks pattern '/(ba)?sh$' /bin/sh /bin/bash /usr/bin/python3
  echo '{\"pattern\": \"a+\", \"texts\": [\"aa\", \"b\"]}' | oci-hooks pattern --batch

Patterns use Go's RE2 syntax, and may match anywhere in the text.

With --batch, each line of standard input is a JSON object {\"pattern\", \"texts\"}; for each, a line
{\"ok\": true, \"matches\": [...]} or {\"ok\": false, \"error\": {...}} is printed.

Exit status is 0 when all texts match, 1 when some do not, 2 when the pattern is invalid. With
--batch it is 0, or 1 if a line is not such an object.")]
pub struct PatternArgs {
    /// Pattern, as in `when.commands` or `when.annotations`
    #[arg(required_unless_present = "batch")]
    pattern: Option<String>,

    /// Texts to match the pattern against
    #[arg(value_name = "TEXT")]
    texts: Vec<String>,

    /// Read JSON objects, each with a pattern and its texts, from the lines of standard input
    #[arg(long, conflicts_with_all = ["pattern", "texts"])]
    batch: bool,
}

/// The matches of a pattern, as printed by `--format json`.
#[derive(Serialize)]
struct PatternReport<'a> {
    pattern: &'a str,
    anchored_at_start: bool,
    anchored_at_end: bool,
    texts: Vec<TextReport<'a>>,
}

#[derive(Serialize)]
struct TextReport<'a> {
    text: &'a str,
    matches: bool,
}

pub fn run(args: &PatternArgs, context: &mut CommandContext) -> Result<CliExit, HooksCommandError> {
    let Some(source) = args.pattern.as_deref().filter(|_| !args.batch) else {
        return run_batch(context);
    };
    let report = PatternReport::new(source, &args.texts).map_err(|error| {
        HooksCommandError::Pattern { pattern: source.to_owned(), source: error }
    })?;
    if context.is_json() {
        context.json(&report)?;
    } else {
        report.write(context)?;
    }
    Ok(if report.texts.iter().all(|text| text.matches) { CliExit::Done } else { CliExit::Findings })
}

impl<'a> PatternReport<'a> {
    fn new(source: &'a str, texts: &'a [String]) -> Result<Self, PatternError> {
        let ast = syntax::parse(source)?;
        let pattern = Pattern::new(source)?;
        let text = |text: &'a String| TextReport { text, matches: pattern.is_match(text) };
        Ok(PatternReport {
            pattern: source,
            anchored_at_start: ast.is_anchored_at_start(),
            anchored_at_end: ast.is_anchored_at_end(),
            texts: texts.iter().map(text).collect(),
        })
    }

    fn write(&self, context: &mut CommandContext) -> Result<(), HooksCommandError> {
        let title = context.paint.paint(style::TITLE, self.pattern);
        let reading = match (self.anchored_at_start, self.anchored_at_end) {
            (true, true) => "matches whole texts (anchored at both ends)",
            (true, false) => "matches prefixes of a text (anchored at the start)",
            (false, true) => "matches suffixes of a text (anchored at the end)",
            (false, false) => "matches anywhere in a text",
        };
        context.line(format!("{title}  valid; {reading}"))?;
        let width = self.texts.iter().map(|text| text.text.chars().count()).max().unwrap_or(0);
        for text in &self.texts {
            let (style, word) =
                if text.matches { (style::GOOD, "match") } else { (style::BAD, "no match") };
            let word = context.paint.paint(style, word);
            context.line(format!("{:<width$}  {word}", text.text))?;
        }
        Ok(())
    }
}

/// Length limit of an input line.
const MAX_LINE_BYTES: u64 = 16 << 20;

#[derive(Serialize)]
struct BatchAnswer {
    ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    matches: Option<Vec<bool>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<BatchError>,
}

#[derive(Serialize)]
struct BatchError {
    class: &'static str,
    message: String,
    hint: Option<String>,
}

fn run_batch(context: &mut CommandContext) -> Result<CliExit, HooksCommandError> {
    let mut input = BufReader::with_capacity(64 << 10, io::stdin().lock());
    let mut line = Vec::new();
    let mut exit = CliExit::Done;
    while let Some(fits) = read_line(&mut input, &mut line)? {
        let result = if fits {
            answer(&line)
        } else {
            let message = format!("line too long: limit {} MiB", MAX_LINE_BYTES >> 20);
            Err(BatchError { class: "too-large", message, hint: None })
        };
        if result.as_ref().is_err_and(|error| error.class != BAD_PATTERN) {
            exit = CliExit::Findings;
        }
        let (matches, error) = match result {
            Ok(matches) => (Some(matches), None),
            Err(error) => (None, Some(error)),
        };
        let answer = BatchAnswer { ok: error.is_none(), matches, error };
        context.line(serde_json::to_string(&answer).expect("strings and booleans"))?;
        // A client may wait for this answer before it writes the next line, so output is flushed unless another line
        // is already buffered.
        if !input.buffer().contains(&b'\n') {
            context.flush()?;
        }
    }
    Ok(exit)
}

const BAD_PATTERN: &str = "bad-regex";

fn answer(line: &[u8]) -> Result<Vec<bool>, BatchError> {
    let reject = |class, message: String| BatchError { class, message, hint: None };
    let document = JsonDocument::parse(line).map_err(|error| BatchError {
        hint: error.kind.hint().map(str::to_owned),
        ..reject("json-syntax", error.to_string())
    })?;
    let root = document.root();
    let Some(pattern) = root.get("pattern").and_then(|value| value.as_str()) else {
        return Err(reject("json-type", "expected an object with a string `pattern`".to_owned()));
    };
    let texts: Option<Vec<_>> = root
        .get("texts")
        .filter(|texts| texts.kind() == JsonKind::Array)
        .and_then(|texts| texts.elements().map(|text| text.as_str()).collect());
    let Some(texts) = texts else {
        let message = "expected an object with an array of strings `texts`";
        return Err(reject("json-type", message.to_owned()));
    };
    let pattern = Pattern::new(pattern.into_owned()).map_err(|error| BatchError {
        hint: error.hint().map(str::to_owned),
        ..reject(BAD_PATTERN, error.to_string())
    })?;
    Ok(texts.iter().map(|text| pattern.is_match(text)).collect())
}

/// Reads a line. Returns whether it is within the limit, or `None` at the end of the input.
fn read_line(
    input: &mut impl BufRead,
    line: &mut Vec<u8>,
) -> Result<Option<bool>, HooksCommandError> {
    let at = Path::new("standard input");
    line.clear();
    let read = input.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', line).with_path("read", at)?;
    if read == 0 {
        return Ok(None);
    }
    if line.ends_with(b"\n") || (read as u64) < MAX_LINE_BYTES {
        return Ok(Some(true));
    }
    input.skip_until(b'\n').with_path("read", at)?;
    Ok(Some(false))
}
