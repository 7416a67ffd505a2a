//! From the syntax tree to instructions.

use super::program::Instruction;
use super::syntax::{Ast, Kind, NodeId};
use super::unicode;

/// Emits instructions from a list of work instead of by recursion: groups without capture nest
/// without limit.
pub(super) struct Compiler<'a> {
    ast: &'a Ast,
    instructions: Vec<Instruction>,
    /// What is still to be emitted, the next at the end.
    work: Vec<Work>,
    folds: bool,
}

enum Work {
    Node(NodeId),
    Copies(NodeId, u16),
    /// That many copies, each of which may end the repetition, and the chain of the splits before
    /// them that lead to its end.
    Optional(NodeId, u16, Chain),
    AtLeastOne(NodeId),
    /// The operands from `next` to `last`, with the split before the alternative that was emitted
    /// last, and the chain of the jumps behind those before it.
    NextAlternative {
        next: u32,
        last: u32,
        split: Chain,
        jumps: Chain,
    },
    Split(u32),
    Jump(u32),
    /// Lets the split there lead here.
    Land(u32),
    Nothing,
}

/// Splits or jumps that wait for their target, each naming the one before it.
type Chain = u32;
const END: Chain = u32::MAX;

impl<'a> Compiler<'a> {
    pub(super) fn new(ast: &'a Ast) -> Self {
        Self {
            ast,
            instructions: Vec::with_capacity(ast.size() + 1),
            work: vec![Work::Node(ast.root())],
            folds: false,
        }
    }

    /// Returns the instructions, and whether one of them ignores case.
    pub(super) fn run(mut self) -> (Vec<Instruction>, bool) {
        while let Some(work) = self.work.pop() {
            match work {
                Work::Node(node) => self.node(node),
                Work::Copies(_, 0) | Work::Nothing => {}
                Work::Copies(node, count) => {
                    self.work.extend([Work::Copies(node, count - 1), Work::Node(node)]);
                }
                Work::Optional(_, 0, chain) => self.land(chain),
                Work::Optional(node, count, chain) => {
                    let split = self.emit(Instruction::Split(chain));
                    self.work.extend([Work::Optional(node, count - 1, split), Work::Node(node)]);
                }
                Work::NextAlternative { next, last, split, jumps } => {
                    let jump = self.emit(Instruction::Jump(jumps));
                    self.land(split);
                    self.alternative(next, last, jump);
                }
                Work::AtLeastOne(node) => {
                    self.work.extend([Work::Split(self.here()), Work::Node(node)]);
                }
                Work::Split(target) => {
                    self.emit(Instruction::Split(target));
                }
                Work::Jump(target) => {
                    self.emit(Instruction::Jump(target));
                }
                Work::Land(split) => self.land(split),
            }
        }
        self.emit(Instruction::Match);
        (self.instructions, self.folds)
    }

    fn here(&self) -> u32 {
        u32::try_from(self.instructions.len()).expect("the parser limits the size")
    }

    fn emit(&mut self, instruction: Instruction) -> u32 {
        let here = self.here();
        self.instructions.push(instruction);
        here
    }

    fn land(&mut self, mut chain: Chain) {
        let here = self.here();
        while chain != END {
            if let Instruction::Split(target) | Instruction::Jump(target) =
                &mut self.instructions[chain as usize]
            {
                chain = std::mem::replace(target, here);
            }
        }
    }

    fn node(&mut self, id: NodeId) {
        match self.ast.kind(id) {
            Kind::Empty => {}
            Kind::Literal { start, end, ignore_case } => {
                self.folds |= ignore_case;
                let instruction = |c| match ignore_case {
                    true => Instruction::Folded(unicode::fold(c)),
                    false => Instruction::Character(c),
                };
                self.instructions.extend(self.ast.text(start, end).chars().map(instruction));
            }
            Kind::Class(index) => {
                self.emit(Instruction::Class(index));
            }
            Kind::AnyCharacter => {
                self.emit(Instruction::AnyCharacter);
            }
            Kind::AnyExceptNewline => {
                self.emit(Instruction::AnyExceptNewline);
            }
            Kind::Assertion(assertion) => {
                self.emit(Instruction::Assert(assertion));
            }
            Kind::Capture(inner) => self.work.push(Work::Node(inner)),
            Kind::Concatenation { start, end } => {
                let parts = self.ast.operands(start, end);
                self.work.extend(parts.iter().rev().map(|part| Work::Node(*part)));
            }
            Kind::Alternation { start, end } => self.alternative(start, end - 1, END),
            Kind::Repeat { operand, min, max: Some(max) } => {
                let optional = match max - min {
                    0 => Work::Nothing,
                    count => Work::Optional(operand, count, END),
                };
                self.work.extend([optional, Work::Copies(operand, min)]);
            }
            Kind::Repeat { operand, min: 0, max: None } => {
                let split = self.emit(Instruction::Split(END));
                self.work.extend([Work::Land(split), Work::Jump(split), Work::Node(operand)]);
            }
            Kind::Repeat { operand, min, max: None } => {
                self.work.extend([Work::AtLeastOne(operand), Work::Copies(operand, min - 1)]);
            }
        }
    }

    /// Emits the alternative `next` behind a split that leads to the one after it.
    fn alternative(&mut self, next: u32, last: u32, jumps: Chain) {
        let node = self.ast.operands(next, next + 1)[0];
        let after = if next == last {
            Work::Land(jumps)
        } else {
            let split = self.emit(Instruction::Split(END));
            Work::NextAlternative { next: next + 1, last, split, jumps }
        };
        self.work.extend([after, Work::Node(node)]);
    }
}

#[cfg(test)]
mod tests {
    use crate::hooks::Pattern;

    #[test]
    fn counts_match_as_often_as_they_say() {
        for body in ["a", "(?:b|a)", "(?:xy|a|)", "[ab]"] {
            let may_be_empty = body.contains("|)");
            for (operator, least, most) in [
                ("*", 0, usize::MAX),
                ("+", 1, usize::MAX),
                ("?", 0, 1),
                ("{0}", 0, 0),
                ("{1}", 1, 1),
                ("{3}", 3, 3),
                ("{0,}", 0, usize::MAX),
                ("{1,}", 1, usize::MAX),
                ("{3,}", 3, usize::MAX),
                ("{0,1}", 0, 1),
                ("{0,3}", 0, 3),
                ("{2,4}", 2, 4),
                ("{2,4}?", 2, 4),
            ] {
                let pattern = Pattern::new(format!("{body}{operator}")).unwrap();
                let least = if may_be_empty { 0 } else { least };
                for count in 0..6 {
                    let expected = (least..=most).contains(&count);
                    assert_eq!(pattern.is_full_match(&"a".repeat(count)), expected, "{pattern}");
                }
            }
        }
    }

    #[test]
    fn alternatives_are_all_tried() {
        let pattern = Pattern::new("^(?:a|bc||d(?:e|f|)|gh)$").unwrap();
        for text in ["a", "bc", "", "d", "de", "df", "gh"] {
            assert!(pattern.is_match(text), "{text}");
        }
        for text in ["b", "c", "e", "g", "abc", "dg"] {
            assert!(!pattern.is_match(text), "{text}");
        }
    }
}
