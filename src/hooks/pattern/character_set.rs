//! Sets of characters, as brackets and class names describe them.

use super::syntax::{Class, ClassItem};
use super::unicode::{self, Ranges};

/// A set that knows its ASCII members at once, and looks others up.
#[derive(Debug)]
pub(super) struct CharacterSet {
    /// A bit for each ASCII character in the set.
    ascii: u128,
    negated: bool,
    ignore_case: bool,
    ranges: Box<Ranges>,
    named: Box<[Named]>,
}

/// The members of a class with a name, or all others.
///
/// The tables are shared: a pattern with many such classes takes no more memory than its text.
#[derive(Clone, Copy, Debug)]
struct Named {
    members: &'static Ranges,
    negated: bool,
}

impl CharacterSet {
    pub(super) fn new(class: &Class, items: &[ClassItem]) -> Self {
        let mut ranges = Vec::new();
        let mut named = Vec::new();
        for item in items {
            match *item {
                ClassItem::Range(low, high) => ranges.push((low, high)),
                ClassItem::Named { members, negated } => named.push(Named { members, negated }),
                ClassItem::Property { property, negated } => {
                    named.push(Named { members: unicode::members(property), negated });
                }
            }
        }
        let ranges = merge(ranges);
        let ignore_case = class.ignore_case;
        let mut ascii = ascii_members(&ranges, ignore_case);
        for Named { members, negated } in &named {
            let members = ascii_members(members, ignore_case);
            ascii |= if *negated { !members } else { members };
        }
        if class.negated {
            ascii = !ascii;
        }
        Self {
            ascii,
            negated: class.negated,
            ignore_case,
            ranges: ranges.into(),
            named: named.into(),
        }
    }

    /// Returns a bit for each ASCII character in the set.
    pub(super) fn ascii(&self) -> u128 {
        self.ascii
    }

    pub(super) fn contains(&self, c: char) -> bool {
        if c.is_ascii() { self.ascii >> u32::from(c) & 1 == 1 } else { self.contains_other(c) }
    }

    fn contains_other(&self, c: char) -> bool {
        let listed = if self.ignore_case {
            let variants = unicode::case_variants(c);
            self.lists(|ranges| variants.clone().any(|c| unicode::contains(ranges, c.into())))
        } else {
            self.lists(|ranges| unicode::contains(ranges, c.into()))
        };
        listed != self.negated
    }

    fn lists(&self, contain: impl Fn(&Ranges) -> bool) -> bool {
        contain(&self.ranges)
            || self.named.iter().any(|named| contain(named.members) != named.negated)
    }
}

fn merge(mut ranges: Vec<(u32, u32)>) -> Vec<(u32, u32)> {
    ranges.sort_unstable();
    ranges.dedup_by(|next, last| {
        let touches = next.0 <= last.1.saturating_add(1);
        if touches {
            last.1 = last.1.max(next.1);
        }
        touches
    });
    ranges
}

fn ascii_members(ranges: &Ranges, ignore_case: bool) -> u128 {
    let mut members = 0;
    for &(low, high) in ranges.iter().take_while(|(low, _)| *low < 128) {
        members |= (u128::MAX >> (127 - high.min(127))) & (u128::MAX << low);
    }
    if ignore_case {
        const CAPITALS: u128 = ((1 << 26) - 1) << b'A';
        members |= (members & CAPITALS) << 32 | (members >> 32 & CAPITALS);
        // The only others that differ from an ASCII letter in nothing but case.
        for (other, letters) in
            [('\u{17f}', 1 << b'S' | 1 << b's'), ('\u{212a}', 1 << b'K' | 1 << b'k')]
        {
            if unicode::contains(ranges, other.into()) {
                members |= letters;
            }
        }
    }
    members
}

#[cfg(test)]
mod tests {
    use crate::hooks::Pattern;

    #[test]
    fn classes_hold_what_they_say() {
        for (class, members, others) in [
            ("[a-c]", "abc", "dA\u{e1}"),
            ("[^a-c]", "dé\n", "abc"),
            (r"[\w-]", "aZ_9-", "é "),
            (r"[^\W]", "a_", "é-"),
            (r"\W", "é \u{17f}", "a"),
            (r"(?i)\W", "é ", "a\u{17f}\u{212a}"),
            ("(?i)[k]", "kK\u{212a}", "j"),
            ("(?i)[^s]", "tß", "sS\u{17f}"),
            ("(?i)[[:lower:]]", "aZ\u{212a}", "1é"),
            (r"(?i)\p{Lu}", "aAéÉ", "1漢"),
            (r"(?i)\P{Lu}", "1漢", "aAéÉ"),
            (r"[\PL\d]", "1 ", "aé"),
            (r"[\x{d000}-\x{e000}]", "\u{d000}\u{e000}", "a\u{e001}"),
            (r"[\x{d800}]", "", "\u{fffd}a"),
            ("[]a]", "]a", "["),
            ("[a-]", "a-", "b"),
            ("[--/]", "-./", ",0"),
        ] {
            let pattern = Pattern::new(class).unwrap();
            let matches = |c: char| pattern.is_match(c.encode_utf8(&mut [0; 4]));
            assert!(members.chars().all(matches), "{class}");
            assert!(!others.chars().any(matches), "{class}");
        }
    }
}
