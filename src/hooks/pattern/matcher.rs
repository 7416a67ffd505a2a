//! The pattern type: parsed when made, compiled when first needed.

use std::fmt;
use std::sync::{Arc, OnceLock};

use super::PatternError;
use super::automaton::{Automaton, Extent};
use super::literal::Requirements;
use super::syntax;
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
    /// The pattern as it was written, and behind it the literals in it.
    text: String,
    source_length: usize,
    requirements: Requirements,
    /// For texts that are ASCII.
    ascii: OnceLock<Box<Automaton>>,
    /// For all other texts.
    any: OnceLock<Box<Automaton>>,
}

impl Pattern {
    /// Parses a pattern.
    ///
    /// # Errors
    ///
    /// Rejects what Go's `regexp.Compile` rejects. A pattern that is accepted can be matched with
    /// any text: matching never fails.
    pub fn new(source: impl Into<String>) -> Result<Self, PatternError> {
        Self::parse(&source.into())
    }

    /// Parses a pattern, of which it keeps a copy.
    pub(in crate::hooks) fn parse(source: &str) -> Result<Self, PatternError> {
        let source_length = source.len();
        let mut text = String::with_capacity(2 * source_length);
        text.push_str(source);
        let requirements = match Requirements::of_simple(source, &mut text, source_length) {
            Some(requirements) => requirements,
            None => {
                let ast = syntax::parse(source)?;
                text.truncate(source_length);
                text.push_str(ast.literals());
                Requirements::new(&ast)
            }
        };
        let (ascii, any) = (OnceLock::new(), OnceLock::new());
        Ok(Self(Arc::new(Inner { text, source_length, requirements, ascii, any })))
    }

    /// Returns the pattern as it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0.text[..self.0.source_length]
    }

    /// Returns whether some part of the text matches, as podman and CRI-O ask.
    #[must_use]
    pub fn is_match(&self, text: &str) -> bool {
        let requirements = &self.0.requirements;
        requirements.hold(self.literals(), text)
            && (requirements.complete || self.automaton_matches(text, Extent::Part))
    }

    /// Returns whether the text as a whole matches, as Sarus asks.
    #[must_use]
    pub fn is_full_match(&self, text: &str) -> bool {
        let requirements = &self.0.requirements;
        match requirements.whole(self.literals()) {
            Some(whole) => text == whole,
            None => {
                requirements.hold(self.literals(), text)
                    && (requirements.exact || self.automaton_matches(text, Extent::Whole))
            }
        }
    }

    /// Matches without the comparison of literals.
    pub(super) fn automaton_matches(&self, text: &str, extent: Extent) -> bool {
        let Inner { ascii, any, .. } = &*self.0;
        // Nearly all texts are ASCII, and what matches only these is compiled ten times as fast.
        let (automaton, texts) =
            if text.is_ascii() { (ascii, Texts::Ascii) } else { (any, Texts::Any) };
        automaton.get_or_init(|| self.compile(texts)).matches(text, extent)
    }

    fn compile(&self, texts: Texts) -> Box<Automaton> {
        // The tree is not kept: of most patterns nobody asks for it again.
        let ast = syntax::parse(self.as_str()).expect("it was accepted before");
        Box::new(Automaton::new(&ast, texts))
    }

    fn literals(&self) -> &str {
        &self.0.text[self.0.source_length..]
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
