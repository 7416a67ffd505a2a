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

/// Test what a pattern of a hook file matches
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  oci-hooks pattern '/(ba)?sh$' /bin/sh /bin/bash /usr/bin/python3
  oci-hooks pattern --as sarus sh /bin/sh
  echo '{\"pattern\": \"a+\", \"texts\": [\"aa\", \"b\"]}' | oci-hooks pattern --batch

Patterns use Go's RE2 syntax. podman and CRI-O search for a match anywhere in the text,
Sarus matches the whole text.

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
    scope: &'static str,
    anchored_at_start: bool,
    anchored_at_end: bool,
    texts: Vec<TextReport<'a>>,
}

#[derive(Serialize)]
struct TextReport<'a> {
    text: &'a str,
    /// Whether it matches by the consumer's rules.
    matches: bool,
    search: bool,
    full: bool,
}

pub(crate) fn run(args: &PatternArgs, context: &mut Context) -> Result<Exit, Error> {
    let Some(source) = args.pattern.as_deref().filter(|_| !args.batch) else {
        return batch::run(context);
    };
    let scope = context.consumer.matching.scope;
    let report = PatternReport::new(source, &args.texts, scope)
        .map_err(|error| Error::Pattern { pattern: source.to_owned(), source: error })?;
    if context.is_json() {
        context.json(&report)?;
    } else {
        report.write(scope, context)?;
    }
    Ok(if report.texts.iter().all(|text| text.matches) { Exit::Yes } else { Exit::No })
}

impl<'a> PatternReport<'a> {
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
        Ok(PatternReport {
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
            (PatternScope::Search, true, true) => "matches whole texts (anchored at both ends)",
            (PatternScope::Search, true, false) => {
                "matches prefixes of a text (anchored at the start)"
            }
            (PatternScope::Search, false, true) => {
                "matches suffixes of a text (anchored at the end)"
            }
            (PatternScope::Search, false, false) => "matches anywhere in a text",
        };
        context.line(format!("{title}  valid; with {} it {reading}", context.consumer.name))?;
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

/// Returns a note on the consumers that match differently.
fn others(scope: PatternScope, text: &TextReport<'_>) -> String {
    if text.search == text.full {
        return String::new();
    }
    let other = Consumer::ALL.into_iter().filter(|consumer| consumer.matching.scope != scope);
    let names: Vec<_> = other.map(|consumer| consumer.name).collect();
    match scope {
        PatternScope::Search => {
            format!("; no match of the whole text, as {} requires", names.join(", "))
        }
        PatternScope::Full => format!("; a part matches, which is enough for {}", names.join(", ")),
    }
}

fn matches(pattern: &Pattern, text: &str, scope: PatternScope) -> bool {
    match scope {
        PatternScope::Search => pattern.is_match(text),
        PatternScope::Full => pattern.is_full_match(text),
    }
}
