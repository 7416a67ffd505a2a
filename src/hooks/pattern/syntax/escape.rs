//! Escapes and character classes.

use super::ast::{Assertion, ClassItem, CodePointRanges, ConstructKind};
use super::parser::PatternParser;
use super::property::UnicodeProperty;
use crate::hooks::pattern::error::{PatternError, PatternErrorKind};

impl PatternParser<'_> {
    /// Reads a backslash outside of brackets.
    pub fn backslash(&mut self) -> Result<(), PatternError> {
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
                let point = self.read_escaped_point()?;
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

    /// Pushes one code point as a literal. A surrogate, which no text contains, becomes a class.
    fn push_point(&mut self, point: u32, start: usize) -> Result<(), PatternError> {
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

    /// Reads `\pL` or `\p{Greek}`, in or outside of brackets.
    fn property(&mut self) -> Result<ClassItem, PatternError> {
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
        match UnicodeProperty::find(name) {
            Some(property) => Ok(ClassItem::Property { property, negated }),
            None => Err(self.error_since(PatternErrorKind::CharacterRange, start)),
        }
    }

    /// Reads an escape of one code point, in or outside of brackets.
    fn read_escaped_point(&mut self) -> Result<u32, PatternError> {
        let start = self.at;
        self.at += 1;
        let Some(c) = self.next_char() else {
            return Err(self.error_since(PatternErrorKind::TrailingBackslash, start));
        };
        let point = match c {
            // A single digit other than zero would be a backreference.
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

    /// Reads `2f` or `{10ffff}` after `\x`; on failure, the error shows the part that was read.
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

impl PatternParser<'_> {
    /// Reads a bracket expression, `[…]`.
    pub fn brackets(&mut self) -> Result<(), PatternError> {
        let open = self.at;
        let items = self.ast.items.len();
        self.at += 1;
        let negated = self.peek() == Some(b'^');
        if negated {
            self.at += 1;
        }
        // A leading ] stands for itself.
        let mut first = true;
        while first || self.peek() != Some(b']') {
            first = false;
            let item = self.bracket_item(open)?;
            self.ast.items.push(item);
        }
        self.at += 1;

        // `[.]` is a common way to write a literal dot.
        if let [ClassItem::Range(low, high)] = self.ast.items[items..]
            && low == high
            && !negated
            && !self.flags.ignore_case
        {
            self.ast.items.pop();
            return self.push_point(low, open);
        }
        self.push_class(items, negated, open)
    }

    fn bracket_item(&mut self, open: usize) -> Result<ClassItem, PatternError> {
        let start = self.at;
        let rest = self.rest().as_bytes();
        if rest.starts_with(b"[:")
            && let Some(item) = self.read_named_class()?
        {
            return Ok(item);
        }
        if let [b'\\', letter, ..] = rest {
            if matches!(letter, b'p' | b'P') {
                let item = self.property()?;
                self.note(ConstructKind::BracketEscape, start);
                return Ok(item);
            }
            if let Some(item) = perl_class(*letter) {
                self.at += 2;
                self.note(ConstructKind::BracketEscape, start);
                return Ok(item);
            }
        }
        let low = self.bracket_point(open)?;
        let mut high = low;
        // In `[a-]` the hyphen stands for itself.
        if let [b'-', next, ..] = self.rest().as_bytes()
            && *next != b']'
        {
            self.at += 1;
            high = self.bracket_point(open)?;
            if high < low {
                return Err(self.error_since(PatternErrorKind::CharacterRange, start));
            }
        }
        Ok(ClassItem::Range(low, high))
    }

    fn bracket_point(&mut self, open: usize) -> Result<u32, PatternError> {
        let start = self.at;
        if self.peek() == Some(b'\\') {
            let point = self.read_escaped_point()?;
            self.note(ConstructKind::BracketEscape, start);
            return Ok(point);
        }
        match self.next_char() {
            Some(c) => Ok(c.into()),
            None => Err(self.error_since(PatternErrorKind::MissingBracket, open)),
        }
    }

    /// Reads a class such as `[:alpha:]` inside brackets; `None` if no `:]` follows.
    fn read_named_class(&mut self) -> Result<Option<ClassItem>, PatternError> {
        let start = self.at;
        if self.no_class_ahead {
            return Ok(None);
        }
        let Some((name, _)) = self.rest()[2..].split_once(":]") else {
            self.no_class_ahead = true;
            return Ok(None);
        };
        self.at += name.len() + 4;
        let (name, negated) = match name.strip_prefix('^') {
            Some(name) => (name, true),
            None => (name, false),
        };
        match posix_class(name) {
            Some(members) => Ok(Some(ClassItem::Named { members, negated })),
            None => Err(self.error_since(PatternErrorKind::CharacterRange, start)),
        }
    }
}

const DIGIT: &CodePointRanges = &[(0x30, 0x39)];
const WORD: &CodePointRanges = &[(0x30, 0x39), (0x41, 0x5a), (0x5f, 0x5f), (0x61, 0x7a)];

/// Returns the class of `\d`, `\s` and the like: ASCII only, and `\s` without vertical tab.
fn perl_class(letter: u8) -> Option<ClassItem> {
    let members: &CodePointRanges = match letter.to_ascii_lowercase() {
        b'd' => DIGIT,
        b's' => &[(0x09, 0x0a), (0x0c, 0x0d), (0x20, 0x20)],
        b'w' => WORD,
        _ => return None,
    };
    Some(ClassItem::Named { members, negated: letter.is_ascii_uppercase() })
}

fn posix_class(name: &str) -> Option<&'static CodePointRanges> {
    Some(match name {
        "alnum" => &[(0x30, 0x39), (0x41, 0x5a), (0x61, 0x7a)],
        "alpha" => &[(0x41, 0x5a), (0x61, 0x7a)],
        "ascii" => &[(0x00, 0x7f)],
        "blank" => &[(0x09, 0x09), (0x20, 0x20)],
        "cntrl" => &[(0x00, 0x1f), (0x7f, 0x7f)],
        "digit" => DIGIT,
        "graph" => &[(0x21, 0x7e)],
        "lower" => &[(0x61, 0x7a)],
        "print" => &[(0x20, 0x7e)],
        "punct" => &[(0x21, 0x2f), (0x3a, 0x40), (0x5b, 0x60), (0x7b, 0x7e)],
        "space" => &[(0x09, 0x0d), (0x20, 0x20)],
        "upper" => &[(0x41, 0x5a)],
        "word" => WORD,
        "xdigit" => &[(0x30, 0x39), (0x41, 0x46), (0x61, 0x66)],
        _ => return None,
    })
}
