//! What a backslash begins.

use super::ast::{Assertion, ClassItem, ConstructKind};
use super::class::perl_class;
use super::parser::Parser;
use super::property::Property;
use crate::hooks::pattern::error::{PatternError, PatternErrorKind};

impl Parser<'_> {
    /// Reads a backslash outside of brackets.
    pub(super) fn backslash(&mut self) -> Result<(), PatternError> {
        let start = self.at;
        let items = self.ast.items.len();
        match self.source.as_bytes().get(start + 1) {
            Some(b'A') => self.boundary(Assertion::TextStart, ConstructKind::TextAnchor),
            Some(b'z') => self.boundary(Assertion::TextEnd, ConstructKind::TextAnchor),
            Some(b'b') => self.boundary(Assertion::WordBoundary, ConstructKind::WordBoundary),
            Some(b'B') => self.boundary(Assertion::NoWordBoundary, ConstructKind::WordBoundary),
            Some(b'C') => Err(self.error(PatternErrorKind::Escape, start..start + 2)),
            Some(b'Q') => self.quotation(),
            Some(b'p' | b'P') => {
                let item = self.property()?;
                self.note(ConstructKind::UnicodeClass, start);
                self.ast.items.push(item);
                self.push_class(items, false, start)
            }
            next => {
                if let Some(item) = next.and_then(|letter| perl_class(*letter)) {
                    self.at += 2;
                    self.note(ConstructKind::PerlClass, start);
                    self.ast.items.push(item);
                    return self.push_class(items, false, start);
                }
                let construct = match next {
                    Some(b'<' | b'>' | b'`' | b'\'') => Some(ConstructKind::GnuBoundary),
                    Some(b) if b.is_ascii_alphanumeric() => Some(ConstructKind::CharacterEscape),
                    _ => None,
                };
                let point = self.escaped_point()?;
                if let Some(construct) = construct {
                    self.note(construct, start);
                }
                self.push_point(point, start)
            }
        }
    }

    fn boundary(&mut self, kind: Assertion, note: ConstructKind) -> Result<(), PatternError> {
        let start = self.at;
        self.push_assertion(kind, 2)?;
        self.note(note, start);
        Ok(())
    }

    /// Pushes one code point; a surrogate, which no text holds, as a class.
    pub(super) fn push_point(&mut self, point: u32, start: usize) -> Result<(), PatternError> {
        if let Some(c) = char::from_u32(point) {
            self.push_literal(c.encode_utf8(&mut [0; 4]), start)
        } else {
            let items = self.ast.items.len();
            self.ast.items.push(ClassItem::Range(point, point));
            self.push_class(items, false, start)
        }
    }

    fn quotation(&mut self) -> Result<(), PatternError> {
        let start = self.at;
        let rest = &self.rest()[2..];
        let (quoted, length) = match rest.split_once("\\E") {
            Some((quoted, _)) => (quoted, quoted.len() + 4),
            None => (rest, rest.len() + 2),
        };
        self.at += 2;
        self.push_text(quoted)?;
        self.at = start + length;
        self.note(ConstructKind::Quotation, start);
        Ok(())
    }

    /// Reads `\pL` or `\p{Greek}`, also inside of brackets.
    pub(super) fn property(&mut self) -> Result<ClassItem, PatternError> {
        let start = self.at;
        let mut negated = self.source.as_bytes().get(start + 1) == Some(&b'P');
        self.at += 2;
        let rest = self.rest();
        let mut name = match rest.chars().next() {
            Some('{') => {
                let Some(end) = rest.find('}') else {
                    self.at = self.source.len();
                    return Err(self.error_since(PatternErrorKind::CharacterRange, start));
                };
                self.at += end + 1;
                &rest[1..end]
            }
            Some(letter) => {
                self.at += letter.len_utf8();
                &rest[..letter.len_utf8()]
            }
            None => "",
        };
        if let Some(opposite) = name.strip_prefix('^') {
            name = opposite;
            negated = !negated;
        }
        match Property::find(name) {
            Some(property) => Ok(ClassItem::Property { property, negated }),
            None => Err(self.error_since(PatternErrorKind::CharacterRange, start)),
        }
    }

    /// Reads an escape that stands for one code point, also inside of brackets.
    pub(super) fn escaped_point(&mut self) -> Result<u32, PatternError> {
        let start = self.at;
        self.at += 1;
        let Some(c) = self.next_char() else {
            return Err(self.error_since(PatternErrorKind::TrailingBackslash, start));
        };
        let point = match c {
            // A single digit but zero would be a backreference.
            '1'..='7' if !matches!(self.peek(), Some(b'0'..=b'7')) => None,
            '0'..='7' => Some(self.octal(c)),
            'x' => self.hexadecimal(),
            'a' => Some(0x07),
            'f' => Some(0x0c),
            'n' => Some(0x0a),
            'r' => Some(0x0d),
            't' => Some(0x09),
            'v' => Some(0x0b),
            c if c.is_ascii() && !c.is_ascii_alphanumeric() => Some(c.into()),
            _ => None,
        };
        point.ok_or_else(|| self.error_since(PatternErrorKind::Escape, start))
    }

    /// Reads up to two more octal digits.
    fn octal(&mut self, first: char) -> u32 {
        let mut point = u32::from(first) - u32::from('0');
        for _ in 0..2 {
            let Some(digit @ b'0'..=b'7') = self.peek() else { break };
            point = point * 8 + u32::from(digit - b'0');
            self.at += 1;
        }
        point
    }

    /// Reads `2f` or `{10ffff}` after `\x`; on failure, what was read is the fragment to show.
    fn hexadecimal(&mut self) -> Option<u32> {
        let first = self.next_char()?;
        if first != '{' {
            let second = self.next_char();
            return Some(first.to_digit(16)? * 16 + second?.to_digit(16)?);
        }
        let mut point = None;
        loop {
            let c = self.next_char()?;
            if c == '}' {
                return point;
            }
            let value = point.unwrap_or(0) * 16 + c.to_digit(16)?;
            if value > u32::from(char::MAX) {
                return None;
            }
            point = Some(value);
        }
    }
}
