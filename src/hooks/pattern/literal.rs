//! What a pattern asks for that comparing strings can tell.

use super::syntax::{Assertion, Ast, Kind, NodeId};

/// A literal that every matching text has, and where.
#[derive(Clone, Debug)]
pub(super) struct Requirements {
    /// The text begins with it.
    prefix: Literal,
    /// The text ends with it.
    suffix: Literal,
    /// The text has it.
    infix: Literal,
    /// Nothing else is asked for.
    pub(super) complete: bool,
    /// The prefix is the whole text.
    exact: bool,
}

/// A part of the tree's text.
type Literal = (u32, u32);
const NONE: Literal = (0, 0);

impl Requirements {
    /// Derives what a search asks for.
    pub(super) fn new(ast: &Ast) -> Self {
        let root = [ast.root()];
        let mut parts = match ast.kind(ast.root()) {
            Kind::Concatenation { start, end } => ast.operands(start, end),
            _ => &root,
        };
        let mut found =
            Self { prefix: NONE, suffix: NONE, infix: NONE, complete: false, exact: false };
        let is = |id: NodeId, assertion| ast.kind(id) == Kind::Assertion(assertion);
        let mut at_start = false;
        while let [first, rest @ ..] = parts
            && is(*first, Assertion::TextStart)
        {
            (at_start, parts) = (true, rest);
        }
        let mut at_end = false;
        while let [rest @ .., last] = parts
            && is(*last, Assertion::TextEnd)
        {
            (at_end, parts) = (true, rest);
        }
        // What may be empty at an open end need not be there.
        while let [first, rest @ ..] = parts
            && !at_start
            && may_be_empty(ast.kind(*first))
        {
            parts = rest;
        }
        while let [rest @ .., last] = parts
            && !at_end
            && may_be_empty(ast.kind(*last))
        {
            parts = rest;
        }

        let literal = |id: &NodeId| match ast.kind(*id) {
            Kind::Literal { start, end, ignore_case: false } => Some((start, end)),
            _ => None,
        };
        let first = parts.first().and_then(literal).filter(|_| at_start);
        let last = parts.last().and_then(literal).filter(|_| at_end);
        found.complete = match parts {
            [] => true,
            [only] => literal(only).is_some(),
            _ => false,
        };
        found.exact = found.complete && at_start && at_end;
        found.prefix = first.unwrap_or(NONE);
        found.suffix = last.unwrap_or(NONE);
        // A literal at an anchored end has been compared there.
        let inner = &parts[usize::from(first.is_some()).min(parts.len())..];
        let inner = &inner[..inner.len() - usize::from(last.is_some()).min(inner.len())];
        let longest = inner.iter().filter_map(literal).max_by_key(|(start, end)| end - start);
        found.infix = longest.unwrap_or(NONE);
        found
    }

    /// Reports whether the text has what is asked for.
    pub(super) fn hold(&self, ast: &Ast, text: &str) -> bool {
        let literal = |(start, end)| ast.text(start, end);
        if self.exact {
            return text == literal(self.prefix);
        }
        text.starts_with(literal(self.prefix))
            && text.ends_with(literal(self.suffix))
            && (self.infix == NONE || text.contains(literal(self.infix)))
    }
}

fn may_be_empty(kind: Kind) -> bool {
    matches!(kind, Kind::Empty | Kind::Repeat { min: 0, .. })
}
