//! Building the tree: nodes are on a stack until their alternative or group ends.

use super::ast::{Assertion, AstKind, AstNode, CharacterClass, MatchEdges, NodeId};
use super::parser::PatternParser;
use crate::hooks::pattern::error::{PatternError, PatternErrorKind};

/// Maximum height of the tree.
const MAX_HEIGHT: u16 = 1000;
/// Maximum number of instructions: Go's limit of 128 MiB at 40 bytes each.
const MAX_SIZE: u32 = (128 << 20) / 40;

impl PatternParser<'_> {
    pub(super) fn position(offset: usize) -> u32 {
        u32::try_from(offset).expect("the constructor rejects longer patterns")
    }

    pub(super) fn push_literal(&mut self, text: &str, start: usize) -> Result<(), PatternError> {
        let from = Self::position(self.ast.text.len());
        self.ast.text.push_str(text);
        let to = Self::position(self.ast.text.len());
        let ignore_case = self.flags.ignore_case;
        self.push_leaf(AstKind::Literal { start: from, end: to, ignore_case }, start)
    }

    pub(super) fn push_assertion(
        &mut self,
        assertion: Assertion,
        length: usize,
    ) -> Result<(), PatternError> {
        let start = self.at;
        self.at += length;
        self.push_leaf(AstKind::Assertion(assertion), start)
    }

    pub(super) fn push_class(
        &mut self,
        items: usize,
        negated: bool,
        start: usize,
    ) -> Result<(), PatternError> {
        let class = CharacterClass {
            start: Self::position(items),
            end: Self::position(self.ast.items.len()),
            negated,
            ignore_case: self.flags.ignore_case,
        };
        let index = Self::position(self.ast.classes.len());
        self.ast.classes.push(class);
        self.push_leaf(AstKind::Class(index), start)
    }

    pub(super) fn push_leaf(&mut self, kind: AstKind, start: usize) -> Result<(), PatternError> {
        let (size, edges) = match kind {
            AstKind::Literal { start, end, .. } => {
                let length = self.ast.text(start, end).chars().count();
                (Self::position(length), MatchEdges::default())
            }
            AstKind::Assertion(assertion) => {
                let edges = MatchEdges {
                    text_start: assertion == Assertion::TextStart,
                    text_end: assertion == Assertion::TextEnd,
                    zero_width: true,
                };
                (1, edges)
            }
            AstKind::Empty => (1, MatchEdges { zero_width: true, ..MatchEdges::default() }),
            _ => (1, MatchEdges::default()),
        };
        let (start, end) = (Self::position(start), Self::position(self.at));
        self.push(AstNode { kind, start, end, size, height: 1, copies: 1, edges })
    }

    pub(super) fn push(&mut self, node: AstNode) -> Result<(), PatternError> {
        self.join_literals();
        let id = self.add(node)?;
        self.stack.push(id);
        Ok(())
    }

    /// Joins the two literals on top of the stack: a repetition can no longer follow the upper one.
    pub fn join_literals(&mut self) {
        let [.., first, second] = self.stack[self.group.parts..] else { return };
        let upper = self.ast.nodes[second.index()];
        let lower = &mut self.ast.nodes[first.index()];
        if let AstKind::Literal { end, ignore_case, .. } = &mut lower.kind
            && let AstKind::Literal { start: next, end: last, ignore_case: same } = upper.kind
            && *end == next
            && *ignore_case == same
        {
            *end = last;
            lower.end = upper.end;
            lower.size += upper.size;
            self.stack.pop();
        }
    }

    pub(super) fn add(&mut self, node: AstNode) -> Result<NodeId, PatternError> {
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

    /// Combines the parts of an alternative into one node on the stack.
    pub fn end_alternative(&mut self) -> Result<(), PatternError> {
        self.join_literals();
        let parts = self.group.parts;
        match self.stack.len() - parts {
            0 => self.push_leaf(AstKind::Empty, self.at)?,
            1 => {}
            _ => {
                let mut node =
                    self.combine(parts, |start, end| AstKind::Concatenation { start, end });
                let parts = &self.stack[parts..];
                let edges = |id: &NodeId| self.ast.edges(*id);
                let zero_width = |id: &&NodeId| edges(id).zero_width;
                node.edges = MatchEdges {
                    text_start: has_leading(parts.iter(), zero_width, |id| edges(id).text_start),
                    text_end: has_leading(parts.iter().rev(), zero_width, |id| edges(id).text_end),
                    zero_width: parts.iter().all(|id| edges(id).zero_width),
                };
                self.replace(self.group.parts, node)?;
            }
        }
        self.group.parts += 1;
        debug_assert_eq!(self.group.parts, self.stack.len());
        Ok(())
    }

    /// Combines the alternatives of the innermost group, and takes them off the stack.
    pub fn alternation(&mut self) -> Result<NodeId, PatternError> {
        let alternatives = self.group.alternatives;
        if self.stack.len() - alternatives > 1 {
            let mut node =
                self.combine(alternatives, |start, end| AstKind::Alternation { start, end });
            let all = |holds: fn(MatchEdges) -> bool| {
                self.stack[alternatives..].iter().all(|id| holds(self.ast.edges(*id)))
            };
            node.edges = MatchEdges {
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

    /// Combines the nodes on the stack from `base` on; the caller sets the node's `edges`.
    fn combine(&mut self, base: usize, kind: fn(u32, u32) -> AstKind) -> AstNode {
        let start = Self::position(self.ast.operands.len());
        self.ast.operands.extend_from_slice(&self.stack[base..]);
        let kind = kind(start, Self::position(self.ast.operands.len()));
        let nodes = || self.stack[base..].iter().map(|id| self.ast.nodes[id.index()]);
        // Go flattens nested concatenations, and nested alternations.
        let height = |node: AstNode| {
            let flattened = std::mem::discriminant(&node.kind) == std::mem::discriminant(&kind);
            node.height - u16::from(flattened)
        };
        AstNode {
            kind,
            start: nodes().next().map_or(0, |node| node.start),
            end: nodes().next_back().map_or(0, |node| node.end),
            size: nodes().fold(0, |size, node| size.saturating_add(node.size)),
            height: 1 + nodes().map(height).max().unwrap_or(0),
            copies: nodes().map(|node| node.copies).max().unwrap_or(1),
            edges: MatchEdges::default(),
        }
    }

    fn replace(&mut self, base: usize, node: AstNode) -> Result<(), PatternError> {
        let id = self.add(node)?;
        self.stack.truncate(base);
        self.stack.push(id);
        Ok(())
    }
}

/// Returns whether `has` is true for some item, and `passed` for all items before it.
fn has_leading<I: Iterator>(
    mut items: I,
    mut passed: impl FnMut(&I::Item) -> bool,
    mut has: impl FnMut(I::Item) -> bool,
) -> bool {
    items.find_map(|item| {
        let goes_on = passed(&item);
        if has(item) { Some(true) } else { (!goes_on).then_some(false) }
    }) == Some(true)
}
