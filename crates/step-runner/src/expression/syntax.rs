//! Syntax trees of expressions.

use super::super::ExprValue;
use super::operators::{BinaryOperator, UnaryOperator};

/// An expression and the byte offset of its start.
#[derive(Debug)]
pub struct ExprNode<'t> {
    pub at: usize,
    pub expr: Expr<'t>,
}

/// A syntax tree node.
#[derive(Debug)]
pub enum Expr<'t> {
    Value(ExprValue),
    Text(Vec<TextPart<'t>>),
    Array(Vec<ExprNode<'t>>),
    Object(Vec<(ExprNode<'t>, ExprNode<'t>)>),
    /// A dotted path of a value in the context. Its names may contain `-` and blanks, as in
    /// `job.MY-KEY`.
    Path(&'t str),
    /// Access to a name, or to members or items, as in `inputs.a[0]`.
    Access {
        path: &'t str,
        base: AccessBase<'t>,
        keys: Vec<AccessKey<'t>>,
    },
    Unary(UnaryOperator, Box<ExprNode<'t>>),
    /// A first operand, and binary operators that are applied to it from left to right: a list, so
    /// that a long sum is not a deep tree. In `a * b + c`, the list is `* b`, `+ c`; in
    /// `a + b * c`, it is `+ (b * c)`.
    Fold(Box<ExprNode<'t>>, Vec<BinaryOperation<'t>>),
    /// A function call with arguments.
    Call(ExprFunction, Vec<ExprNode<'t>>),
}

/// A part of a text: literal, or an expression.
#[derive(Debug)]
pub enum TextPart<'t> {
    Plain(String),
    Node(ExprNode<'t>),
}

/// The name or value with which an [`Expr::Access`] starts.
#[derive(Debug)]
pub enum AccessBase<'t> {
    Root(&'t str),
    Node(Box<ExprNode<'t>>),
}

/// A member or an index in an [`Expr::Access`].
#[derive(Debug)]
pub enum AccessKey<'t> {
    /// `.name`, with the offset of the name.
    Name(usize, &'t str),
    Index(ExprNode<'t>),
}

/// A binary operator, its offset in the text, and its right operand.
#[derive(Debug)]
pub struct BinaryOperation<'t> {
    pub operator: BinaryOperator,
    pub at: usize,
    pub right: ExprNode<'t>,
}

/// A built-in function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExprFunction {
    Str,
    Num,
    Bool,
    Success,
    Failure,
    Always,
    Cancelled,
}

impl ExprFunction {
    const ALL: [ExprFunction; 7] = [
        ExprFunction::Str,
        ExprFunction::Num,
        ExprFunction::Bool,
        ExprFunction::Success,
        ExprFunction::Failure,
        ExprFunction::Always,
        ExprFunction::Cancelled,
    ];

    pub(super) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|function| function.name() == name)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            ExprFunction::Str => "str",
            ExprFunction::Num => "num",
            ExprFunction::Bool => "bool",
            ExprFunction::Success => "success",
            ExprFunction::Failure => "failure",
            ExprFunction::Always => "always",
            ExprFunction::Cancelled => "cancelled",
        }
    }

    /// Returns whether this is a status function: `success()`, `failure()`, `always()` or
    /// `cancelled()`.
    pub(super) fn is_about_status(self) -> bool {
        !matches!(self, ExprFunction::Str | ExprFunction::Num | ExprFunction::Bool)
    }

    /// Returns the number of arguments: one for a conversion, none for a status function.
    pub(super) fn argument_count(self) -> usize {
        usize::from(!self.is_about_status())
    }
}

/// A token of an expression.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ExprToken<'t> {
    /// A name, or a keyword such as `true`.
    Name(&'t str),
    Number(&'t str),
    /// An operator, a bracket, a quote.
    Symbol(&'static str),
    /// A character that starts no token.
    Unknown(&'t str),
    End,
}

/// Symbols, longer ones first, as `<` is also the start of `<=`.
const SYMBOLS: [&str; 25] = [
    "&&", "||", "==", "!=", "<=", ">=", "<", ">", "+", "-", "*", "/", "%", "!", ".", ",", ":", "(",
    ")", "[", "]", "{", "}", "\"", "'",
];

impl<'t> ExprToken<'t> {
    /// Returns the first token of a text, and its length in bytes.
    pub fn read_first(text: &'t str) -> (Self, usize) {
        let Some(c) = text.chars().next() else { return (ExprToken::End, 0) };
        if c.is_alphabetic() || c == '_' {
            let len = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
            return (ExprToken::Name(&text[..len]), len);
        }
        if c.is_ascii_digit() {
            let len = number_len(text.as_bytes());
            return (ExprToken::Number(&text[..len]), len);
        }
        match SYMBOLS.into_iter().find(|symbol| text.starts_with(symbol)) {
            Some(symbol) => (ExprToken::Symbol(symbol), symbol.len()),
            None => (ExprToken::Unknown(&text[..c.len_utf8()]), c.len_utf8()),
        }
    }

    /// Returns a description of the token for messages.
    pub fn describe(self) -> String {
        match self {
            ExprToken::Name(text)
            | ExprToken::Number(text)
            | ExprToken::Symbol(text)
            | ExprToken::Unknown(text) => {
                format!("`{text}`")
            }
            ExprToken::End => "the end".to_owned(),
        }
    }
}

/// Returns the length of a number literal: digits, with a complete fraction and exponent.
fn number_len(text: &[u8]) -> usize {
    let digits = |from: usize| text[from..].iter().take_while(|b| b.is_ascii_digit()).count();
    let mut len = digits(0);
    if text.get(len) == Some(&b'.') {
        match digits(len + 1) {
            0 => return len,
            count => len += 1 + count,
        }
    }
    if matches!(text.get(len), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(text.get(len + 1), Some(b'+' | b'-')));
        match text.len().checked_sub(len + 1 + sign).map_or(0, |_| digits(len + 1 + sign)) {
            0 => {}
            count => len += 1 + sign + count,
        }
    }
    len
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_tokens_end_at_complete_numbers() {
        for (text, number) in [
            ("42", "42"),
            ("3.14+", "3.14"),
            ("1.5e3", "1.5e3"),
            ("2E-4x", "2E-4"),
            ("1.", "1"),
            ("1..2", "1"),
            ("1.5e", "1.5"),
            ("1e+", "1"),
            ("1.2.3", "1.2"),
            ("007", "007"),
        ] {
            assert_eq!(
                ExprToken::read_first(text),
                (ExprToken::Number(number), number.len()),
                "{text}"
            );
        }
    }

    #[test]
    fn two_character_symbols_are_one_token() {
        assert_eq!(ExprToken::read_first("<=1"), (ExprToken::Symbol("<="), 2));
        assert_eq!(ExprToken::read_first("<-1"), (ExprToken::Symbol("<"), 1));
        assert_eq!(ExprToken::read_first("=1"), (ExprToken::Unknown("="), 1));
        assert_eq!(ExprToken::read_first("é_1-"), (ExprToken::Name("é_1"), 4));
        assert_eq!(ExprToken::read_first("€"), (ExprToken::Unknown("€"), 3));
        assert_eq!(ExprToken::read_first(""), (ExprToken::End, 0));
    }
}
