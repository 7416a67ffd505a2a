//! What can be wrong with an expression.

use std::fmt;

use super::super::Type;

/// An expression that cannot be read, or has no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ExpressionError {
    /// The byte of the text at which it was noticed.
    pub offset: usize,
    /// What is wrong.
    pub kind: ExpressionErrorKind,
}

/// What is wrong with an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExpressionErrorKind {
    /// There is nothing of that name.
    NotFound {
        /// The names as they are written.
        path: String,
        /// The one that there is not.
        key: String,
    },
    /// `${{` without `}}`.
    NotClosed {
        /// What stands after it.
        text: String,
    },
    /// Something else should stand here.
    Expected {
        /// What.
        expected: &'static str,
        /// What stands here.
        found: String,
    },
    /// Text around the `${{ }}` of a condition.
    Surrounded,
    /// A string that does not end.
    Quote,
    /// A backslash followed by what a string of its kind does not know.
    Escape,
    /// A name that the language keeps for itself.
    Reserved(String),
    /// There is no such function.
    Function(String),
    /// Too few values for a function, or too many.
    Arguments {
        /// The function.
        function: &'static str,
        /// How many it takes.
        takes: usize,
    },
    /// Nested too deeply: the expression, or a value.
    TooDeep,
    /// More to copy, join and compare than is good.
    TooLarge,
    /// A name of many values, as if it were one.
    Namespace(String),
    /// An operator, or a function, between or before values that it is not for.
    Operands {
        /// The operator.
        operator: &'static str,
        /// The types of the values.
        operands: Vec<Option<Type>>,
    },
    /// A division by zero.
    Zero,
    /// A number that is too large.
    Range,
    /// A text that is not a number.
    Number(String),
    /// Something else than a string as the name of a member.
    Key,
    /// Something in brackets that the value has not.
    Index {
        /// What is in brackets.
        index: String,
        /// The value, by its type and size.
        value: String,
    },
}

use ExpressionErrorKind as Kind;

impl ExpressionErrorKind {
    pub(super) fn at(self, offset: usize) -> ExpressionError {
        ExpressionError { offset, kind: self }
    }

    /// Returns what to do about it.
    pub fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Kind::NotClosed { .. } => "write `\\${{` for the characters themselves",
            Kind::Expected { found, .. } if found == "`=`" => "values are compared with `==`",
            Kind::Expected { found, .. } if found == "`&`" => "both must hold: `&&`",
            Kind::Expected { found, .. } if found == "`|`" => "one of them must hold: `||`",
            Kind::Expected { found, .. } if found == "`$`" => {
                "`${{` is needed once around all of it, and in strings in double quotes"
            }
            Kind::Expected { expected: "a name", .. } => {
                "an item of an array, or a name with other characters, goes in brackets: \
                 `[0]`, `[\"a-b\"]`"
            }
            Kind::Surrounded => "put `${{ }}` around all of it, or leave it off",
            Kind::Escape => {
                "`'…'` knows `\\\\` and `\\'`; `\"…\"` knows `\\\\ \\\" \\/ \\n \\r \\t \\a \\b \\f \\v \
                 \\uXXXX \\${{`"
            }
            Kind::Function(_) => {
                "there are str(), num(), bool(), success(), failure(), always() and cancelled()"
            }
            Kind::Namespace(_) => "name one of its members, such as `inputs.name`",
            Kind::Operands { operator: "+", .. } => {
                "numbers are added, strings joined; str() and num() convert"
            }
            Kind::Operands { .. } => "num() makes a number of a string",
            Kind::Key => "str() makes a string of a value",
            Kind::Index { .. } => "arrays have items 0, 1, …, objects have names",
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
            Kind::Quote => f.write_str("the string is not closed"),
            Kind::Escape => f.write_str("unknown escape"),
            Kind::Reserved(word) => write!(f, "`{word}` is a reserved word"),
            Kind::Function(name) => write!(f, "there is no function `{name}`"),
            Kind::Arguments { function, takes: 0 } => write!(f, "{function}() takes no value"),
            Kind::Arguments { function, .. } => write!(f, "{function}() takes one value"),
            Kind::TooDeep => f.write_str("nested too deeply"),
            Kind::TooLarge => f.write_str("more than 10 MiB to copy, join and compare"),
            Kind::Namespace(path) => write!(f, "`{path}` is not a value"),
            Kind::Operands { operator, operands } => {
                write!(f, "`{operator}` does not take ")?;
                for (index, kind) in operands.iter().enumerate() {
                    let and = if index > 0 { " and " } else { "" };
                    write!(f, "{and}{}", kind.map_or("null", Type::name))?;
                }
                Ok(())
            }
            Kind::Zero => f.write_str("division by zero"),
            Kind::Range => f.write_str("the number is too large"),
            Kind::Number(text) => write!(f, "{text:?} is not a number"),
            Kind::Key => f.write_str("the name of a member must be a string"),
            Kind::Index { index, value } => write!(f, "{value} has no {index}"),
        }
    }
}

impl fmt::Display for ExpressionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind)?;
        // Clients know these two from GitLab's step runner, word for word.
        if matches!(self.kind, Kind::NotFound { .. } | Kind::NotClosed { .. }) {
            return Ok(());
        }
        write!(f, " at byte {}", self.offset)?;
        self.kind.hint().map_or(Ok(()), |hint| write!(f, ": {hint}"))
    }
}
