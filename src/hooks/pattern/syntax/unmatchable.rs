//! Patterns that no text can match.

use super::ast::{Ast, Kind, NodeId};

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

#[cfg(test)]
mod tests {
    use super::super::parse;

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
}
