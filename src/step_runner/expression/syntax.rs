//! Syntax trees of expressions.

use super::super::Value;
use super::operators::{Operator, Unary};

/// An expression and the byte offset of its start.
#[derive(Debug)]
pub struct Node<'t> {
    pub at: usize,
    pub expr: Expr<'t>,
}

/// A syntax tree node.
#[derive(Debug)]
pub enum Expr<'t> {
    Value(Value),
    Text(Vec<Part<'t>>),
    Array(Vec<Node<'t>>),
    Object(Vec<(Node<'t>, Node<'t>)>),
    /// An old-style dotted path that is known to exist.
    Path(&'t str),
    /// A name or a value with its members.
    Access {
        path: &'t str,
        base: Base<'t>,
        keys: Vec<Key<'t>>,
    },
    Unary(Unary, Box<Node<'t>>),
    /// Binary operators, applied from left to right. Operators of higher precedence are nodes of their
    /// own, except on the far left: so a long sum is not a deep tree.
    Fold(Box<Node<'t>>, Vec<Operation<'t>>),
    /// A function call with arguments.
    Call(Function, Vec<Node<'t>>),
}

/// A part of a text: literal, or an expression.
#[derive(Debug)]
pub enum Part<'t> {
    Plain(String),
    Node(Node<'t>),
}

/// Start of an [`Expr::Access`].
#[derive(Debug)]
pub enum Base<'t> {
    Root(&'t str),
    Node(Box<Node<'t>>),
}

/// Member or index of an [`Expr::Access`].
#[derive(Debug)]
pub enum Key<'t> {
    /// `.name`, with the offset of the name.
    Name(usize, &'t str),
    Index(Node<'t>),
}

/// A binary operator, its offset, and its right operand.
#[derive(Debug)]
pub struct Operation<'t> {
    pub operator: Operator,
    pub at: usize,
    pub right: Node<'t>,
}

/// A built-in function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    Str,
    Num,
    Bool,
    Success,
    Failure,
    Always,
    Cancelled,
}

impl Function {
    const ALL: [Function; 7] = [
        Function::Str,
        Function::Num,
        Function::Bool,
        Function::Success,
        Function::Failure,
        Function::Always,
        Function::Cancelled,
    ];

    pub(super) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|function| function.name() == name)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Function::Str => "str",
            Function::Num => "num",
            Function::Bool => "bool",
            Function::Success => "success",
            Function::Failure => "failure",
            Function::Always => "always",
            Function::Cancelled => "cancelled",
        }
    }

    /// Returns whether it is a status function: its value depends on earlier steps.
    pub(super) fn is_about_status(self) -> bool {
        !matches!(self, Function::Str | Function::Num | Function::Bool)
    }

    /// Returns the number of arguments.
    pub(super) fn takes(self) -> usize {
        usize::from(!self.is_about_status())
    }
}

/// A token of an expression.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Token<'t> {
    /// A name, or a keyword such as `true`.
    Name(&'t str),
    Number(&'t str),
    /// An operator, a bracket, a quote.
    Symbol(&'static str),
    /// A character that starts no token.
    Unknown(&'t str),
    End,
}

/// Longest first: those of two characters precede their prefixes.
const SYMBOLS: [&str; 25] = [
    "&&", "||", "==", "!=", "<=", ">=", "<", ">", "+", "-", "*", "/", "%", "!", ".", ",", ":", "(",
    ")", "[", "]", "{", "}", "\"", "'",
];

impl<'t> Token<'t> {
    /// Returns the first token of a text, and its length in bytes.
    pub fn first(text: &'t str) -> (Self, usize) {
        let Some(c) = text.chars().next() else { return (Token::End, 0) };
        if c.is_alphabetic() || c == '_' {
            let len = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
            return (Token::Name(&text[..len]), len);
        }
        if c.is_ascii_digit() {
            let len = number_len(text.as_bytes());
            return (Token::Number(&text[..len]), len);
        }
        match SYMBOLS.into_iter().find(|symbol| text.starts_with(symbol)) {
            Some(symbol) => (Token::Symbol(symbol), symbol.len()),
            None => (Token::Unknown(&text[..c.len_utf8()]), c.len_utf8()),
        }
    }

    /// Describes the token in messages.
    pub fn describe(self) -> String {
        match self {
            Token::Name(text)
            | Token::Number(text)
            | Token::Symbol(text)
            | Token::Unknown(text) => {
                format!("`{text}`")
            }
            Token::End => "the end".to_owned(),
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
    fn numbers_end_where_they_are_complete() {
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
            assert_eq!(Token::first(text), (Token::Number(number), number.len()), "{text}");
        }
    }

    #[test]
    fn symbols_of_two_characters_are_one_token() {
        assert_eq!(Token::first("<=1"), (Token::Symbol("<="), 2));
        assert_eq!(Token::first("<-1"), (Token::Symbol("<"), 1));
        assert_eq!(Token::first("=1"), (Token::Unknown("="), 1));
        assert_eq!(Token::first("é_1-"), (Token::Name("é_1"), 4));
        assert_eq!(Token::first("€"), (Token::Unknown("€"), 3));
        assert_eq!(Token::first(""), (Token::End, 0));
    }
}
