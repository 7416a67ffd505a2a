//! The parser proper: operators, groups, repetition.
//!
//! The order of the checks is Go's, so that a pattern with two faults is rejected for the same one.

use std::ops::Range;

use super::ast::{Assertion, Ast, Construct, ConstructKind, Kind, NodeId};
use super::repetition::Repetition;
use crate::hooks::pattern::error::{PatternError, PatternErrorKind};

/// Parses a pattern.
///
/// # Errors
///
/// Rejects what Go's `regexp.Compile` rejects.
pub fn parse(pattern: &str) -> Result<Ast, PatternError> {
    Parser::new(pattern)?.parse()
}

pub(super) struct Parser<'p> {
    pub(super) source: &'p str,
    /// The next byte to read.
    pub(super) at: usize,
    pub(super) flags: Flags,
    pub(super) ast: Ast,
    /// No `:]` is ahead: a search for one found none, and need not be made again.
    pub(super) no_class_ahead: bool,
    /// Of each open group: its finished alternatives, then the parts of the one being read.
    pub(super) stack: Vec<NodeId>,
    /// The open groups around the innermost.
    pub(super) outer: Vec<Group>,
    pub(super) group: Group,
}

#[derive(Clone, Copy)]
pub(super) struct Flags {
    pub(super) ignore_case: bool,
    pub(super) multi_line: bool,
    pub(super) dot_newline: bool,
}

pub(super) struct Group {
    /// Where it opens in the pattern.
    pub(super) open: usize,
    pub(super) capture: bool,
    /// The flags outside of it.
    pub(super) flags: Flags,
    /// Where its finished alternatives begin on the stack.
    pub(super) alternatives: usize,
    /// Where the parts of the alternative being read begin on the stack.
    pub(super) parts: usize,
}

impl<'p> Parser<'p> {
    pub(super) fn new(source: &'p str) -> Result<Self, PatternError> {
        if u32::try_from(source.len()).is_err() {
            return Err(PatternError::new(PatternErrorKind::TooLarge, source, 0..source.len()));
        }
        let flags = Flags { ignore_case: false, multi_line: false, dot_newline: false };
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
            group: Group { open: 0, capture: false, flags, alternatives: 0, parts: 0 },
        })
    }

    pub(super) fn parse(mut self) -> Result<Ast, PatternError> {
        // Where the repetition operator begins that was read last, if nothing followed it yet.
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
                        Kind::AnyCharacter
                    } else {
                        Kind::AnyExceptNewline
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

    /// An error about what was read since `start`.
    pub(super) fn error_since(&self, kind: PatternErrorKind, start: usize) -> PatternError {
        self.error(kind, start..self.at)
    }

    pub(super) fn note(&mut self, kind: ConstructKind, start: usize) {
        self.ast.constructs.push(Construct { kind, span: start..self.at });
    }

    /// Reads up to the next operator.
    fn plain_text(&mut self) -> Result<(), PatternError> {
        let rest = self.rest();
        let length = rest.find(is_operator).unwrap_or(rest.len());
        self.push_text(&rest[..length])
    }

    /// Reads text that stands for itself: its last character apart, as a repetition that follows,
    /// perhaps behind a change of flags, takes only that.
    pub(super) fn push_text(&mut self, text: &str) -> Result<(), PatternError> {
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

/// Returns whether a character means something else than itself outside of brackets.
pub(in super::super) fn is_operator(c: char) -> bool {
    matches!(c, '(' | ')' | '|' | '^' | '$' | '.' | '[' | '*' | '+' | '?' | '{' | '\\')
}
