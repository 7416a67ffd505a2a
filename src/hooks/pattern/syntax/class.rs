//! Bracket expressions and the classes that have names.

use super::ast::{ClassItem, ConstructKind, Ranges};
use super::parser::Parser;
use crate::hooks::pattern::error::{PatternError, PatternErrorKind};

impl Parser<'_> {
    /// Reads a bracket expression, `[…]`.
    pub(super) fn brackets(&mut self) -> Result<(), PatternError> {
        let open = self.at;
        let items = self.ast.items.len();
        self.at += 1;
        let negated = self.peek() == Some(b'^');
        if negated {
            self.at += 1;
        }
        // A ] that comes first stands for itself.
        let mut first = true;
        while first || self.peek() != Some(b']') {
            first = false;
            let item = self.bracket_item(open)?;
            self.ast.items.push(item);
        }
        self.at += 1;

        // `[.]` is how many write a literal dot.
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
            && let Some(item) = self.named_class()?
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
            let point = self.escaped_point()?;
            self.note(ConstructKind::BracketEscape, start);
            return Ok(point);
        }
        match self.next_char() {
            Some(c) => Ok(c.into()),
            None => Err(self.error_since(PatternErrorKind::MissingBracket, open)),
        }
    }

    /// Reads `[:alpha:]` inside of brackets; without `:]` anywhere it is no class.
    fn named_class(&mut self) -> Result<Option<ClassItem>, PatternError> {
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

const DIGIT: &Ranges = &[(0x30, 0x39)];
const WORD: &Ranges = &[(0x30, 0x39), (0x41, 0x5a), (0x5f, 0x5f), (0x61, 0x7a)];

/// Returns the class of `\d`, `\s` and the like: ASCII only, and `\s` without vertical tab.
pub(super) fn perl_class(letter: u8) -> Option<ClassItem> {
    let members: &Ranges = match letter.to_ascii_lowercase() {
        b'd' => DIGIT,
        b's' => &[(0x09, 0x0a), (0x0c, 0x0d), (0x20, 0x20)],
        b'w' => WORD,
        _ => return None,
    };
    Some(ClassItem::Named { members, negated: letter.is_ascii_uppercase() })
}

fn posix_class(name: &str) -> Option<&'static Ranges> {
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
