//! Requirements of a pattern that string comparison can check.

use super::syntax::{Assertion, Ast, AstKind, NodeId, is_operator};

/// Literals that every matching text contains, by position. Each literal is a range of the literal
/// text that the pattern stores.
#[derive(Clone, Debug)]
pub struct LiteralRequirements {
    /// The text begins with this literal.
    prefix: LiteralRange,
    /// The text ends with this literal.
    suffix: LiteralRange,
    /// The text contains this literal anywhere.
    infix: LiteralRange,
    /// If set, every text that meets the requirements matches the pattern.
    pub complete: bool,
    /// If set, the text equals the prefix or one of the choices.
    pub exact: bool,
    /// The only text that the pattern matches as a whole, if known.
    whole: Option<LiteralRange>,
    /// If not empty, the text equals one of these literals.
    choices: Box<[LiteralRange]>,
}

/// A byte range of the stored literal text.
type LiteralRange = (u32, u32);
const NONE: LiteralRange = (0, 0);

/// Maximum length of patterns that `of_simple` reads without building a syntax tree: such short
/// ones cannot exceed Go's size limits, which only the parser checks.
const MAX_SIMPLE_BYTES: u32 = 1 << 12;

impl LiteralRequirements {
    /// Derives the literals that a text must contain for the pattern to match a part of it.
    pub fn new(ast: &Ast) -> Self {
        let root = [ast.root()];
        let mut parts = match ast.kind(ast.root()) {
            AstKind::Concatenation { start, end } => ast.operands(start, end),
            _ => &root,
        };
        let is = |id: &NodeId, assertion| ast.kind(*id) == AstKind::Assertion(assertion);
        let may_be_empty = |id: &&NodeId| {
            matches!(ast.kind(**id), AstKind::Empty | AstKind::Repeat { min: 0, .. })
        };
        let starts = parts.iter().take_while(|id| is(id, Assertion::TextStart)).count();
        parts = &parts[starts..];
        let ends = parts.iter().rev().take_while(|id| is(id, Assertion::TextEnd)).count();
        parts = &parts[..parts.len() - ends];
        let (at_start, at_end) = (starts > 0, ends > 0);
        // Where the pattern is not anchored, parts that may be empty at its start or end require nothing.
        if !at_start {
            parts = &parts[parts.iter().take_while(may_be_empty).count()..];
        }
        if !at_end {
            let optional = parts.iter().rev().take_while(may_be_empty).count();
            parts = &parts[..parts.len() - optional];
        }

        let literal = |id: &NodeId| match ast.kind(*id) {
            AstKind::Literal { start, end, ignore_case: false } => Some((start, end)),
            _ => None,
        };
        let prefix = parts.first().and_then(literal).filter(|_| at_start).unwrap_or(NONE);
        let suffix = parts.last().and_then(literal).filter(|_| at_end).unwrap_or(NONE);
        let inner =
            parts.iter().filter_map(literal).filter(|part| ![prefix, suffix].contains(part));
        let choices = match parts {
            [only] if at_start && at_end => literal_choices(ast, *only),
            _ => Box::default(),
        };
        let complete = match parts {
            [] => true,
            [only] => literal(only).is_some() || !choices.is_empty(),
            _ => false,
        };
        Self {
            prefix,
            suffix,
            infix: inner.max_by_key(|(start, end)| end - start).unwrap_or(NONE),
            complete,
            exact: complete && at_start && at_end,
            whole: literal(&ast.root()),
            choices,
        }
    }

    /// Reads a pattern that is a literal, perhaps anchored, or with `.*` before or after it, and
    /// appends the literal to `text`. Most patterns are of this kind and need no tree. `start` is
    /// the offset of the literal in `text`. Returns `None` for other patterns, after which `text`
    /// may end in a part of a literal.
    pub fn of_simple(pattern: &str, text: &mut String, start: usize) -> Option<Self> {
        let length = |text: &String| u32::try_from(text.len() - start).ok();
        if u32::try_from(pattern.len()).map_or(true, |length| length > MAX_SIMPLE_BYTES) {
            return None;
        }
        let at_start = pattern.starts_with('^');
        let mut rest = &pattern[usize::from(at_start)..];
        let mut open = false;
        if let Some(after) = rest.strip_prefix(".*")
            && !at_start
        {
            rest = after;
            open = true;
        }
        let at_end = loop {
            let (plain, operator) = rest.split_at(rest.find(is_operator).unwrap_or(rest.len()));
            text.push_str(plain);
            match operator.as_bytes() {
                [] => break false,
                [b'$'] => break true,
                b".*" => {
                    open = true;
                    break false;
                }
                [b'\\', escaped, ..] if escaped.is_ascii_punctuation() => {
                    text.push(char::from(*escaped));
                    rest = &operator[2..];
                }
                _ => return None,
            }
        };
        let literal = (0, length(text)?);
        let only_if = |holds: bool| if holds { literal } else { NONE };
        Some(Self {
            prefix: only_if(at_start),
            suffix: only_if(at_end && !at_start),
            infix: only_if(!at_start && !at_end),
            complete: true,
            exact: at_start && at_end,
            whole: (!open).then_some(literal),
            choices: Box::default(),
        })
    }

    /// Returns whether the text meets the requirements; `kept` is the stored literal text.
    pub fn are_met(&self, kept: &str, text: &str) -> bool {
        let literal = |(start, end): LiteralRange| &kept[start as usize..end as usize];
        if !self.choices.is_empty() {
            return self.choices.iter().any(|choice| literal(*choice) == text);
        }
        if self.exact {
            return text == literal(self.prefix);
        }
        text.starts_with(literal(self.prefix))
            && text.ends_with(literal(self.suffix))
            && (self.infix == NONE || text.contains(literal(self.infix)))
    }

    /// Returns the only text that the pattern matches as a whole, if known.
    pub fn whole_text<'k>(&self, kept: &'k str) -> Option<&'k str> {
        self.whole.map(|(start, end)| &kept[start as usize..end as usize])
    }
}

/// Returns the alternatives of a node such as `(true|yes)`, if all are literals.
fn literal_choices(ast: &Ast, mut node: NodeId) -> Box<[LiteralRange]> {
    while let AstKind::Capture(operand) = ast.kind(node) {
        node = operand;
    }
    let AstKind::Alternation { start, end } = ast.kind(node) else { return Box::default() };
    let literal = |id: &NodeId| match ast.kind(*id) {
        AstKind::Literal { start, end, ignore_case: false } => Some((start, end)),
        _ => None,
    };
    ast.operands(start, end).iter().map(literal).collect::<Option<_>>().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::syntax::parse;
    use super::*;

    #[test]
    fn plain_patterns_are_not_compiled() {
        for (pattern, matching, other) in [
            ("", "a", None),
            (".*", "a\nb", None),
            ("^", "", None),
            ("^$", "", Some("a")),
            ("init", "/init.d", Some("in")),
            ("^/usr/bin/foo$", "/usr/bin/foo", Some("/usr/bin/foo2")),
            ("^/usr/", "/usr/bin", Some("a/usr/")),
            ("^/usr/.*", "/usr/bin", Some("/us")),
            (".*/init$", "/usr/lib/init", Some("/init.d")),
            (r"^com\.example", "com.example", Some("com,example")),
            ("^(true|yes)$", "yes", Some("true|yes")),
            (r"\A(?:a|b\.c)\z", "b.c", Some("b")),
        ] {
            let ast = parse(pattern).unwrap();
            let requirements = LiteralRequirements::new(&ast);
            assert!(requirements.complete, "{pattern}");
            assert!(requirements.are_met(ast.literals(), matching), "{pattern}");
            let differs = |other| !requirements.are_met(ast.literals(), other);
            assert!(other.is_none_or(differs), "{pattern}");
        }
    }

    #[test]
    fn simple_patterns_need_no_syntax_tree() {
        for (pattern, simple) in [
            ("", true),
            ("^$", true),
            (".*", true),
            ("^.*", true),
            (".*$", true),
            (".*.*", true),
            ("^/usr/bin/foo$", true),
            (r"^com\.example\.", true),
            (".*/init$", true),
            ("é]}", true),
            (r"a\$", true),
            ("^.*a", false),
            ("a.*$", false),
            (".*.*a", false),
            ("ab*", false),
            ("a.b", false),
            ("a$b", false),
            ("a^", false),
            (r"\d", false),
            (r"\Qa\E", false),
            (r"a\", false),
            (".**", false),
            ("(a)", false),
        ] {
            let requirements = LiteralRequirements::of_simple(pattern, &mut String::new(), 0);
            assert_eq!(requirements.is_some(), simple, "{pattern}");
        }
    }

    #[test]
    fn fixed_parts_are_compared_before_a_pattern_is_compiled() {
        let ast = parse("^/usr/(local/)?bin/.*-hook$").unwrap();
        let requirements = LiteralRequirements::new(&ast);
        assert!(!requirements.complete);
        assert!(requirements.are_met(ast.literals(), "/usr/bin/my-hook"));
        for other in ["/opt/bin/my-hook", "/usr/bin/my-hooks", "/usr/sbn/my-hook"] {
            assert!(!requirements.are_met(ast.literals(), other), "{other}");
        }
    }
}
