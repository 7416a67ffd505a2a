//! Groups, and the flags that may open them.

use super::ast::{ConstructKind, Kind, Node};
use super::parser::{Flags, Group, Parser};
use crate::hooks::pattern::error::{PatternError, PatternErrorKind};

impl Parser<'_> {
    pub(super) fn open_group(&mut self) -> Result<(), PatternError> {
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

    fn enter(&mut self, open: usize, capture: bool, flags: Flags) {
        let base = self.stack.len();
        let group = Group { open, capture, flags, alternatives: base, parts: base };
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

    /// Reads the flags after `(?`, and returns whether they are a group's.
    fn read_flags(&mut self, open: usize) -> Result<(Flags, bool), PatternError> {
        let mut flags = self.flags;
        let mut value = true;
        let mut any = false;
        while let Some(c) = self.next_char() {
            match c {
                'i' => flags.ignore_case = value,
                'm' => flags.multi_line = value,
                's' => flags.dot_newline = value,
                // Swaps greedy and lazy, which finds another match but never none.
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

    pub(super) fn close_group(&mut self) -> Result<(), PatternError> {
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
        self.push(Node {
            kind: Kind::Capture(inner),
            start: Self::position(group.open),
            end: Self::position(self.at),
            size: node.size.saturating_add(2),
            height: node.height + 1,
            ..node
        })
    }
}
