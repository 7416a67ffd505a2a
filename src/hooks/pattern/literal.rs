//! What a pattern asks for that comparing strings can tell.

use super::syntax::{Assertion, Ast, Kind, NodeId};

/// A literal that every matching text has, and where.
#[derive(Clone, Debug)]
pub(super) struct Requirements {
    /// The text begins with it.
    prefix: Literal,
    /// The text ends with it.
    suffix: Literal,
    /// The text contains it, anywhere.
    infix: Literal,
    /// Nothing else is asked for.
    pub(super) complete: bool,
    /// The text is the prefix or one of the choices, and nothing else.
    pub(super) exact: bool,
    /// Literals of which one is the whole text: a part of the tree's operands.
    choices: Option<(u32, u32)>,
}

/// A part of the tree's text.
type Literal = (u32, u32);
const NONE: Literal = (0, 0);

impl Requirements {
    /// Derives what a search asks for.
    pub(super) fn new(ast: &Ast) -> Self {
        let root = [ast.root()];
        let mut parts = match ast.kind(ast.root()) {
            Kind::Concatenation { start, end } => ast.operands(start, end),
            _ => &root,
        };
        let is = |id: &NodeId, assertion| ast.kind(*id) == Kind::Assertion(assertion);
        let may_be_empty =
            |id: &&NodeId| matches!(ast.kind(**id), Kind::Empty | Kind::Repeat { min: 0, .. });
        let starts = parts.iter().take_while(|id| is(id, Assertion::TextStart)).count();
        parts = &parts[starts..];
        let ends = parts.iter().rev().take_while(|id| is(id, Assertion::TextEnd)).count();
        parts = &parts[..parts.len() - ends];
        let (at_start, at_end) = (starts > 0, ends > 0);
        // What may be empty at an open end need not be there.
        if !at_start {
            parts = &parts[parts.iter().take_while(may_be_empty).count()..];
        }
        if !at_end {
            let optional = parts.iter().rev().take_while(may_be_empty).count();
            parts = &parts[..parts.len() - optional];
        }

        let literal = |id: &NodeId| match ast.kind(*id) {
            Kind::Literal { start, end, ignore_case: false } => Some((start, end)),
            _ => None,
        };
        let prefix = parts.first().and_then(literal).filter(|_| at_start).unwrap_or(NONE);
        let suffix = parts.last().and_then(literal).filter(|_| at_end).unwrap_or(NONE);
        let inner =
            parts.iter().filter_map(literal).filter(|part| ![prefix, suffix].contains(part));
        let choices = match parts {
            [only] if at_start && at_end => literal_choices(ast, *only),
            _ => None,
        };
        let complete = match parts {
            [] => true,
            [only] => literal(only).is_some() || choices.is_some(),
            _ => false,
        };
        Self {
            prefix,
            suffix,
            infix: inner.max_by_key(|(start, end)| end - start).unwrap_or(NONE),
            complete,
            exact: complete && at_start && at_end,
            choices,
        }
    }

    /// Returns whether the text has what is asked for.
    pub(super) fn hold(&self, ast: &Ast, text: &str) -> bool {
        let literal = |(start, end)| ast.text(start, end);
        if let Some((start, end)) = self.choices {
            return ast.operands(start, end).iter().any(|id| ast.literal(*id) == Some(text));
        }
        if self.exact {
            return text == literal(self.prefix);
        }
        text.starts_with(literal(self.prefix))
            && text.ends_with(literal(self.suffix))
            && (self.infix == NONE || text.contains(literal(self.infix)))
    }
}

/// Returns the alternatives of a node, such as `(true|yes)`, that has only literals.
fn literal_choices(ast: &Ast, mut node: NodeId) -> Option<(u32, u32)> {
    while let Kind::Capture(operand) = ast.kind(node) {
        node = operand;
    }
    let Kind::Alternation { start, end } = ast.kind(node) else { return None };
    let all = ast.operands(start, end).iter().all(|id| ast.literal(*id).is_some());
    all.then_some((start, end))
}

#[cfg(test)]
mod tests {
    use super::super::syntax::parse;
    use super::*;

    #[test]
    fn plain_patterns_need_no_automaton() {
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
            let requirements = Requirements::new(&ast);
            assert!(requirements.complete, "{pattern}");
            assert!(requirements.hold(&ast, matching), "{pattern}");
            assert!(other.is_none_or(|other| !requirements.hold(&ast, other)), "{pattern}");
        }
    }

    #[test]
    fn fixed_parts_are_compared_before_an_automaton_is_made() {
        let ast = parse("^/usr/(local/)?bin/.*-hook$").unwrap();
        let requirements = Requirements::new(&ast);
        assert!(!requirements.complete);
        assert!(requirements.hold(&ast, "/usr/bin/my-hook"));
        for other in ["/opt/bin/my-hook", "/usr/bin/my-hooks", "/usr/sbn/my-hook"] {
            assert!(!requirements.hold(&ast, other), "{other}");
        }
    }
}
