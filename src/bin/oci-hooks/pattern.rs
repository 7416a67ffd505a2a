//! `oci-hooks pattern`.

mod batch;

use clap::Args;
use oci_hooks::hooks::pattern::syntax;
use oci_hooks::hooks::{Pattern, PatternError};
use serde::Serialize;

use crate::Exit;
use crate::context::Context;
use crate::error::Error;
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
pub(crate) struct PatternArgs {
    /// Pattern, as in `when.commands` or `when.annotations`
    #[arg(required_unless_present = "batch")]
    pattern: Option<String>,

    /// Texts to match the pattern against
    #[arg(value_name = "TEXT")]
    texts: Vec<String>,

    /// Read pattern/text pairs from standard input
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

pub(crate) fn run(args: &PatternArgs, context: &mut Context) -> Result<Exit, Error> {
    let Some(source) = args.pattern.as_deref().filter(|_| !args.batch) else {
        return batch::run(context);
    };
    let report = PatternReport::new(source, &args.texts)
        .map_err(|error| Error::Pattern { pattern: source.to_owned(), source: error })?;
    if context.is_json() {
        context.json(&report)?;
    } else {
        report.write(context)?;
    }
    Ok(if report.texts.iter().all(|text| text.matches) { Exit::Yes } else { Exit::No })
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

    fn write(&self, context: &mut Context) -> Result<(), Error> {
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
