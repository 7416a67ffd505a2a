//! Analyses of the tree before compilation: whether the pattern can match, and how many states its
//! non-ASCII characters take.

use super::ast::{Ast, AstKind, CharacterClass, ClassItem, NodeId};

/// Properties of a part of a pattern.
#[derive(Clone, Copy, Default)]
struct PartFacts {
    /// The part takes at least one character.
    takes_text: bool,
    /// No text matches the part.
    dead: bool,
}

impl Ast {
    /// Returns whether the pattern requires text before the start of the text or after its end, and
    /// so matches nothing. There are other ways to match nothing; this is the common mistake.
    #[must_use]
    pub fn matches_nothing(&self) -> bool {
        // Children come before their parents.
        let mut facts: Vec<PartFacts> = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let of = |id: NodeId| facts.get(id.index()).copied().unwrap_or_default();
            let node_facts = match node.kind {
                AstKind::Empty | AstKind::Assertion(_) => PartFacts::default(),
                AstKind::Literal { start, end, .. } => {
                    PartFacts { takes_text: start < end, dead: false }
                }
                AstKind::Class(_) | AstKind::AnyCharacter | AstKind::AnyExceptNewline => {
                    PartFacts { takes_text: true, dead: false }
                }
                AstKind::Capture(operand) => of(operand),
                AstKind::Repeat { operand, min, .. } => {
                    let operand = of(operand);
                    let needed = min > 0;
                    PartFacts {
                        takes_text: operand.takes_text && needed,
                        dead: operand.dead && needed,
                    }
                }
                AstKind::Alternation { start, end } => {
                    let operands = self.operands(start, end);
                    PartFacts {
                        takes_text: operands.iter().all(|&id| of(id).takes_text),
                        dead: operands.iter().all(|&id| of(id).dead),
                    }
                }
                AstKind::Concatenation { start, end } => {
                    self.sequence(self.operands(start, end), of)
                }
            };
            facts.push(node_facts);
        }
        facts.get(self.root().index()).is_some_and(|root| root.dead)
    }

    fn sequence(&self, operands: &[NodeId], of: impl Fn(NodeId) -> PartFacts) -> PartFacts {
        let mut whole = PartFacts::default();
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

/// Maximum number of states for non-ASCII characters, whose compilation takes about 350 MB and a second. Go
/// counts a class as one instruction, regardless of its content. Over UTF-8, `\pL` takes 300
/// states: patterns within Go's limits could take many gigabytes.
const MAX_STATES: u64 = 1 << 20;
/// Maximum number of states of a property, with or without case folding.
const PROPERTY_STATES: u64 = 340;
/// Number of states of `.`, and additional states of a negated class.
const ANY_STATES: u64 = 8;
/// Maximum number of states of a range.
const RANGE_STATES: u64 = 14;

impl Ast {
    /// Returns whether the pattern takes too many states for non-ASCII characters.
    pub(super) fn is_too_wide(&self) -> bool {
        let size = u64::from(self.nodes[self.root.index()].size);
        // Few classes take more states than a property, and these have many items.
        let items = self.items.len() as u64;
        size.saturating_mul(PROPERTY_STATES + items * RANGE_STATES) > MAX_STATES
            && self.wide_states() > MAX_STATES
    }

    fn wide_states(&self) -> u64 {
        // Children come before their parents.
        let mut states: Vec<u64> = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let of = |id: NodeId| states[id.index()];
            states.push(match node.kind {
                AstKind::Empty | AstKind::Assertion(_) => 0,
                AstKind::Literal { start, end, ignore_case } => {
                    let wide = self.text(start, end).chars().filter(|c| !c.is_ascii());
                    let states =
                        |c: char| if ignore_case { RANGE_STATES } else { c.len_utf8() as u64 };
                    wide.map(states).sum()
                }
                AstKind::Class(index) => self.class_states(&self.classes[index as usize]),
                AstKind::AnyCharacter | AstKind::AnyExceptNewline => ANY_STATES,
                AstKind::Capture(operand) => of(operand),
                AstKind::Repeat { operand, min, max } => {
                    of(operand).saturating_mul(max.unwrap_or(min).max(1).into())
                }
                AstKind::Concatenation { start, end } | AstKind::Alternation { start, end } => {
                    self.operands(start, end).iter().fold(0, |sum, &id| of(id).saturating_add(sum))
                }
            });
        }
        states[self.root.index()]
    }

    fn class_states(&self, class: &CharacterClass) -> u64 {
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
    fn patterns_that_need_text_beyond_the_ends_never_match() {
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
    fn classes_are_measured_by_their_members() {
        for piece in [r"\pL", r"\PL", r"[^\PN]", "(?i:[a-zà-ý])", ".", r"[^\n]", r"\D"] {
            let repeated = |count| format!("(?:{}){{1000}}", piece.repeat(count));
            assert!(parse(&repeated(2)).is_ok(), "{piece}");
            let error = parse(&repeated(140)).expect_err(piece);
            assert_eq!(error.kind(), PatternErrorKind::TooLarge, "{piece}");
        }
        for (piece, count) in
            [(r"\pL{1000}", 3), (".{1000}", 130), ("[^/]{1000}", 60), ("é", 250_000)]
        {
            assert!(parse(&piece.repeat(count)).is_ok(), "{piece}");
        }
        assert!(parse(&format!("(?:{}){{1000}}", r"\d[\w-]a".repeat(1000))).is_ok());
    }
}
