//! Syntax trees of expressions.

use super::super::Value;
use super::operators::{Operator, Unary};

/// An expression and the byte offset of its start.
#[derive(Debug)]
pub(super) struct Node<'t> {
    pub(super) at: usize,
    pub(super) expr: Expr<'t>,
}

/// A syntax tree node.
#[derive(Debug)]
pub(super) enum Expr<'t> {
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
pub(super) enum Part<'t> {
    Plain(String),
    Node(Node<'t>),
}

/// Start of an [`Expr::Access`].
#[derive(Debug)]
pub(super) enum Base<'t> {
    Root(&'t str),
    Node(Box<Node<'t>>),
}

/// Member or index of an [`Expr::Access`].
#[derive(Debug)]
pub(super) enum Key<'t> {
    /// `.name`, with the offset of the name.
    Name(usize, &'t str),
    Index(Node<'t>),
}

/// A binary operator, its offset, and its right operand.
#[derive(Debug)]
pub(super) struct Operation<'t> {
    pub(super) operator: Operator,
    pub(super) at: usize,
    pub(super) right: Node<'t>,
}

/// A built-in function.
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

    /// Returns whether it is a status function: its value depends on earlier steps.
    pub(super) fn is_about_status(self) -> bool {
        !matches!(self, Function::Str | Function::Num | Function::Bool)
    }

    /// Returns the number of arguments.
    pub(super) fn takes(self) -> usize {
        usize::from(!self.is_about_status())
    }
}
