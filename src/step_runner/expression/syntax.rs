//! Expressions, parsed.

use super::super::Value;
use super::operators::{Operator, Unary};

/// An expression and the byte at which it starts.
#[derive(Debug)]
pub(super) struct Node<'t> {
    pub(super) at: usize,
    pub(super) expr: Expr<'t>,
}

/// An expression.
#[derive(Debug)]
pub(super) enum Expr<'t> {
    /// A value that is written out.
    Value(Value),
    /// `"…"`.
    Text(Vec<Part<'t>>),
    /// `[…]`.
    Array(Vec<Node<'t>>),
    /// `{…}`: names and values.
    Object(Vec<(Node<'t>, Node<'t>)>),
    /// Names with dots between them, split at every dot, which are known to be there.
    Path(&'t str),
    /// A name, or a value, and what of it.
    Access { path: &'t str, base: Base<'t>, keys: Vec<Key<'t>> },
    /// An operator before a value.
    Unary(Unary, Box<Node<'t>>),
    /// Operators between values, applied from left to right. What binds tighter is a node of its own,
    /// except on the far left, where it comes first anyhow: so a long sum is not a deep tree.
    Fold(Box<Node<'t>>, Vec<Operation<'t>>),
    /// A function and its values.
    Call(Function, Vec<Node<'t>>),
}

/// A piece of a text.
#[derive(Debug)]
pub(super) enum Part<'t> {
    Plain(String),
    Node(Node<'t>),
}

/// What [`Expr::Access`] begins with.
#[derive(Debug)]
pub(super) enum Base<'t> {
    Root(&'t str),
    Node(Box<Node<'t>>),
}

/// What follows it.
#[derive(Debug)]
pub(super) enum Key<'t> {
    /// `.name`, and where the name is.
    Name(usize, &'t str),
    /// `[…]`.
    Index(Node<'t>),
}

/// An operator, where it stands, and the value on its right.
#[derive(Debug)]
pub(super) struct Operation<'t> {
    pub(super) operator: Operator,
    pub(super) at: usize,
    pub(super) right: Node<'t>,
}

/// A function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Function {
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

    /// Tells whether it is about how the steps before ended.
    pub(super) fn is_about_status(self) -> bool {
        !matches!(self, Function::Str | Function::Num | Function::Bool)
    }

    /// Returns how many values it takes.
    pub(super) fn takes(self) -> usize {
        usize::from(!self.is_about_status())
    }
}
