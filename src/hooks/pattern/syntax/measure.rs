//! What a tree tells without being compiled: whether it matches any text, and how much its characters beyond ASCII take.

use super::ast::{Ast, Class, ClassItem, Kind, NodeId};

/// What is known of a part of a pattern.
#[derive(Clone, Copy, Default)]
struct Facts {
    /// It takes at least one character.
    takes_text: bool,
    /// No text can match it.
    dead: bool,
}

impl Ast {
    /// Returns whether the pattern asks for text before the start of the text or after its end, and
    /// so matches nothing. There are other ways to match nothing; this is the one people meet.
    #[must_use]
    pub fn matches_nothing(&self) -> bool {
        // Parts come before what they are part of.
        let mut facts: Vec<Facts> = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let of = |id: NodeId| facts.get(id.index()).copied().unwrap_or_default();
            let node_facts = match node.kind {
                Kind::Empty | Kind::Assertion(_) => Facts::default(),
                Kind::Literal { start, end, .. } => Facts { takes_text: start < end, dead: false },
                Kind::Class(_) | Kind::AnyCharacter | Kind::AnyExceptNewline => {
                    Facts { takes_text: true, dead: false }
                }
                Kind::Capture(operand) => of(operand),
                Kind::Repeat { operand, min, .. } => {
                    let operand = of(operand);
                    let needed = min > 0;
                    Facts { takes_text: operand.takes_text && needed, dead: operand.dead && needed }
                }
                Kind::Alternation { start, end } => {
                    let operands = self.operands(start, end);
                    Facts {
                        takes_text: operands.iter().all(|&id| of(id).takes_text),
                        dead: operands.iter().all(|&id| of(id).dead),
                    }
                }
                Kind::Concatenation { start, end } => self.sequence(self.operands(start, end), of),
            };
            facts.push(node_facts);
        }
        facts.get(self.root().index()).is_some_and(|root| root.dead)
    }

    fn sequence(&self, operands: &[NodeId], of: impl Fn(NodeId) -> Facts) -> Facts {
        let mut whole = Facts::default();
        let mut at_end = false;
        for &id in operands {
            let (part, edges) = (of(id), self.edges(id));
            whole.dead |=
                part.dead || (whole.takes_text && edges.text_start) || (at_end && part.takes_text);
            whole.takes_text |= part.takes_text;
            at_end |= edges.text_end;
        }
        whole
    }
}

/// Greatest number of states for characters beyond ASCII: about 150 MB while they are compiled. Go counts a class as one
/// instruction, whatever is in it. Over UTF-8, `\pL` takes 300 states: what Go's limits let through could take many
/// gigabytes.
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
    fn text_beyond_the_ends_is_noticed() {
        for pattern in ["a^", "$a", "^$5$", "x(^a|^b)", "(a$)b", "a+\\A", "$a|b^"] {
            assert!(parse(pattern).unwrap().matches_nothing(), "{pattern}");
        }
    }

    #[test]
    fn other_patterns_can_match() {
        for pattern in [
            "",
            "^$",
            "^^a$$",
            "a*^",
            "$b?",
            "(^|/)a($|/)",
            "x(^a|b)",
            "a(^b)?",
            "(?m)a$^b",
            "$^",
            "a|b^",
            "(a$)?b",
            "\\^a",
            ".*",
        ] {
            assert!(!parse(pattern).unwrap().matches_nothing(), "{pattern}");
        }
    }

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
