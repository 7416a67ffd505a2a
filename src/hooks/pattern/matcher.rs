//! The pattern type: parsed when made, compiled when first needed.

use std::fmt;
use std::sync::{Arc, OnceLock};

use super::PatternError;
use super::automaton::{Automaton, Extent};
use super::literal::Requirements;
use super::syntax::{self, Ast};
use super::translate::Texts;

/// A regular expression as Go's `regexp` package understands it.
///
/// Making one parses and checks it, and does no more: of a directory full of hooks, most patterns
/// are compared with no text at all. Clones share what was compiled.
///
/// ```
/// use oci_hooks::hooks::Pattern;
///
/// let pattern = Pattern::new(r"^/usr/(local/)?bin/.*-hook$")?;
/// assert!(pattern.is_match("/usr/local/bin/my-hook"));
/// assert!(!pattern.is_match("/usr/bin/hook"));
/// # Ok::<(), oci_hooks::hooks::PatternError>(())
/// ```
#[derive(Clone)]
pub struct Pattern(Arc<Inner>);

struct Inner {
    source: String,
    ast: Ast,
    requirements: Requirements,
    /// For texts that are ASCII.
    ascii: OnceLock<Automaton>,
    /// For all other texts.
    any: OnceLock<Automaton>,
}

impl Pattern {
    /// Parses a pattern.
    ///
    /// # Errors
    ///
    /// Rejects what Go's `regexp.Compile` rejects. A pattern that is accepted can be matched with
    /// any text: matching never fails.
    pub fn new(source: impl Into<String>) -> Result<Self, PatternError> {
        let source = source.into();
        let ast = syntax::parse(&source)?;
        let requirements = Requirements::new(&ast);
        let (ascii, any) = (OnceLock::new(), OnceLock::new());
        Ok(Self(Arc::new(Inner { source, ast, requirements, ascii, any })))
    }

    /// Returns the pattern as it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0.source
    }

    /// Returns whether some part of the text matches, as podman and CRI-O ask.
    #[must_use]
    pub fn is_match(&self, text: &str) -> bool {
        let requirements = &self.0.requirements;
        requirements.hold(&self.0.ast, text)
            && (requirements.complete || self.automaton_matches(text, Extent::Part))
    }

    /// Returns whether the text as a whole matches, as Sarus asks.
    #[must_use]
    pub fn is_full_match(&self, text: &str) -> bool {
        let Inner { ast, requirements, .. } = &*self.0;
        match ast.as_literal() {
            Some(literal) => text == literal,
            None => {
                requirements.hold(ast, text)
                    && (requirements.exact || self.automaton_matches(text, Extent::Whole))
            }
        }
    }

    /// Matches without the comparison of literals.
    pub(super) fn automaton_matches(&self, text: &str, extent: Extent) -> bool {
        let Inner { ast, ascii, any, .. } = &*self.0;
        // Nearly all texts are ASCII, and what matches only these is compiled ten times as fast.
        let automaton = if text.is_ascii() {
            ascii.get_or_init(|| Automaton::new(ast, Texts::Ascii))
        } else {
            any.get_or_init(|| Automaton::new(ast, Texts::Any))
        };
        automaton.matches(text, extent)
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pattern").field(&self.as_str()).finish()
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Pattern {}
