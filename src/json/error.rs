//! What can be wrong with the syntax of a text.

use std::fmt;

/// A text that is not JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyntaxError {
    pub kind: SyntaxErrorKind,
    /// The byte at which it was noticed.
    pub offset: usize,
}

/// What is wrong with a text that is not JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SyntaxErrorKind {
    /// The text ends inside a value, or is empty.
    UnexpectedEnd,
    /// Something else should stand here.
    Expected(&'static str),
    /// The comma before `}` or `]`.
    TrailingComma,
    /// A `//`, `/*` or `#` comment.
    Comment,
    /// The byte order mark, which Go does not skip.
    ByteOrderMark,
    /// An unescaped control character in a string.
    ControlCharacter,
    /// A backslash followed by what JSON does not know.
    Escape,
    /// More text after the value.
    TrailingData,
    /// Nested deeper than 10 000 levels.
    TooDeep,
    /// Longer than positions can count.
    TooLong,
}

impl fmt::Display for SyntaxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            SyntaxErrorKind::UnexpectedEnd => f.write_str("unexpected end of JSON input"),
            SyntaxErrorKind::Expected(what) => write!(f, "expected {what}"),
            SyntaxErrorKind::TrailingComma => f.write_str("trailing comma"),
            SyntaxErrorKind::Comment => f.write_str("comment in JSON"),
            SyntaxErrorKind::ByteOrderMark => f.write_str("byte order mark before JSON"),
            SyntaxErrorKind::ControlCharacter => {
                f.write_str("unescaped control character in string")
            }
            SyntaxErrorKind::Escape => f.write_str("invalid escape in string"),
            SyntaxErrorKind::TrailingData => f.write_str("trailing data after the JSON value"),
            SyntaxErrorKind::TooDeep => f.write_str("nested deeper than 10000 levels"),
            SyntaxErrorKind::TooLong => f.write_str("longer than 4 GiB"),
        }
    }
}

impl std::error::Error for SyntaxError {}

impl SyntaxErrorKind {
    /// Returns what to do about it.
    pub fn hint(self) -> Option<&'static str> {
        Some(match self {
            SyntaxErrorKind::TrailingComma => "remove the comma: JSON has none after the last item",
            SyntaxErrorKind::Comment => "JSON has no comments: remove it",
            SyntaxErrorKind::ByteOrderMark => "save the file as UTF-8 without a byte order mark",
            SyntaxErrorKind::ControlCharacter => {
                "write line breaks in strings as \\n, tabs as \\t, others as \\u00XX"
            }
            SyntaxErrorKind::Escape => {
                "a backslash in a regular expression is written twice in JSON: \"\\\\.\""
            }
            SyntaxErrorKind::TrailingData => "a hook file holds one JSON object and nothing else",
            _ => return None,
        })
    }
}
