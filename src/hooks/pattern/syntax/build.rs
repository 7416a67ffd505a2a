//! Building the tree: what was read lies on a stack until its alternative or group ends.

use super::ast::{Assertion, Class, Edges, Kind, Node, NodeId};
use super::parser::Parser;
use crate::hooks::pattern::error::{PatternError, PatternErrorKind};

/// Greatest height of the tree.
const MAX_HEIGHT: u16 = 1000;
/// Greatest number of instructions: what Go fits in 128 MiB.
const MAX_SIZE: u32 = (128 << 20) / 40;

impl Parser<'_> {
    pub(super) fn position(offset: usize) -> u32 {
        u32::try_from(offset).expect("the constructor rejects longer patterns")
    }

    pub(super) fn push_literal(&mut self, text: &str, start: usize) -> Result<(), PatternError> {
        let from = Self::position(self.ast.text.len());
        self.ast.text.push_str(text);
        let to = Self::position(self.ast.text.len());
        let ignore_case = self.flags.ignore_case;
        self.push_leaf(Kind::Literal { start: from, end: to, ignore_case }, start)
    }

    pub(super) fn push_assertion(
        &mut self,
        assertion: Assertion,
        length: usize,
    ) -> Result<(), PatternError> {
        let start = self.at;
        self.at += length;
        self.push_leaf(Kind::Assertion(assertion), start)
    }

    pub(super) fn push_class(
        &mut self,
        items: usize,
        negated: bool,
        start: usize,
    ) -> Result<(), PatternError> {
        let class = Class {
            start: Self::position(items),
            end: Self::position(self.ast.items.len()),
            negated,
            ignore_case: self.flags.ignore_case,
        };
        let index = Self::position(self.ast.classes.len());
        self.ast.classes.push(class);
        self.push_leaf(Kind::Class(index), start)
    }

    pub(super) fn push_leaf(&mut self, kind: Kind, start: usize) -> Result<(), PatternError> {
        let (size, edges) = match kind {
            Kind::Literal { start, end, .. } => {
                let length = self.ast.text(start, end).chars().count();
                (Self::position(length), Edges::default())
            }
            Kind::Assertion(assertion) => {
                let edges = Edges {
                    text_start: assertion == Assertion::TextStart,
                    text_end: assertion == Assertion::TextEnd,
                    zero_width: true,
                };
                (1, edges)
            }
            Kind::Empty => (1, Edges { zero_width: true, ..Edges::default() }),
            _ => (1, Edges::default()),
        };
        let (start, end) = (Self::position(start), Self::position(self.at));
        self.push(Node { kind, start, end, size, height: 1, copies: 1, edges })
    }

    pub(super) fn push(&mut self, node: Node) -> Result<(), PatternError> {
        self.join_literals();
        let id = self.add(node)?;
        self.stack.push(id);
        Ok(())
    }

    /// Joins the two literals on top of the stack: nothing can repeat the upper one any more.
    pub fn join_literals(&mut self) {
        let [.., first, second] = self.stack[self.group.parts..] else { return };
        let upper = self.ast.nodes[second.index()];
        let lower = &mut self.ast.nodes[first.index()];
        if let Kind::Literal { end, ignore_case, .. } = &mut lower.kind
            && let Kind::Literal { start: next, end: last, ignore_case: same } = upper.kind
            && *end == next
            && *ignore_case == same
        {
            *end = last;
            lower.end = upper.end;
            lower.size += upper.size;
            self.stack.pop();
        }
    }

    pub(super) fn add(&mut self, node: Node) -> Result<NodeId, PatternError> {
        if node.size > MAX_SIZE {
            return Err(self.error(PatternErrorKind::TooLarge, 0..self.source.len()));
        }
        if node.height > MAX_HEIGHT {
            return Err(self.error(PatternErrorKind::TooDeep, 0..self.source.len()));
        }
        let id = NodeId(Self::position(self.ast.nodes.len()));
        self.ast.nodes.push(node);
        Ok(id)
    }

    /// Puts what was read of an alternative together and leaves it as one node on the stack.
    pub fn end_alternative(&mut self) -> Result<(), PatternError> {
        self.join_literals();
        let parts = self.group.parts;
        match self.stack.len() - parts {
            0 => self.push_leaf(Kind::Empty, self.at)?,
            1 => {}
            _ => {
                let mut node = self.combine(parts, |start, end| Kind::Concatenation { start, end });
                let parts = &self.stack[parts..];
                let edges = |id: &NodeId| self.ast.edges(*id);
                let zero_width = |id: &&NodeId| edges(id).zero_width;
                node.edges = Edges {
                    text_start: leads(parts.iter(), zero_width, |id| edges(id).text_start),
                    text_end: leads(parts.iter().rev(), zero_width, |id| edges(id).text_end),
                    zero_width: parts.iter().all(|id| edges(id).zero_width),
                };
                self.replace(self.group.parts, node)?;
            }
        }
        self.group.parts += 1;
        debug_assert_eq!(self.group.parts, self.stack.len());
        Ok(())
    }

    /// Puts the alternatives of the innermost group together and takes them off the stack.
    pub fn alternation(&mut self) -> Result<NodeId, PatternError> {
        let alternatives = self.group.alternatives;
        if self.stack.len() - alternatives > 1 {
            let mut node =
                self.combine(alternatives, |start, end| Kind::Alternation { start, end });
            let all = |holds: fn(Edges) -> bool| {
                self.stack[alternatives..].iter().all(|id| holds(self.ast.edges(*id)))
            };
            node.edges = Edges {
                text_start: all(|edges| edges.text_start),
                text_end: all(|edges| edges.text_end),
                zero_width: all(|edges| edges.zero_width),
            };
            let bars = Self::position(self.stack.len() - alternatives - 1);
            node.size = node.size.saturating_add(bars);
            self.replace(alternatives, node)?;
        }
        Ok(self.stack.pop().expect("every alternative leaves a node"))
    }

    /// Makes one node of those on the stack from `base` on, leaving its edges to the caller.
    fn combine(&mut self, base: usize, kind: fn(u32, u32) -> Kind) -> Node {
        let start = Self::position(self.ast.operands.len());
        self.ast.operands.extend_from_slice(&self.stack[base..]);
        let kind = kind(start, Self::position(self.ast.operands.len()));
        let nodes = || self.stack[base..].iter().map(|id| self.ast.nodes[id.index()]);
        // Go flattens a concatenation in a concatenation, and so for alternations.
        let height = |node: Node| {
            let flattened = std::mem::discriminant(&node.kind) == std::mem::discriminant(&kind);
            node.height - u16::from(flattened)
        };
        Node {
            kind,
            start: nodes().next().map_or(0, |node| node.start),
            end: nodes().next_back().map_or(0, |node| node.end),
            size: nodes().fold(0, |size, node| size.saturating_add(node.size)),
            height: 1 + nodes().map(height).max().unwrap_or(0),
            copies: nodes().map(|node| node.copies).max().unwrap_or(1),
            edges: Edges::default(),
        }
    }

    fn replace(&mut self, base: usize, node: Node) -> Result<(), PatternError> {
        let id = self.add(node)?;
        self.stack.truncate(base);
        self.stack.push(id);
        Ok(())
    }
}

/// Returns whether one has the property before any that is not passed.
fn leads<I: Iterator>(
    mut items: I,
    mut passed: impl FnMut(&I::Item) -> bool,
    mut has: impl FnMut(I::Item) -> bool,
) -> bool {
    items.find_map(|item| {
        let goes_on = passed(&item);
        if has(item) { Some(true) } else { (!goes_on).then_some(false) }
    }) == Some(true)
}
