//! How much characters beyond ASCII add to a pattern.
//!
//! Go counts a class as one instruction, whatever is in it. Over UTF-8, `\pL` takes 300 states: what
//! Go's limits let through could take many gigabytes.

use super::ast::{Ast, Class, ClassItem, Kind, NodeId};

/// Greatest number of states for characters beyond ASCII: about 150 MB while they are compiled.
const MAX_STATES: u64 = 1 << 20;
/// At most what a property takes, in any case or none.
const PROPERTY_STATES: u64 = 340;
/// What any character takes, or any but a few.
const ANY_STATES: u64 = 16;
/// At most what a range takes.
const RANGE_STATES: u64 = 14;

impl Ast {
    /// Returns whether the pattern takes too many states for characters beyond ASCII.
    pub(super) fn is_too_wide(&self) -> bool {
        let size = u64::from(self.nodes[self.root.index()].size);
        // Few classes have more ranges than a property, and they are long themselves.
        let items = self.items.len() as u64;
        size.saturating_mul(PROPERTY_STATES + items * RANGE_STATES) > MAX_STATES
            && self.wide_states() > MAX_STATES
    }

    fn wide_states(&self) -> u64 {
        // Parts come before what they are part of.
        let mut states: Vec<u64> = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let of = |id: NodeId| states[id.index()];
            states.push(match node.kind {
                Kind::Empty | Kind::Assertion(_) => 0,
                Kind::Literal { start, end, .. } => {
                    let wide = self.text(start, end).chars().filter(|c| !c.is_ascii()).count();
                    wide as u64 * RANGE_STATES
                }
                Kind::Class(index) => self.class_states(&self.classes[index as usize]),
                Kind::AnyCharacter | Kind::AnyExceptNewline => ANY_STATES,
                Kind::Capture(operand) => of(operand),
                Kind::Repeat { operand, min, max } => {
                    of(operand).saturating_mul(max.unwrap_or(min).max(1).into())
                }
                Kind::Concatenation { start, end } | Kind::Alternation { start, end } => {
                    self.operands(start, end).iter().fold(0, |sum, &id| of(id).saturating_add(sum))
                }
            });
        }
        states[self.root.index()]
    }

    fn class_states(&self, class: &Class) -> u64 {
        let states = |item: &ClassItem| match *item {
            ClassItem::Range(_, high) if high < 0x80 => 0,
            ClassItem::Range(..) => RANGE_STATES,
            ClassItem::Named { negated, .. } => {
                if negated {
                    ANY_STATES
                } else {
                    0
                }
            }
            ClassItem::Property { .. } => PROPERTY_STATES,
        };
        let any = if class.negated { ANY_STATES } else { 0 };
        self.items(class).iter().map(states).sum::<u64>() + any
    }
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use crate::hooks::pattern::PatternErrorKind;

    #[test]
    fn classes_count_by_what_they_take() {
        for piece in [r"\pL", r"\PL", r"[^\PN]", "(?i:[a-zà-ý])", ".", r"[^\n]", r"\D"] {
            let repeated = |count| format!("(?:{}){{1000}}", piece.repeat(count));
            assert!(parse(&repeated(2)).is_ok(), "{piece}");
            let error = parse(&repeated(100)).expect_err(piece);
            assert_eq!(error.kind(), PatternErrorKind::TooLarge, "{piece}");
        }
        assert!(parse(&format!("(?:{}){{1000}}", r"\d[\w-]a".repeat(1000))).is_ok());
    }
}
