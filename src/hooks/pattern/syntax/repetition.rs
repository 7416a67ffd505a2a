//! Repetition: `*`, `+`, `?` and counts.

use super::ast::{ConstructKind, Edges, Kind, Node};
use super::parser::Parser;
use crate::hooks::pattern::error::{PatternError, PatternErrorKind};

/// Greatest repeat count, and greatest product of nested ones.
const MAX_REPEAT: u32 = 1000;

#[derive(Clone, Copy)]
pub(super) enum Repetition {
    Operator(u16, Option<u16>),
    Counted(u16, Option<u16>),
}

impl Repetition {
    fn bounds(self) -> (u16, Option<u16>) {
        match self {
            Self::Operator(min, max) | Self::Counted(min, max) => (min, max),
        }
    }
}

impl Parser<'_> {
    pub(super) fn repeat(
        &mut self,
        start: usize,
        repetition: Repetition,
        last_repeat: Option<usize>,
    ) -> Result<(), PatternError> {
        if self.peek() == Some(b'?') {
            self.at += 1;
            self.note(ConstructKind::LazyRepetition, start);
        }
        if let Some(last) = last_repeat {
            return Err(self.error_since(PatternErrorKind::NestedRepetition, last));
        }
        if self.stack.len() == self.group.parts {
            return Err(self.error_since(PatternErrorKind::MissingRepeatArgument, start));
        }
        let operand = self.stack.pop().expect("the group has a part");
        let inner = self.ast.nodes[operand.index()];
        let (min, max) = repetition.bounds();
        let (low, size) = (u32::from(min), inner.size);
        let (size, copies) = match (repetition, max.map(u32::from)) {
            // `*` may take two instructions around its operand, `+` and `?` one.
            (Repetition::Operator(..), limit) => {
                (size + 1 + u32::from(min == 0 && limit.is_none()), inner.copies.into())
            }
            (_, None) if min == 0 => (size + 2, inner.copies.into()),
            (_, None) => (1 + low * size, low * u32::from(inner.copies)),
            (_, Some(0)) => (1, 1),
            (_, Some(high)) => (high * size + (high - low), high * u32::from(inner.copies)),
        };
        let edges = Edges {
            text_start: inner.edges.text_start && min > 0,
            text_end: inner.edges.text_end && min > 0,
            zero_width: inner.edges.zero_width || max == Some(0),
        };
        let node = Node {
            kind: Kind::Repeat { operand, min, max },
            start: inner.start,
            end: Self::position(self.at),
            size,
            height: inner.height + 1,
            copies: u16::try_from(copies.min(MAX_REPEAT + 1)).unwrap_or(u16::MAX),
            edges,
        };
        let id = self.add(node)?;
        self.stack.push(id);
        if copies > MAX_REPEAT {
            return Err(self.error_since(PatternErrorKind::RepeatCount, start));
        }
        Ok(())
    }

    /// Reads `{2}`, `{2,}` or `{2,5}`; anything else leaves the brace to stand for itself.
    pub(super) fn counts(&mut self) -> Result<Option<(u16, Option<u16>)>, PatternError> {
        let start = self.at;
        let Some((min, max, length)) = counts(self.rest()) else { return Ok(None) };
        self.at += length;
        if min > MAX_REPEAT || max.is_some_and(|max| max > MAX_REPEAT || max < min) {
            return Err(self.error_since(PatternErrorKind::RepeatCount, start));
        }
        let small = |count| u16::try_from(count).expect("at most 1000");
        Ok(Some((small(min), max.map(small))))
    }
}

/// Reads a counted repetition: its counts and length.
fn counts(text: &str) -> Option<(u32, Option<u32>, usize)> {
    let length = text.bytes().skip(1).take_while(|b| matches!(b, b'0'..=b'9' | b',')).count();
    let inner = &text[1..=length];
    if text.as_bytes().get(1 + length) != Some(&b'}') {
        return None;
    }
    let (min, max) = match inner.split_once(',') {
        None => (count(inner)?, Some(count(inner)?)),
        Some((min, "")) => (count(min)?, None),
        Some((min, max)) => (count(min)?, Some(count(max)?)),
    };
    Some((min, max, length + 2))
}

fn count(digits: &str) -> Option<u32> {
    let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    let leading_zero = digits.len() > 1 && digits.starts_with('0');
    // Too long a number is too great a count.
    (plain && !leading_zero).then(|| digits.parse().unwrap_or(u32::MAX))
}
