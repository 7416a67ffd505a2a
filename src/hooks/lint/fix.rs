//! Changes to a text that correct a finding.

use std::ops::Range;
use std::path::Path;

use super::{LintOptions, Rule, lint_text};

/// Rounds after which fixing ends. One round makes way for the next, and two or three are enough.
const MAX_ROUNDS: usize = 10;

/// A change to a text.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fix {
    /// What is done, as an order: `remove the comma`.
    pub description: String,
    /// What replaces which bytes; the ranges do not overlap.
    pub edits: Vec<(Range<usize>, Vec<u8>)>,
}

impl Fix {
    /// Returns a fix that replaces one range.
    pub(super) fn replace(
        description: impl Into<String>,
        span: Range<usize>,
        with: impl Into<Vec<u8>>,
    ) -> Self {
        Fix { description: description.into(), edits: vec![(span, with.into())] }
    }

    /// Returns a fix that removes one range.
    pub(super) fn remove(description: impl Into<String>, span: Range<usize>) -> Self {
        Fix::replace(description, span, Vec::new())
    }
}

/// Applies fixes to the text they were made for.
///
/// A fix whose edits overlap those of an earlier one is left out: what it is about is found again in
/// the text that comes out. So is a fix that reaches beyond the text.
pub fn apply<'f>(text: &[u8], fixes: impl IntoIterator<Item = &'f Fix>) -> Vec<u8> {
    let mut accepted: Vec<&(Range<usize>, Vec<u8>)> = Vec::new();
    for fix in fixes {
        let fits = |(span, _): &(Range<usize>, Vec<u8>)| {
            span.start <= span.end
                && span.end <= text.len()
                && accepted.iter().all(|(other, _)| !touches(span, other))
        };
        if fix.edits.iter().all(fits) {
            accepted.extend(&fix.edits);
        }
    }
    accepted.sort_by_key(|(span, _)| span.start);
    let mut fixed = Vec::with_capacity(text.len());
    let mut at = 0;
    for (span, with) in accepted {
        fixed.extend_from_slice(&text[at..span.start]);
        fixed.extend_from_slice(with);
        at = span.end;
    }
    fixed.extend_from_slice(&text[at..]);
    fixed
}

/// Returns whether two ranges overlap, or insert at the same place, where the order would be open.
fn touches(a: &Range<usize>, b: &Range<usize>) -> bool {
    (a.start < b.end && b.start < a.end) || a.start == b.start
}

/// A text with all fixes applied.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Fixed {
    pub text: Vec<u8>,
    /// What was done, in order.
    pub applied: Vec<AppliedFix>,
}

/// A fix that was applied.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AppliedFix {
    /// The rule of the finding.
    pub rule: &'static Rule,
    /// What was done, as an order.
    pub description: String,
    /// The line of the finding when it was found; earlier fixes may have moved it.
    pub line: Option<usize>,
}

/// Applies all fixes of a text, and those of what is found then, until there are no more.
pub fn fix_text(path: &Path, text: &[u8], options: &LintOptions) -> Fixed {
    let mut fixed = Fixed { text: text.to_vec(), applied: Vec::new() };
    for _ in 0..MAX_ROUNDS {
        let findings = lint_text(path, &fixed.text, options);
        let mut spans: Vec<Range<usize>> = Vec::new();
        let mut fixes = Vec::new();
        for finding in &findings {
            let Some(fix) = &finding.fix else { continue };
            // Here too, so that the report is what is done.
            if fix.edits.iter().any(|(span, _)| spans.iter().any(|other| touches(span, other))) {
                continue;
            }
            spans.extend(fix.edits.iter().map(|(span, _)| span.clone()));
            fixes.push(fix);
            fixed.applied.push(AppliedFix {
                rule: finding.rule,
                description: fix.description.clone(),
                line: finding.location.as_ref().map(|at| at.line),
            });
        }
        if fixes.is_empty() {
            break;
        }
        fixed.text = apply(&fixed.text, fixes);
    }
    fixed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixes_apply_wherever_they_stand() {
        let fixes =
            [Fix::replace("", 4..5, "E"), Fix::remove("", 0..2), Fix::replace("", 3..3, "+")];
        assert_eq!(apply(b"abcdef", &fixes), b"c+dEf");
    }

    #[test]
    fn of_overlapping_fixes_the_first_applies() {
        let fixes = [Fix::remove("", 1..3), Fix::remove("", 2..4), Fix::replace("", 1..1, "x")];
        assert_eq!(apply(b"abcdef", &fixes), b"adef");
    }

    #[test]
    fn a_fix_beyond_the_text_is_left_out() {
        assert_eq!(apply(b"ab", &[Fix::remove("", 1..9)]), b"ab");
    }
}
