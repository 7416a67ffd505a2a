//! `oci-hooks pattern`.

mod batch;

use clap::Args;
use oci_hooks::hooks::consumer::{Consumer, PatternScope};
use oci_hooks::hooks::pattern::syntax;
use oci_hooks::hooks::{Pattern, PatternError};
use serde::Serialize;

use crate::Exit;
use crate::context::Context;
use crate::error::Error;
use crate::style;

/// Show what a pattern matches
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  oci-hooks pattern '/(ba)?sh$' /bin/sh /bin/bash /usr/bin/python3
  oci-hooks pattern --as sarus sh /bin/sh
  echo '{\"pattern\": \"a+\", \"texts\": [\"aa\", \"b\"]}' | oci-hooks pattern --batch

Patterns are in RE2 syntax as Go has it. podman and CRI-O look for them anywhere in the text,
Sarus matches whole texts.

With --batch, standard input holds a JSON object {\"pattern\", \"texts\"} on each line, and each is
answered by a line {\"ok\": true, \"matches\": [...]} or {\"ok\": false, \"error\": {...}}.

Exit status is 0 when all texts match, 1 when some do not, 2 when the pattern is invalid. With
--batch it is 0, or 1 if a line was no such object.")]
pub(crate) struct PatternArgs {
    /// The pattern
    #[arg(required_unless_present = "batch")]
    pattern: Option<String>,

    /// What to match it with
    #[arg(value_name = "TEXT")]
    texts: Vec<String>,

    /// Answer the questions on standard input
    #[arg(long, conflicts_with_all = ["pattern", "texts"])]
    batch: bool,
}

/// What there is to know about a pattern.
#[derive(Serialize)]
struct Report<'a> {
    pattern: &'a str,
    scope: &'static str,
    anchored_at_start: bool,
    anchored_at_end: bool,
    texts: Vec<TextReport<'a>>,
}

#[derive(Serialize)]
struct TextReport<'a> {
    text: &'a str,
    /// Whether the consumer takes it for a match.
    matches: bool,
    /// Whether a part matches.
    search: bool,
    /// Whether the whole matches.
    full: bool,
}

pub(crate) fn run(args: &PatternArgs, context: &mut Context) -> Result<Exit, Error> {
    let Some(source) = args.pattern.as_deref().filter(|_| !args.batch) else {
        return batch::run(context);
    };
    let scope = context.consumer.matching.scope;
    let report = Report::new(source, &args.texts, scope)
        .map_err(|error| Error::Pattern { pattern: source.to_owned(), source: error })?;
    if context.is_json() {
        context.json(&report)?;
    } else {
        report.write(scope, context)?;
    }
    Ok(if report.texts.iter().all(|text| text.matches) { Exit::Yes } else { Exit::No })
}

impl<'a> Report<'a> {
    fn new(
        source: &'a str,
        texts: &'a [String],
        scope: PatternScope,
    ) -> Result<Self, PatternError> {
        let ast = syntax::parse(source)?;
        let pattern = Pattern::new(source)?;
        let text = |text: &'a String| {
            let (search, full) = (pattern.is_match(text), pattern.is_full_match(text));
            TextReport { text, matches: matches(&pattern, text, scope), search, full }
        };
        Ok(Report {
            pattern: source,
            scope: match scope {
                PatternScope::Search => "search",
                PatternScope::Full => "full",
            },
            anchored_at_start: ast.is_anchored_at_start(),
            anchored_at_end: ast.is_anchored_at_end(),
            texts: texts.iter().map(text).collect(),
        })
    }

    fn write(&self, scope: PatternScope, context: &mut Context) -> Result<(), Error> {
        let title = context.paint.paint(style::TITLE, self.pattern);
        let reading = match (scope, self.anchored_at_start, self.anchored_at_end) {
            (PatternScope::Full, ..) => "matches whole texts",
            (PatternScope::Search, true, true) => "matches whole texts, as it is anchored",
            (PatternScope::Search, true, false) => {
                "matches at the start of a text, with anything after it"
            }
            (PatternScope::Search, false, true) => {
                "matches at the end of a text, with anything before it"
            }
            (PatternScope::Search, false, false) => "matches anywhere in a text",
        };
        context.line(format!("{title}  valid; for {} it {reading}", context.consumer.name))?;
        let width = self.texts.iter().map(|text| text.text.chars().count()).max().unwrap_or(0);
        for text in &self.texts {
            let (style, word) =
                if text.matches { (style::GOOD, "match") } else { (style::BAD, "no match") };
            let word = context.paint.paint(style, word);
            let others = others(scope, text);
            context.line(format!("{:<width$}  {word}{others}", text.text))?;
        }
        Ok(())
    }
}

/// Says which consumers see it differently.
fn others(scope: PatternScope, text: &TextReport<'_>) -> String {
    if text.search == text.full {
        return String::new();
    }
    let other = Consumer::ALL.into_iter().filter(|consumer| consumer.matching.scope != scope);
    let names: Vec<_> = other.map(|consumer| consumer.name).collect();
    match scope {
        PatternScope::Search => format!("; not of the whole text, as {} asks", names.join(", ")),
        PatternScope::Full => format!("; a part does, which is enough for {}", names.join(", ")),
    }
}

fn matches(pattern: &Pattern, text: &str, scope: PatternScope) -> bool {
    match scope {
        PatternScope::Search => pattern.is_match(text),
        PatternScope::Full => pattern.is_full_match(text),
    }
}
