//! Edits of a hook file that fix a finding, and the source positions of decoded strings.

use std::ops::Range;

use crate::json::JsonValue;
use crate::json::string::{code_unit, surrogate_pair};

/// The edits of a text that fix a finding.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LintFix {
    /// Imperative description: `remove the comma`.
    pub description: String,
    /// Byte ranges and their replacements; the ranges do not overlap.
    pub edits: Vec<(Range<usize>, Vec<u8>)>,
}

impl LintFix {
    /// Returns a fix that replaces one range.
    pub(super) fn replace(
        description: impl Into<String>,
        span: Range<usize>,
        with: impl Into<Vec<u8>>,
    ) -> Self {
        LintFix { description: description.into(), edits: vec![(span, with.into())] }
    }

    /// Returns a fix that removes one range.
    pub(super) fn remove(description: impl Into<String>, span: Range<usize>) -> Self {
        LintFix::replace(description, span, Vec::new())
    }
}

/// Applies fixes to the text they were made for.
///
/// A fix whose edits overlap those of an earlier one is skipped: linting the result finds it again.
/// A fix that reaches beyond the text is skipped too.
pub fn apply<'f>(text: &[u8], fixes: impl IntoIterator<Item = &'f LintFix>) -> Vec<u8> {
    let mut accepted: Vec<&(Range<usize>, Vec<u8>)> = Vec::new();
    for fix in fixes {
        let fits = |(span, _): &(Range<usize>, Vec<u8>)| {
            span.start <= span.end
                && span.end <= text.len()
                && accepted.iter().all(|(other, _)| !ranges_touch(span, other))
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

/// Returns whether two ranges overlap, or insert at the same offset, where the order would be undefined.
pub fn ranges_touch(a: &Range<usize>, b: &Range<usize>) -> bool {
    (a.start < b.end && b.start < a.end) || a.start == b.start
}

/// Converts a range of a decoded string to the byte range in the source text.
///
/// `span` is a byte range of the result of [`JsonValue::as_str`].
pub fn source_span(string: JsonValue<'_>, span: Range<usize>) -> Range<usize> {
    let outer = string.span();
    let raw = string.raw();
    let inner = &raw[1..raw.len().saturating_sub(1).max(1)];
    let start = source_offset(inner, span.start);
    let end = source_offset(inner, span.end).max(start);
    outer.start + 1 + start..outer.start + 1 + end
}

/// Maps a decoded offset to an offset in the raw string.
fn source_offset(raw: &[u8], wanted: usize) -> usize {
    let (mut at, mut decoded) = (0, 0);
    while decoded < wanted && at < raw.len() {
        let (taken, given) = step(&raw[at..]);
        at += taken;
        decoded += given;
    }
    at
}

/// Returns the raw and the decoded length of the next character.
fn step(raw: &[u8]) -> (usize, usize) {
    match raw {
        [b'\\', b'u', rest @ ..] => {
            let unit = code_unit(rest);
            match char::from_u32(unit) {
                Some(c) => (6, c.len_utf8()),
                None if surrogate_pair(unit, &rest[4..]).is_some() => (12, 4),
                None => (6, char::REPLACEMENT_CHARACTER.len_utf8()),
            }
        }
        [b'\\', ..] => (2, 1),
        [byte, ..] if byte.is_ascii() => (1, 1),
        _ => {
            let longest = &raw[..raw.len().min(4)];
            match longest.utf8_chunks().next().and_then(|chunk| chunk.valid().chars().next()) {
                Some(c) => (c.len_utf8(), c.len_utf8()),
                None => (1, char::REPLACEMENT_CHARACTER.len_utf8()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::JsonDocument;

    #[test]
    fn fixes_apply_at_any_position() {
        let fixes = [
            LintFix::replace("", 4..5, "E"),
            LintFix::remove("", 0..2),
            LintFix::replace("", 3..3, "+"),
        ];
        assert_eq!(apply(b"abcdef", &fixes), b"c+dEf");
    }

    #[test]
    fn first_of_overlapping_fixes_applies() {
        let fixes =
            [LintFix::remove("", 1..3), LintFix::remove("", 2..4), LintFix::replace("", 1..1, "x")];
        assert_eq!(apply(b"abcdef", &fixes), b"adef");
    }

    #[test]
    fn fix_beyond_the_text_is_skipped() {
        assert_eq!(apply(b"ab", &[LintFix::remove("", 1..9)]), b"ab");
    }

    #[test]
    fn positions_are_found_after_escapes_and_invalid_text() {
        let text = b" \"a\\\\.\\u00e9\\ud83d\\ude00\xff\xc3\xa9z\"";
        let document = JsonDocument::parse(text).unwrap();
        let string = document.root();
        let decoded = string.as_str().unwrap();
        for (part, source) in [
            ("a", "a"),
            ("\\", "\\\\"),
            (".", "."),
            ("é", "\\u00e9"),
            ("😀", "\\ud83d\\ude00"),
            ("z", "z"),
        ] {
            let at = decoded.find(part).unwrap();
            let span = source_span(string, at..at + part.len());
            assert_eq!(&text[span], source.as_bytes(), "{part}");
        }
        assert_eq!(source_span(string, 0..decoded.len()), 2..text.len() - 1);
    }
}
