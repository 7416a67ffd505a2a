//! Errors of patterns, their positions, and hints.

use std::fmt;
use std::ops::Range;

/// A pattern that Go's `regexp` rejects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PatternError {
    kind: PatternErrorKind,
    span: Range<usize>,
    fragment: Box<str>,
}

/// The kinds of pattern errors, with Go's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum PatternErrorKind {
    /// A range such as `[z-a]`, or a class name that does not exist.
    #[error("invalid character class range")]
    CharacterRange,
    /// A backslash before a letter or digit that has no meaning there.
    #[error("invalid escape sequence")]
    Escape,
    /// A group name that is empty, not closed, or contains characters other than `[0-9A-Za-z_]`.
    #[error("invalid named capture")]
    NamedCapture,
    /// A `(?` that does not begin a group or a change of flags.
    #[error("invalid or unsupported Perl syntax")]
    PerlSyntax,
    /// A repetition of a repetition, such as `a**`.
    #[error("invalid nested repetition operator")]
    NestedRepetition,
    /// A count above 1000, alone or multiplied with the counts of outer repetitions, or a maximum
    /// below the minimum.
    #[error("invalid repeat count")]
    RepeatCount,
    /// A `[` without its `]`.
    #[error("missing closing ]")]
    MissingBracket,
    /// A `(` without its `)`.
    #[error("missing closing )")]
    MissingParenthesis,
    /// A repetition with nothing before it.
    #[error("missing argument to repetition operator")]
    MissingRepeatArgument,
    /// A backslash as the last character.
    #[error("trailing backslash at end of expression")]
    TrailingBackslash,
    /// A `)` without its `(`.
    #[error("unexpected )")]
    UnexpectedParenthesis,
    /// More than a thousand levels.
    #[error("expression nests too deeply")]
    TooDeep,
    /// More than three million instructions when compiled.
    #[error("expression too large")]
    TooLarge,
}

impl PatternError {
    pub(super) fn new(kind: PatternErrorKind, pattern: &str, span: Range<usize>) -> Self {
        let fragment = match kind {
            // The fragment would be the whole pattern, which is large.
            PatternErrorKind::TooDeep | PatternErrorKind::TooLarge => "",
            _ => &pattern[span.clone()],
        };
        Self { kind, fragment: fragment.into(), span }
    }

    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> PatternErrorKind {
        self.kind
    }

    /// Returns the byte offsets of the offending fragment in the pattern.
    #[must_use]
    pub fn span(&self) -> Range<usize> {
        self.span.clone()
    }

    /// Returns the offending fragment; empty if it is the pattern as a whole.
    #[must_use]
    pub fn fragment(&self) -> &str {
        &self.fragment
    }

    /// Returns a hint: the likely intention, and the syntax to write instead.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        let fragment = self.fragment();
        let begins = |prefixes: &[&str]| prefixes.iter().any(|prefix| fragment.starts_with(prefix));
        let hint = match self.kind {
            PatternErrorKind::PerlSyntax | PatternErrorKind::NamedCapture
                if begins(&["(?=", "(?!", "(?<=", "(?<!"]) =>
            {
                "look-around is not supported; write only what must match, and use more conditions \
                 for the rest"
            }
            PatternErrorKind::PerlSyntax if begins(&["(?>"]) => {
                "atomic groups are not supported; matching never backtracks, so write (?: instead"
            }
            PatternErrorKind::PerlSyntax if begins(&["(?#"]) => "comments are not supported",
            PatternErrorKind::PerlSyntax if begins(&["(?P="]) => BACKREFERENCE,
            PatternErrorKind::PerlSyntax if begins(&["(?'"]) => "write a named group as (?<name>…)",
            PatternErrorKind::PerlSyntax => {
                "(? must be followed by flags (i, m, s, U), a colon, or a <name>"
            }
            PatternErrorKind::NamedCapture => "a name is one or more of A-Z, a-z, 0-9 and _",
            PatternErrorKind::Escape => return escape_hint(fragment),
            PatternErrorKind::CharacterRange if begins(&["\\p", "\\P"]) => {
                "\\p takes a Unicode category or script, such as \\pL, \\p{Lu} or \\p{Greek}"
            }
            PatternErrorKind::CharacterRange if begins(&["[:"]) => {
                "the classes are alnum, alpha, ascii, blank, cntrl, digit, graph, lower, print, \
                 punct, space, upper, word and xdigit"
            }
            PatternErrorKind::CharacterRange => {
                "a range runs from the lower to the higher character; put a literal - first"
            }
            PatternErrorKind::NestedRepetition if fragment.ends_with('+') => {
                "possessive repetition is not supported; matching never backtracks, so write a \
                 single operator"
            }
            PatternErrorKind::NestedRepetition => {
                "use one repetition operator, or put the inner one in (?:…)"
            }
            PatternErrorKind::RepeatCount => {
                "a count is at most 1000, and so is the product of nested counts"
            }
            PatternErrorKind::MissingBracket => {
                "a ] directly after [ or [^ stands for itself; write \\[ for a literal ["
            }
            PatternErrorKind::MissingParenthesis => "write \\( for a literal (",
            PatternErrorKind::UnexpectedParenthesis => "write \\) for a literal )",
            PatternErrorKind::MissingRepeatArgument if begins(&["*"]) => {
                "write .* for any text; this is a regular expression, not a file name pattern"
            }
            PatternErrorKind::MissingRepeatArgument => {
                "to match the character of the operator itself, put a backslash before it"
            }
            PatternErrorKind::TrailingBackslash => "write \\\\ for a literal backslash",
            PatternErrorKind::TooDeep | PatternErrorKind::TooLarge => return None,
        };
        Some(hint)
    }
}

const BACKREFERENCE: &str = "backreferences are not supported; spell the repeated part out";

fn escape_hint(fragment: &str) -> Option<&'static str> {
    match *fragment.as_bytes().get(1)? {
        b'1'..=b'9' => Some(BACKREFERENCE),
        b'Z' => Some("write $ or \\z for the end of the text"),
        b'E' => Some("\\E is only understood after \\Q, outside of brackets"),
        b'Q' => Some("\\Q is only understood outside of brackets"),
        b'b' | b'B' => {
            Some("\\b is only understood outside of brackets; write \\x08 for backspace")
        }
        b'd' | b'D' | b's' | b'S' | b'w' | b'W' => Some("a class cannot be the end of a range"),
        b'C' => Some("single bytes cannot be matched; write (?s:.) for any character"),
        b'h' => Some("write [ \\t] for horizontal space"),
        b'u' | b'x' | b'U' => Some("write a code point as \\x{10FFFF}, in hexadecimal"),
        b'e' => Some("write \\x1b for escape"),
        _ => Some("put a backslash only before punctuation that is meant literally"),
    }
}

impl fmt::Display for PatternError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.fragment.is_empty() {
            self.kind.fmt(f)
        } else {
            write!(f, "{}: `{}`", self.kind, self.fragment)
        }
    }
}

impl std::error::Error for PatternError {}

#[cfg(test)]
mod tests {
    use super::super::Pattern;

    fn error(pattern: &str) -> super::PatternError {
        Pattern::new(pattern).expect_err(pattern)
    }

    #[test]
    fn message_quotes_the_fragment() {
        let error = error("ab{1001}c");
        assert_eq!(error.to_string(), "invalid repeat count: `{1001}`");
        assert_eq!(error.span(), 2..8);
        assert_eq!(error.fragment(), "{1001}");
    }

    #[test]
    fn message_locates_unbalanced_parentheses() {
        assert_eq!(error("a(b(c)").span(), 1..2);
        assert_eq!(error("ab)c").span(), 2..3);
        assert_eq!(error("ab\\").span(), 2..3);
    }

    #[test]
    fn message_about_a_large_pattern_is_short() {
        let deep = format!("{}a{}", "(".repeat(2000), ")".repeat(2000));
        assert_eq!(error(&deep).to_string(), "expression nests too deeply");
    }

    #[test]
    fn hints_suggest_a_replacement() {
        for (pattern, word) in [
            ("(?=a)", "look-around"),
            ("(?<!a)b", "look-around"),
            (r"(a)\1", "backreferences"),
            ("a++", "possessive"),
            (r"foo\Z", "\\z"),
            ("*.sh", ".*"),
            ("[[:foo:]]", "alnum"),
            (r"\p{Nope}", "\\p{Greek}"),
        ] {
            let hint = error(pattern).hint().unwrap_or_default();
            assert!(hint.contains(word), "{pattern}: {hint}");
        }
    }
}
