//! Compiled patterns: instructions over characters, run for all alternatives in step.
//!
//! This is Thompson's construction and simulation: the time for a text is at most the number of
//! its characters times the number of instructions. As only the fact of a match counts, there are
//! no priorities and no positions to carry along.

use std::cell::RefCell;

use super::character_set::CharacterSet;
use super::compiler::Compiler;
use super::syntax::{Assertion, Ast};
use super::unicode;

/// A pattern ready to run.
#[derive(Debug)]
pub(super) struct Program {
    instructions: Vec<Instruction>,
    classes: Vec<CharacterSet>,
    /// A match can only begin where the text begins.
    anchored: bool,
    /// A bit for each ASCII character with which a match may begin.
    starts: u128,
    /// Some literal or class ignores case.
    folds: bool,
}

/// What may be matched of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    Part,
    Whole,
}

/// Each goes on to the instruction after it unless it says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Instruction {
    Character(char),
    /// Any character that folds to this one.
    Folded(char),
    Class(u32),
    AnyCharacter,
    AnyExceptNewline,
    Assert(Assertion),
    /// Goes on to that instruction as well.
    Split(u32),
    /// Goes on to that instruction.
    Jump(u32),
    Match,
}

impl Program {
    pub(super) fn new(ast: &Ast) -> Self {
        let (instructions, folds) = Compiler::new(ast).run();
        let classes: Vec<_> =
            ast.classes().iter().map(|class| CharacterSet::new(class, ast.items(class))).collect();
        let anchored = ast.is_anchored_at_start();
        let mut program = Self { instructions, classes, anchored, starts: u128::MAX, folds };
        if !anchored {
            program.starts = program.find_starts();
        }
        program
    }

    /// Reports whether the pattern matches that extent of the text.
    pub(super) fn matches(&self, text: &str, extent: Extent) -> bool {
        // Kept from match to match: a set of hooks is matched without allocating.
        SCRATCH.with_borrow_mut(|threads| {
            threads.reset(self.instructions.len());
            let matched = self.run(text, extent, threads);
            if self.instructions.len() > MAX_SCRATCH_INSTRUCTIONS {
                *threads = Threads::default();
            }
            matched
        })
    }

    fn run(&self, text: &str, extent: Extent, threads: &mut Threads) -> bool {
        let anywhere = !self.anchored && extent == Extent::Part;
        let mut place = Place { before: None, after: None };
        let mut characters = text.chars();
        threads.arrivals.push(0);
        loop {
            place.after = characters.next();
            if self.follow(threads, place) && (extent == Extent::Part || place.after.is_none()) {
                return true;
            }
            let Some(c) = place.after else { return false };
            self.step(threads, c);
            place.before = Some(c);
            if threads.arrivals.is_empty() {
                if !anywhere {
                    return false;
                }
                let rest = characters.as_str();
                let next = rest.bytes().position(|b| self.may_start(b)).unwrap_or(rest.len());
                characters = rest[next..].chars();
                place.before = rest[..next].chars().next_back().or(place.before);
            }
            if anywhere {
                threads.arrivals.push(0);
            }
        }
    }

    fn may_start(&self, byte: u8) -> bool {
        !byte.is_ascii() || self.starts >> byte & 1 == 1
    }

    fn find_starts(&self) -> u128 {
        let mut threads = Threads::default();
        threads.reset(self.instructions.len());
        let mut starts = 0;
        threads.arrivals.push(0);
        while let Some(at) = threads.arrivals.pop() {
            if !threads.see(at) {
                continue;
            }
            match self.instructions[at as usize] {
                Instruction::Character(c) if c.is_ascii() => starts |= 1 << u32::from(c),
                Instruction::Folded(c) if c.is_ascii() => {
                    starts |= 1 << u32::from(c) | 1 << u32::from(c.to_ascii_lowercase());
                }
                Instruction::Character(_) | Instruction::Folded(_) => {}
                Instruction::Class(index) => starts |= self.classes[index as usize].ascii(),
                Instruction::AnyExceptNewline => starts |= !(1 << b'\n'),
                Instruction::AnyCharacter | Instruction::Match => return u128::MAX,
                // The condition may hold wherever it is.
                Instruction::Assert(_) => threads.arrivals.push(at + 1),
                Instruction::Split(other) => threads.arrivals.extend([at + 1, other]),
                Instruction::Jump(target) => threads.arrivals.push(target),
            }
        }
        starts
    }

    /// Follows all arrivals to the instructions that take a character, and reports whether one
    /// came to the end.
    fn follow(&self, threads: &mut Threads, place: Place) -> bool {
        let mut matched = false;
        threads.seen.fill(0);
        while let Some(mut at) = threads.arrivals.pop() {
            // A thread ends where another was before.
            while threads.see(at) {
                match self.instructions[at as usize] {
                    Instruction::Split(other) => {
                        threads.arrivals.push(other);
                        at += 1;
                    }
                    Instruction::Jump(target) => at = target,
                    Instruction::Assert(assertion) if place.satisfies(assertion) => at += 1,
                    Instruction::Assert(_) => break,
                    Instruction::Match => {
                        matched = true;
                        break;
                    }
                    _ => {
                        threads.waiting.push(at);
                        break;
                    }
                }
            }
        }
        matched
    }

    /// Moves those threads on that take the character.
    fn step(&self, threads: &mut Threads, c: char) {
        let folded = if self.folds { unicode::fold(c) } else { c };
        for at in threads.waiting.drain(..) {
            let takes = match self.instructions[at as usize] {
                Instruction::Character(expected) => c == expected,
                Instruction::Folded(expected) => folded == expected,
                Instruction::Class(index) => self.classes[index as usize].contains(c),
                Instruction::AnyCharacter => true,
                Instruction::AnyExceptNewline => c != '\n',
                _ => false,
            };
            if takes {
                threads.arrivals.push(at + 1);
            }
        }
    }
}

/// The largest program whose room is kept for the next one.
const MAX_SCRATCH_INSTRUCTIONS: usize = 4096;

thread_local! {
    static SCRATCH: RefCell<Threads> = RefCell::default();
}

/// The threads of a run, each the number of an instruction.
#[derive(Default)]
struct Threads {
    arrivals: Vec<u32>,
    /// At instructions that take a character.
    waiting: Vec<u32>,
    /// A bit for each instruction that was reached at this place in the text.
    seen: Vec<u64>,
}

impl Threads {
    /// Ends all threads, and makes room for a program of that many instructions.
    fn reset(&mut self, instructions: usize) {
        self.arrivals.clear();
        self.waiting.clear();
        self.seen.clear();
        self.seen.resize(instructions.div_ceil(64), 0);
    }

    /// Marks an instruction as reached, and reports whether it was not.
    fn see(&mut self, at: u32) -> bool {
        let (word, bit) = (&mut self.seen[at as usize / 64], 1 << (at % 64));
        let new = *word & bit == 0;
        *word |= bit;
        new
    }
}

/// A place in the text, by the characters around it.
#[derive(Clone, Copy)]
struct Place {
    before: Option<char>,
    after: Option<char>,
}

impl Place {
    fn satisfies(self, assertion: Assertion) -> bool {
        let word = |c: Option<char>| c.is_some_and(|c| c == '_' || c.is_ascii_alphanumeric());
        match assertion {
            Assertion::TextStart => self.before.is_none(),
            Assertion::TextEnd => self.after.is_none(),
            Assertion::LineStart => matches!(self.before, None | Some('\n')),
            Assertion::LineEnd => matches!(self.after, None | Some('\n')),
            Assertion::WordBoundary => word(self.before) != word(self.after),
            Assertion::NoWordBoundary => word(self.before) == word(self.after),
        }
    }
}
