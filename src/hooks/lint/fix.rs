//! Changes to a text that correct a finding.

use std::ops::Range;

/// A change to a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fix {
    /// What is done, as an order: `remove the comma`.
    pub description: String,
    /// What replaces which bytes; the ranges do not overlap.
    pub edits: Vec<(Range<usize>, Vec<u8>)>,
}

impl Fix {
    /// Replaces one range.
    pub(super) fn replace(
        description: impl Into<String>,
        span: Range<usize>,
        with: impl Into<Vec<u8>>,
    ) -> Self {
        Fix { description: description.into(), edits: vec![(span, with.into())] }
    }

    /// Removes one range.
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

/// Tells if two ranges overlap, or insert at the same place, where the order would be open.
fn touches(a: &Range<usize>, b: &Range<usize>) -> bool {
    (a.start < b.end && b.start < a.end) || a.start == b.start
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
