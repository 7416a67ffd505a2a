//! Errors in expressions.

use std::fmt;

use super::super::DeclaredType;

/// An expression that cannot be parsed or evaluated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ExpressionError {
    /// Byte offset of the error in the text.
    pub offset: usize,
    pub kind: ExpressionErrorKind,
}

/// Kinds of errors in expressions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExpressionErrorKind {
    /// A name that does not exist.
    NotFound {
        /// The whole path as written.
        path: String,
        /// The name in the path that does not exist.
        key: String,
    },
    NotClosed {
        text: String,
    },
    Expected {
        expected: &'static str,
        found: String,
    },
    /// A condition with text around its `${{ }}`.
    Surrounded,
    /// A string without a closing quote.
    Quote,
    /// An escape sequence that strings with the quotes used, single or double, do not have.
    Escape,
    /// A reserved word, used as a name.
    Reserved(String),
    /// A function that does not exist.
    Function(String),
    /// A wrong number of arguments.
    Arguments {
        function: &'static str,
        takes: usize,
    },
    /// An expression or a value that is nested too deeply.
    TooDeep,
    /// An expansion that copies, concatenates and compares too much data.
    TooLarge,
    /// An operator or function that is not defined for these types.
    Operands {
        operator: &'static str,
        /// Types of the operands; `None` is null.
        operands: Vec<Option<DeclaredType>>,
    },
    Zero,
    Range,
    /// A text that is not a number, passed to `num()`.
    Number(String),
    /// A member name that is not a string.
    Key,
    /// An index or a key that the value does not have.
    Index {
        index: String,
        /// Description of the value: its type, and the length of an array.
        value: String,
    },
}

use ExpressionErrorKind as Kind;

impl ExpressionErrorKind {
    pub(super) fn with_offset(self, offset: usize) -> ExpressionError {
        ExpressionError { offset, kind: self }
    }

    /// Returns a hint for fixing the error.
    pub fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Kind::NotClosed { .. } => "write `\\${{` for a literal `${{`",
            Kind::Expected { found, .. } if found == "`=`" => "use `==` to compare",
            Kind::Expected { found, .. } if found == "`&`" => "use `&&` for a logical and",
            Kind::Expected { found, .. } if found == "`|`" => "use `||` for a logical or",
            Kind::Expected { found, .. } if found == "`$`" => {
                "write `env.NAME` or `vars.NAME` for the variable `$NAME`; `${{` is allowed only around the \
                 whole expression and in double-quoted strings"
            }
            Kind::Expected { expected: "a name", .. } => {
                "use brackets for array items and for names with other characters: \
                 `[0]`, `[\"a-b\"]`"
            }
            Kind::Surrounded => "put `${{ }}` around the whole condition, or omit it",
            Kind::Escape => {
                "valid in `'…'`: `\\\\ \\'`; in `\"…\"`: `\\\\ \\\" \\/ \\n \\r \\t \\a \\b \\f \\v \
                 \\uXXXX \\${{`"
            }
            Kind::Function(_) => {
                "expected str(), num(), bool(), success(), failure(), always() or cancelled()"
            }
            Kind::Operands { operator: "+", .. } => {
                "`+` adds numbers or joins strings; convert with str() or num()"
            }
            Kind::Operands { .. } => "convert a string to a number with num()",
            Kind::Key => "convert a value to a string with str()",
            Kind::Index { .. } => "array indices start at 0; objects have string keys",
            _ => return None,
        })
    }
}

impl fmt::Display for ExpressionErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::NotFound { path, key } => write!(f, "{path}: the \"{key}\" was not found"),
            Kind::NotClosed { text } => write!(f, "the \"{text}\" is not closed: ${{{{ ... }}}}"),
            Kind::Expected { expected, found } => write!(f, "expected {expected}, not {found}"),
            Kind::Surrounded => f.write_str("text around the `${{ }}` of a condition"),
            Kind::Quote => f.write_str("no closing quote for the string"),
            Kind::Escape => f.write_str("unknown escape sequence"),
            Kind::Reserved(word) => write!(f, "`{word}` is a reserved word"),
            Kind::Function(name) => write!(f, "unknown function `{name}`"),
            Kind::Arguments { function, takes: 0 } => write!(f, "{function}() takes no arguments"),
            Kind::Arguments { function, .. } => write!(f, "{function}() takes one argument"),
            Kind::TooDeep => f.write_str("nested too deeply"),
            Kind::TooLarge => f.write_str(
                "too much data: the limit of 10 MiB to copy, join and compare is exceeded",
            ),
            Kind::Operands { operator, operands } => {
                write!(f, "`{operator}` is not defined for ")?;
                for (index, kind) in operands.iter().enumerate() {
                    let and = if index > 0 { " and " } else { "" };
                    write!(f, "{and}{}", kind.map_or("null", DeclaredType::name))?;
                }
                Ok(())
            }
            Kind::Zero => f.write_str("division by zero"),
            Kind::Range => f.write_str("the number is too large"),
            Kind::Number(text) => write!(f, "{text:?} is not a number"),
            Kind::Key => f.write_str("expected a string as member name"),
            Kind::Index { index, value } => write!(f, "{value} has no index {index}"),
        }
    }
}

impl fmt::Display for ExpressionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind)?;
        // Word for word the messages of GitLab's step runner, which clients parse.
        if matches!(self.kind, Kind::NotFound { .. } | Kind::NotClosed { .. }) {
            return Ok(());
        }
        write!(f, " at byte {}", self.offset)?;
        self.kind.hint().map_or(Ok(()), |hint| write!(f, ": {hint}"))
    }
}
