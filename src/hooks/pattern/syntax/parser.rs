//! The parser: operators, groups, repetition.
//!
//! The checks run in Go's order, so that a pattern with two errors is rejected for the same error.

use std::ops::Range;

use super::ast::{
    Assertion, Ast, AstKind, AstNode, ConstructKind, MatchEdges, NodeId, PatternConstruct,
};
use crate::hooks::pattern::error::{PatternError, PatternErrorKind};

/// Parses a pattern.
///
/// # Errors
///
/// Rejects what Go's `regexp.Compile` rejects.
pub fn parse(pattern: &str) -> Result<Ast, PatternError> {
    PatternParser::new(pattern)?.parse()
}

pub(super) struct PatternParser<'p> {
    pub source: &'p str,
    /// The next byte to read.
    pub at: usize,
    pub flags: PatternFlags,
    pub ast: Ast,
    /// Set once a search has found no `:]` in the rest of the pattern, so that it is not searched
    /// again.
    pub no_class_ahead: bool,
    /// For each open group: its finished alternatives, then the parts of the current one.
    pub stack: Vec<NodeId>,
    /// The open groups around the innermost one.
    outer: Vec<OpenGroup>,
    pub group: OpenGroup,
}

#[derive(Clone, Copy)]
pub(super) struct PatternFlags {
    pub ignore_case: bool,
    multi_line: bool,
    dot_newline: bool,
}

pub(super) struct OpenGroup {
    /// Offset of the opening parenthesis.
    open: usize,
    capture: bool,
    /// Flags outside of the group.
    flags: PatternFlags,
    /// Stack index of the first finished alternative.
    pub alternatives: usize,
    /// Stack index of the first part of the current alternative.
    pub parts: usize,
}

impl<'p> PatternParser<'p> {
    fn new(source: &'p str) -> Result<Self, PatternError> {
        if u32::try_from(source.len()).is_err() {
            return Err(PatternError::new(PatternErrorKind::TooLarge, source, 0..source.len()));
        }
        let flags = PatternFlags { ignore_case: false, multi_line: false, dot_newline: false };
        Ok(Self {
            source,
            at: 0,
            flags,
            ast: Ast {
                nodes: Vec::with_capacity(8),
                operands: Vec::new(),
                classes: Vec::new(),
                items: Vec::new(),
                text: String::with_capacity(source.len()),
                constructs: Vec::new(),
                root: NodeId(0),
            },
            no_class_ahead: false,
            stack: Vec::with_capacity(8),
            outer: Vec::new(),
            group: OpenGroup { open: 0, capture: false, flags, alternatives: 0, parts: 0 },
        })
    }

    fn parse(mut self) -> Result<Ast, PatternError> {
        // Start of the last repetition operator, if nothing has followed it.
        let mut last_repeat = None;
        while let Some(byte) = self.peek() {
            let start = self.at;
            let mut repeat = None;
            match byte {
                b'(' => self.open_group()?,
                b'|' => {
                    self.at += 1;
                    self.end_alternative()?;
                }
                b')' => self.close_group()?,
                b'^' if self.flags.multi_line => self.push_assertion(Assertion::LineStart, 1)?,
                b'^' => self.push_assertion(Assertion::TextStart, 1)?,
                b'$' if self.flags.multi_line => self.push_assertion(Assertion::LineEnd, 1)?,
                b'$' => self.push_assertion(Assertion::TextEnd, 1)?,
                b'.' => {
                    self.at += 1;
                    let kind = if self.flags.dot_newline {
                        AstKind::AnyCharacter
                    } else {
                        AstKind::AnyExceptNewline
                    };
                    self.push_leaf(kind, start)?;
                }
                b'[' => self.brackets()?,
                b'*' | b'+' | b'?' => {
                    self.at += 1;
                    let min = u16::from(byte == b'+');
                    let max = (byte == b'?').then_some(1);
                    self.repeat(start, Repetition::Operator(min, max), last_repeat)?;
                    repeat = Some(start);
                }
                b'{' => match self.counts()? {
                    Some((min, max)) => {
                        self.repeat(start, Repetition::Counted(min, max), last_repeat)?;
                        repeat = Some(start);
                    }
                    None => {
                        self.at += 1;
                        self.push_literal("{", start)?;
                    }
                },
                b'\\' => self.backslash()?,
                _ => self.plain_text()?,
            }
            last_repeat = repeat;
        }

        self.end_alternative()?;
        let root = self.alternation()?;
        if self.outer.is_empty() {
            self.ast.root = root;
            if self.ast.is_too_wide() {
                return Err(self.error(PatternErrorKind::TooLarge, 0..self.source.len()));
            }
            Ok(self.ast)
        } else {
            let open = self.group.open;
            Err(self.error(PatternErrorKind::MissingParenthesis, open..open + 1))
        }
    }

    // Reading.

    pub(super) fn peek(&self) -> Option<u8> {
        self.source.as_bytes().get(self.at).copied()
    }

    pub(super) fn rest(&self) -> &'p str {
        &self.source[self.at..]
    }

    pub(super) fn next_char(&mut self) -> Option<char> {
        let c = self.rest().chars().next()?;
        self.at += c.len_utf8();
        Some(c)
    }

    pub(super) fn error(&self, kind: PatternErrorKind, span: Range<usize>) -> PatternError {
        PatternError::new(kind, self.source, span)
    }

    /// Returns an error about the text since `start`.
    pub fn error_since(&self, kind: PatternErrorKind, start: usize) -> PatternError {
        self.error(kind, start..self.at)
    }

    pub(super) fn note(&mut self, kind: ConstructKind, start: usize) {
        self.ast.constructs.push(PatternConstruct { kind, span: start..self.at });
    }

    /// Reads up to the next operator.
    fn plain_text(&mut self) -> Result<(), PatternError> {
        let rest = self.rest();
        let length = rest.find(is_operator).unwrap_or(rest.len());
        self.push_text(&rest[..length])
    }

    /// Reads literal text. Its last character becomes a node of its own, since a repetition that
    /// follows, perhaps after a change of flags, applies only to that character.
    pub fn push_text(&mut self, text: &str) -> Result<(), PatternError> {
        let Some((last, _)) = text.char_indices().next_back() else { return Ok(()) };
        let (start, tail) = text.split_at(last);
        for part in [start, tail] {
            let from = self.at;
            self.at += part.len();
            if !part.is_empty() {
                self.push_literal(part, from)?;
            }
        }
        Ok(())
    }
}

/// Returns whether a character has a special meaning outside of brackets.
pub fn is_operator(c: char) -> bool {
    matches!(c, '(' | ')' | '|' | '^' | '$' | '.' | '[' | '*' | '+' | '?' | '{' | '\\')
}

impl PatternParser<'_> {
    fn open_group(&mut self) -> Result<(), PatternError> {
        let open = self.at;
        let flags = self.flags;
        let rest = self.rest();
        if !rest.starts_with("(?") {
            self.at += 1;
            self.enter(open, true, flags);
        } else if rest.starts_with("(?<") && rest.len() > 3 {
            self.group_name(3)?;
            self.enter(open, true, flags);
        } else if rest.starts_with("(?P<") && rest.len() > 4 {
            self.group_name(4)?;
            self.enter(open, true, flags);
        } else {
            self.at += 2;
            let (inner, group) = self.read_flags(open)?;
            if group {
                self.enter(open, false, flags);
            }
            self.flags = inner;
        }
        Ok(())
    }

    fn enter(&mut self, open: usize, capture: bool, flags: PatternFlags) {
        let base = self.stack.len();
        let group = OpenGroup { open, capture, flags, alternatives: base, parts: base };
        self.outer.push(std::mem::replace(&mut self.group, group));
    }

    fn group_name(&mut self, prefix: usize) -> Result<(), PatternError> {
        let open = self.at;
        let rest = self.rest();
        let Some(end) = rest.find('>') else {
            self.at = self.source.len();
            return Err(self.error_since(PatternErrorKind::NamedCapture, open));
        };
        self.at += end + 1;
        let name = &rest[prefix..end];
        if name.is_empty() || !name.bytes().all(|b| b == b'_' || b.is_ascii_alphanumeric()) {
            return Err(self.error_since(PatternErrorKind::NamedCapture, open));
        }
        self.note(ConstructKind::NamedGroup, open);
        Ok(())
    }

    /// Reads the flags after `(?`, and returns whether they begin a group.
    fn read_flags(&mut self, open: usize) -> Result<(PatternFlags, bool), PatternError> {
        let mut flags = self.flags;
        let mut value = true;
        let mut any = false;
        while let Some(c) = self.next_char() {
            match c {
                'i' => flags.ignore_case = value,
                'm' => flags.multi_line = value,
                's' => flags.dot_newline = value,
                // Swaps greedy and lazy, which changes the match but not whether there is one.
                'U' => {}
                '-' if value => {
                    value = false;
                    any = false;
                    continue;
                }
                ':' | ')' if value || any => {
                    let plain = self.at - open == "(?:".len();
                    if !plain {
                        self.note(ConstructKind::Flags, open);
                    } else if c == ':' {
                        self.note(ConstructKind::PlainGroup, open);
                    }
                    return Ok((flags, c == ':'));
                }
                _ => break,
            }
            any = true;
        }
        Err(self.error_since(PatternErrorKind::PerlSyntax, open))
    }

    fn close_group(&mut self) -> Result<(), PatternError> {
        self.end_alternative()?;
        let inner = self.alternation()?;
        let Some(outer) = self.outer.pop() else {
            return Err(self.error(PatternErrorKind::UnexpectedParenthesis, self.at..self.at + 1));
        };
        self.at += 1;
        let group = std::mem::replace(&mut self.group, outer);
        self.flags = group.flags;
        let node = self.ast.nodes[inner.index()];
        if !group.capture {
            self.join_literals();
            self.stack.push(inner);
            return Ok(());
        }
        self.push(AstNode {
            kind: AstKind::Capture(inner),
            start: Self::position(group.open),
            end: Self::position(self.at),
            size: node.size.saturating_add(2),
            height: node.height + 1,
            ..node
        })
    }
}

/// Maximum repeat count, and maximum product of nested counts.
const MAX_REPEAT: u32 = 1000;

#[derive(Clone, Copy)]
enum Repetition {
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

impl PatternParser<'_> {
    fn repeat(
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
        let edges = MatchEdges {
            text_start: inner.edges.text_start && min > 0,
            text_end: inner.edges.text_end && min > 0,
            zero_width: inner.edges.zero_width || max == Some(0),
        };
        let node = AstNode {
            kind: AstKind::Repeat { operand, min, max },
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

    /// Reads `{2}`, `{2,}` or `{2,5}`; any other brace is a literal.
    fn counts(&mut self) -> Result<Option<(u16, Option<u16>)>, PatternError> {
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

/// Reads `{2}`, `{2,}` or `{2,5}` at the start of a text. Returns the minimum, the maximum (`None` if
/// unbounded) and the length in bytes with braces; `None` if the brace is a literal.
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
    // A number too large to parse exceeds the limit as well.
    (plain && !leading_zero).then(|| digits.parse().unwrap_or(u32::MAX))
}
