//! Compiles the syntax tree with the `regex` crate: converts it to the tree of `regex-syntax`,
//! which prints it as a pattern of `regex`.

use std::sync::OnceLock;
use std::thread;

use regex::{Regex, RegexBuilder};
use regex_syntax::hir::{
    Class as HirClass, ClassUnicode, ClassUnicodeRange, Hir, HirKind, Look, Repetition,
};

use super::syntax::property::{NAMES, UnicodeProperty};
use super::syntax::{Assertion, Ast, AstKind, CharacterClass, ClassItem, NodeId};

/// Characters that the texts to match may contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextCharset {
    Ascii,
    Any,
}

/// The part of a text that must match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatchExtent {
    Part,
    Whole,
}

/// Number of levels of a pattern for which the stack of any thread is large enough.
const SHALLOW_LEVELS: u16 = 40;
/// Stack size for a thousand levels, also without optimization.
const DEEP_STACK_BYTES: usize = 64 << 20;

/// Compiles the tree for a kind of texts.
pub fn compile(ast: &Ast, texts: TextCharset, extent: MatchExtent) -> Regex {
    let compile = || {
        let mut hir = translate(ast, texts);
        if extent == MatchExtent::Whole {
            hir = Hir::concat(vec![Hir::look(Look::Start), hir, Hir::look(Look::End)]);
        }
        // The parser has enforced the limits of Go.
        RegexBuilder::new(&hir.to_string())
            .nest_limit(u32::MAX)
            .size_limit(usize::MAX)
            .build()
            .expect("`regex` reads what `regex-syntax` prints")
    };
    if ast.height() <= SHALLOW_LEVELS {
        return compile();
    }
    // `regex` recurses once per nesting level: a deep pattern needs a larger stack.
    thread::scope(|scope| {
        let thread = thread::Builder::new().stack_size(DEEP_STACK_BYTES);
        let compiled = thread.spawn_scoped(scope, compile);
        compiled.map(|thread| thread.join().expect("compiling does not panic"))
    })
    .unwrap_or_else(|_| compile())
}

/// Translates the tree, with Go's meaning of every class and anchor.
fn translate(ast: &Ast, texts: TextCharset) -> Hir {
    // Children come before their parents, so nothing recurses, however deep groups nest.
    let mut done: Vec<Hir> = Vec::with_capacity(ast.kinds().len());
    for kind in ast.kinds() {
        let hir =
            node(ast, texts, kind, |id| std::mem::replace(&mut done[id.index()], Hir::empty()));
        done.push(hir);
    }
    done.swap_remove(ast.root().index())
}

fn node(ast: &Ast, texts: TextCharset, kind: AstKind, mut take: impl FnMut(NodeId) -> Hir) -> Hir {
    let mut take_all =
        |start, end| ast.operands(start, end).iter().map(|id| take(*id)).collect::<Vec<_>>();
    match kind {
        AstKind::Empty => Hir::empty(),
        AstKind::Literal { start, end, ignore_case } => {
            literal(ast.text(start, end), ignore_case, texts)
        }
        AstKind::Class(index) => to_class(class(ast, &ast.classes()[index as usize]), texts),
        AstKind::AnyCharacter => to_class(all_but(None), texts),
        AstKind::AnyExceptNewline => to_class(all_but(Some('\n')), texts),
        AstKind::Assertion(Assertion::NoWordBoundary) if texts == TextCharset::Any => {
            no_word_boundary()
        }
        AstKind::Assertion(assertion) => Hir::look(to_look(assertion)),
        // Callers ask whether a text matches, not what a group captures.
        AstKind::Capture(operand) => take(operand),
        AstKind::Repeat { operand, min, max } => Hir::repetition(Repetition {
            min: min.into(),
            max: max.map(u32::from),
            greedy: true,
            sub: Box::new(group_repetition(take(operand))),
        }),
        AstKind::Concatenation { start, end } => Hir::concat(take_all(start, end)),
        AstKind::Alternation { start, end } => Hir::alternation(take_all(start, end)),
    }
}

/// Wraps a repetition in a group: `regex-syntax` prints `(?:a{2})?` as `a{2}?`, which means `a{2}`.
/// It prints alternatives as a group, so the wrapper is an alternation with a branch that never
/// matches.
fn group_repetition(hir: Hir) -> Hir {
    if matches!(hir.kind(), HirKind::Repetition(_)) {
        Hir::alternation(vec![hir, Hir::fail()])
    } else {
        hir
    }
}

/// Returns `\B` for ASCII words. In `regex`, this assertion also holds between the bytes of a
/// character, where `is_match` stops and misses a longer match. `\b` and `\B` for Unicode words
/// hold only between characters, and one of the two holds at every such position.
fn no_word_boundary() -> Hir {
    let between = [Look::WordUnicode, Look::WordUnicodeNegate].map(Hir::look);
    Hir::concat(vec![Hir::alternation(between.into()), Hir::look(Look::WordAsciiNegate)])
}

fn literal(text: &str, ignore_case: bool, texts: TextCharset) -> Hir {
    if ignore_case {
        let any_case = |c| with(ClassUnicode::new([ClassUnicodeRange::new(c, c)]), true, false);
        Hir::concat(text.chars().map(|c| to_class(any_case(c), texts)).collect())
    } else if texts == TextCharset::Any || text.is_ascii() {
        Hir::literal(text.as_bytes())
    } else {
        Hir::fail()
    }
}

fn to_class(mut class: ClassUnicode, texts: TextCharset) -> Hir {
    if texts == TextCharset::Ascii {
        class.intersect(&ClassUnicode::new([ClassUnicodeRange::new('\0', '\x7f')]));
    }
    Hir::class(HirClass::Unicode(class))
}

fn all_but(excluded: Option<char>) -> ClassUnicode {
    let excluded = excluded.map(|c| ClassUnicodeRange::new(c, c));
    with(ClassUnicode::new(excluded), false, true)
}

fn to_look(assertion: Assertion) -> Look {
    match assertion {
        Assertion::TextStart => Look::Start,
        Assertion::TextEnd => Look::End,
        Assertion::LineStart => Look::StartLF,
        Assertion::LineEnd => Look::EndLF,
        Assertion::WordBoundary => Look::WordAscii,
        Assertion::NoWordBoundary => Look::WordAsciiNegate,
    }
}

fn class(ast: &Ast, class: &CharacterClass) -> ClassUnicode {
    // A hostile class may repeat an item of thousands of characters, such as `\pL`, many times.
    let mut items = ast.items(class).to_vec();
    items.sort_unstable();
    items.dedup();
    let mut ranges = Vec::new();
    for item in items {
        let (members, negated) = match item {
            ClassItem::Range(low, high) => (ClassUnicode::new(scalars(low, high)), false),
            ClassItem::Named { members, negated } => {
                let members = members.iter().flat_map(|&(low, high)| scalars(low, high));
                (ClassUnicode::new(members), negated)
            }
            ClassItem::Property { property, negated } => (members_of(property).clone(), negated),
        };
        ranges.extend_from_slice(with(members, class.ignore_case, negated).ranges());
    }
    with(ClassUnicode::new(ranges), false, class.negated)
}

/// Applies case folding and negation to a class.
fn with(mut class: ClassUnicode, ignore_case: bool, negated: bool) -> ClassUnicode {
    if ignore_case {
        class.case_fold_simple();
    }
    // `regex-syntax` does not join the ranges below and above the surrogates; negating the class would
    // turn the gap between the ranges into a range whose start is above its end.
    let (low, high) = ('\u{d7ff}', '\u{e000}');
    let has = |edge: fn(&ClassUnicodeRange) -> char, c| {
        class.ranges().iter().any(|range| edge(range) == c)
    };
    if has(ClassUnicodeRange::end, low) && has(ClassUnicodeRange::start, high) {
        class.push(ClassUnicodeRange::new(low, high));
    }
    if negated {
        class.negate();
    }
    class
}

/// Returns the range without surrogates, which no text contains.
fn scalars(low: u32, high: u32) -> impl Iterator<Item = ClassUnicodeRange> {
    [(low, high.min(0xd7ff)), (low.max(0xe000), high)].into_iter().filter_map(|(low, high)| {
        let (low, high) = (char::from_u32(low)?, char::from_u32(high)?);
        (low <= high).then(|| ClassUnicodeRange::new(low, high))
    })
}

/// Returns the members of a property. The tables of `regex-syntax` are loaded when a pattern first
/// needs them.
fn members_of(property: UnicodeProperty) -> &'static ClassUnicode {
    static TABLES: [OnceLock<ClassUnicode>; NAMES.len()] = [const { OnceLock::new() }; NAMES.len()];
    TABLES[property.index()].get_or_init(|| load(property.query()))
}

fn load(query: &str) -> ClassUnicode {
    if query == "gc=cs" {
        // Surrogates: `regex-syntax` knows only scalar values, and texts contain no others.
        return ClassUnicode::empty();
    }
    let hir =
        regex_syntax::parse(&format!(r"\p{{{query}}}")).expect("a test looks every listed name up");
    match hir.into_kind() {
        HirKind::Class(HirClass::Unicode(class)) => class,
        // `regex-syntax` returns a class of one character as a literal.
        HirKind::Literal(literal) => {
            let characters = str::from_utf8(&literal.0).unwrap_or_default().chars();
            ClassUnicode::new(characters.map(|c| ClassUnicodeRange::new(c, c)))
        }
        _ => ClassUnicode::empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hooks::Pattern;

    #[test]
    fn classes_contain_their_members() {
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
            (r"[^\x00-\x{10FFFF}]", "", "a\u{d7ff}\u{e000}"),
            (r"[^é-\x{ffff}]", "a\u{10000}", "é\u{d7ff}\u{e000}"),
            (r"[^\x00-\x{d7ff}\x{e000}-\x{10ffff}]", "", "a\u{d7ff}\u{e000}"),
            (r"[^\x{d800}-\x{e000}]", "\u{d7ff}\u{e001}", "\u{e000}"),
            (r"(?i)[^\x{d000}-\x{f000}]", "a\u{cfff}", "\u{d7ff}\u{e000}"),
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

    #[test]
    fn counted_repetitions_match_the_given_number() {
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
    fn nested_repetitions_keep_their_order() {
        for (pattern, counts) in [
            ("(?:a{2})?", [true, false, true, false, false, false]),
            ("(?:a+)?", [true, true, true, true, true, true]),
            ("(?:a{2,3})?", [true, false, true, true, false, false]),
            ("(?:a?){2}", [true, true, true, false, false, false]),
            ("((?:a{2}){2})?", [true, false, false, false, true, false]),
            ("(?:(?:a{2})+)?", [true, false, true, false, true, false]),
        ] {
            let compiled = Pattern::new(pattern).unwrap();
            let matches = |count| compiled.is_full_match(&"a".repeat(count));
            assert_eq!([0, 1, 2, 3, 4, 5].map(matches), counts, "{pattern}");
        }
    }

    #[test]
    fn all_alternatives_are_tried() {
        let pattern = Pattern::new("^(?:a|bc||d(?:e|f|)|gh)$").unwrap();
        for text in ["a", "bc", "", "d", "de", "df", "gh"] {
            assert!(pattern.is_match(text), "{text}");
        }
        for text in ["b", "c", "e", "g", "abc", "dg"] {
            assert!(!pattern.is_match(text), "{text}");
        }
    }

    #[test]
    fn every_listed_property_has_members() {
        for (index, (name, query)) in NAMES.iter().enumerate() {
            let property = UnicodeProperty::find(name).unwrap();
            assert_eq!(property.index(), index, "{name} is listed twice");
            let members = members_of(property);
            assert_eq!(members.ranges().is_empty(), *query == "gc=cs", "{name}");
        }
    }
}
