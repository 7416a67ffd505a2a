//! The syntax tree.
//!
//! Nodes are in one vector and refer to each other by index: parsing a short pattern takes few
//! allocations, and a pattern nested a hundred thousand levels deep needs no recursion.

use std::ops::Range;

use super::property::UnicodeProperty;

/// The syntax tree of a pattern.
#[derive(Clone, Debug)]
pub struct Ast {
    pub(super) nodes: Vec<AstNode>,
    /// The operands of concatenations and alternations.
    pub(super) operands: Vec<NodeId>,
    pub(super) classes: Vec<CharacterClass>,
    /// The items of all classes.
    pub(super) items: Vec<ClassItem>,
    /// The characters of all literals.
    pub(super) text: String,
    pub(super) constructs: Vec<PatternConstruct>,
    pub(super) root: NodeId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeId(pub u32);

#[derive(Clone, Copy, Debug)]
pub(super) struct AstNode {
    pub kind: AstKind,
    pub start: u32,
    pub end: u32,
    /// Number of compiled instructions, as Go counts them.
    pub size: u32,
    /// Number of levels from this node down, as Go counts them.
    pub height: u16,
    /// Product of nested repeat counts, on the path where it is greatest.
    pub copies: u16,
    pub edges: MatchEdges,
}

/// Properties of all matches of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MatchEdges {
    /// The match starts at the start of the text.
    pub text_start: bool,
    /// The match ends at the end of the text.
    pub text_end: bool,
    /// The match is empty.
    pub zero_width: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AstKind {
    Empty,
    /// A literal, as a range of `Ast::text`.
    Literal {
        start: u32,
        end: u32,
        ignore_case: bool,
    },
    /// A character class, as an index into `Ast::classes`.
    Class(u32),
    AnyCharacter,
    AnyExceptNewline,
    Assertion(Assertion),
    Capture(NodeId),
    /// A repetition; `max` is `None` for no limit.
    Repeat {
        operand: NodeId,
        min: u16,
        max: Option<u16>,
    },
    /// A concatenation, as a range of `Ast::operands`.
    Concatenation {
        start: u32,
        end: u32,
    },
    /// An alternation, as a range of `Ast::operands`.
    Alternation {
        start: u32,
        end: u32,
    },
}

/// A condition on the position between two characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Assertion {
    TextStart,
    TextEnd,
    LineStart,
    LineEnd,
    WordBoundary,
    NoWordBoundary,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct CharacterClass {
    /// Start of the range of `Ast::items`.
    pub start: u32,
    /// End of the range of `Ast::items`, not included.
    pub end: u32,
    pub negated: bool,
    pub ignore_case: bool,
}

/// Inclusive ranges of code points, ascending and disjoint.
pub type CodePointRanges = [(u32, u32)];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ClassItem {
    /// Code points, both ends included; surrogates may occur and match nothing.
    Range(u32, u32),
    Named {
        members: &'static CodePointRanges,
        negated: bool,
    },
    Property {
        property: UnicodeProperty,
        negated: bool,
    },
}

/// A construct that POSIX extended regular expressions do not have, or that has another meaning there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PatternConstruct {
    pub kind: ConstructKind,
    /// Byte range in the pattern.
    pub span: Range<usize>,
}

/// The kinds of [`PatternConstruct`]s.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ConstructKind {
    /// `\d`, `\s`, `\w` and their opposites.
    PerlClass,
    /// A Unicode class: `\pL`, `\p{Greek}`.
    UnicodeClass,
    /// A word boundary: `\b` or `\B`.
    WordBoundary,
    /// An anchor of the text: `\A` or `\z`.
    TextAnchor,
    /// `\n`, `\x2f`, `\057`: a character by its name or number.
    CharacterEscape,
    /// Quoted text that stands for itself: `\Q…\E`.
    Quotation,
    /// A backslash in brackets, which stands for itself in POSIX.
    BracketEscape,
    /// A lazy repetition: `*?`, `+?`, `??`, `{1,2}?`.
    LazyRepetition,
    /// A change of flags: `(?i)`, `(?i:`.
    Flags,
    /// A group that captures nothing: `(?:`.
    PlainGroup,
    /// A group with a name: `(?P<name>`, `(?<name>`.
    NamedGroup,
    /// `\<`, `\>`, `` \` `` and `\'`: plain characters here, boundaries in GNU tools.
    GnuBoundary,
}

impl Ast {
    /// Returns whether a match can only start at the start of the text.
    #[must_use]
    pub fn is_anchored_at_start(&self) -> bool {
        self.edges(self.root).text_start
    }

    /// Returns whether a match can only end at the end of the text.
    #[must_use]
    pub fn is_anchored_at_end(&self) -> bool {
        self.edges(self.root).text_end
    }

    /// Returns the text of a pattern that is a case-sensitive literal; `None` for other patterns.
    #[must_use]
    pub fn as_literal(&self) -> Option<&str> {
        self.literal(self.root)
    }

    /// Returns the constructs that are not POSIX, in the order of the pattern.
    #[must_use]
    pub fn constructs(&self) -> &[PatternConstruct] {
        &self.constructs
    }

    /// Returns the offsets of unescaped dots between letters or digits, as in `com.example`: most
    /// likely meant as full stops, but matching any character.
    pub fn dots_in_words(&self) -> impl Iterator<Item = usize> + '_ {
        let ends = |id, edge: fn(&str) -> Option<char>| {
            self.any_case_literal(id).and_then(edge).is_some_and(char::is_alphanumeric)
        };
        self.nodes.iter().flat_map(|node| self.operands_of(node.kind).windows(3)).filter_map(
            move |three| {
                let dot = &self.nodes[three[1].index()];
                let is_dot = matches!(dot.kind, AstKind::AnyExceptNewline | AstKind::AnyCharacter);
                let in_word = is_dot
                    && ends(three[0], |text| text.chars().next_back())
                    && ends(three[2], |text| text.chars().next());
                in_word.then_some(dot.start as usize)
            },
        )
    }

    pub(crate) fn root(&self) -> NodeId {
        self.root
    }

    pub(crate) fn kind(&self, id: NodeId) -> AstKind {
        self.nodes[id.index()].kind
    }

    /// Returns the number of levels, as Go counts them.
    pub(crate) fn height(&self) -> u16 {
        self.nodes[self.root.index()].height
    }

    /// Returns the kinds of all nodes, children before their parents.
    pub(crate) fn kinds(&self) -> impl ExactSizeIterator<Item = AstKind> + '_ {
        self.nodes.iter().map(|node| node.kind)
    }

    pub(super) fn edges(&self, id: NodeId) -> MatchEdges {
        self.nodes[id.index()].edges
    }

    /// Returns the text of a case-sensitive literal.
    fn literal(&self, id: NodeId) -> Option<&str> {
        match self.kind(id) {
            AstKind::Literal { start, end, ignore_case: false } => Some(self.text(start, end)),
            _ => None,
        }
    }

    fn any_case_literal(&self, id: NodeId) -> Option<&str> {
        match self.kind(id) {
            AstKind::Literal { start, end, .. } => Some(self.text(start, end)),
            _ => None,
        }
    }

    /// Returns the characters of all literals.
    pub(crate) fn literals(&self) -> &str {
        &self.text
    }

    pub(crate) fn text(&self, start: u32, end: u32) -> &str {
        &self.text[start as usize..end as usize]
    }

    /// Returns the operands of a concatenation or alternation.
    pub(crate) fn operands(&self, start: u32, end: u32) -> &[NodeId] {
        &self.operands[start as usize..end as usize]
    }

    fn operands_of(&self, kind: AstKind) -> &[NodeId] {
        match kind {
            AstKind::Concatenation { start, end } => self.operands(start, end),
            _ => &[],
        }
    }

    pub(crate) fn classes(&self) -> &[CharacterClass] {
        &self.classes
    }

    pub(crate) fn items(&self, class: &CharacterClass) -> &[ClassItem] {
        &self.items[class.start as usize..class.end as usize]
    }
}

impl NodeId {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::ConstructKind;

    #[test]
    fn anchors_apply_to_every_alternative() {
        for (pattern, start, end) in [
            ("^a$", true, true),
            ("a", false, false),
            ("^a|^b", true, false),
            ("^a|b", false, false),
            ("(^a|^b)c(d$)", true, true),
            (r"\Aa\z", true, true),
            ("(?m)^a$", false, false),
            ("(^a)?b", false, false),
            ("(?:)^a", true, false),
            (r"\b^a", true, false),
            ("a*^b", false, false),
            ("(^a)+", true, false),
            (".*$", false, true),
            ("$^", true, true),
        ] {
            let ast = parse(pattern).unwrap();
            assert_eq!(ast.is_anchored_at_start(), start, "{pattern}");
            assert_eq!(ast.is_anchored_at_end(), end, "{pattern}");
        }
    }

    #[test]
    fn dots_between_letters_are_found() {
        let dots = |pattern| parse(pattern).unwrap().dots_in_words().collect::<Vec<_>>();
        assert_eq!(dots("com.example"), [3]);
        assert_eq!(dots("^(io.podman.x)$"), [4, 11]);
        assert_eq!(dots("(?i)com.example"), [7]);
        assert_eq!(
            dots(r"com\.example|com[.]example|com.*example|/.a|a./|.a"),
            Vec::<usize>::new()
        );
    }

    #[test]
    fn constructs_outside_of_posix_are_listed() {
        use ConstructKind::*;
        let pattern = r"\d\pL\bx*?(?i)(?:y)(?P<n>z)\Qq\E[\s]\n\<\A\.";
        let ast = parse(pattern).unwrap();
        let found: Vec<_> =
            ast.constructs().iter().map(|c| (c.kind, &pattern[c.span.clone()])).collect();
        let expected = [
            (PerlClass, r"\d"),
            (UnicodeClass, r"\pL"),
            (WordBoundary, r"\b"),
            (LazyRepetition, "*?"),
            (Flags, "(?i)"),
            (PlainGroup, "(?:"),
            (NamedGroup, "(?P<n>"),
            (Quotation, r"\Qq\E"),
            (BracketEscape, r"\s"),
            (CharacterEscape, r"\n"),
            (GnuBoundary, r"\<"),
            (TextAnchor, r"\A"),
        ];
        assert_eq!(found, expected);
        assert!(parse("^/usr/(s?bin|lib)/[a-z]+$").unwrap().constructs().is_empty());
    }

    #[test]
    fn only_plain_text_is_a_literal() {
        let literal = |pattern| parse(pattern).unwrap().as_literal().map(str::to_owned);
        assert_eq!(literal(r"a\.b[.]c\Q*\E").as_deref(), Some("a.b.c*"));
        assert_eq!(literal("^a"), None);
        assert_eq!(literal("(?i)a"), None);
    }
}
