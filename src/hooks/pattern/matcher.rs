//! The pattern type: parsed when made, compiled when first needed.

use std::fmt;
use std::sync::{Arc, OnceLock};

use regex::Regex;

use super::PatternError;
use super::literal::Requirements;
use super::syntax;
use super::translate::{Extent, Texts, compile};

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
    compiled: OnceLock<Box<Compiled>>,
}

/// What was compiled, by [`Texts`] and [`Extent`].
type Compiled = [[OnceLock<Regex>; 2]; 2];

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
        let compiled = OnceLock::new();
        Ok(Self(Arc::new(Inner { text, source_length, requirements, compiled })))
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
            && (requirements.complete || self.regex_matches(text, Extent::Part))
    }

    /// Returns whether the text as a whole matches.
    #[must_use]
    pub fn is_full_match(&self, text: &str) -> bool {
        let requirements = &self.0.requirements;
        match requirements.whole(self.literals()) {
            Some(whole) => text == whole,
            None => {
                requirements.hold(self.literals(), text)
                    && (requirements.exact || self.regex_matches(text, Extent::Whole))
            }
        }
    }

    /// Matches without the comparison of literals.
    pub(super) fn regex_matches(&self, text: &str, extent: Extent) -> bool {
        // Nearly all texts are ASCII, and what matches only these is compiled ten times as fast.
        let texts = if text.is_ascii() { Texts::Ascii } else { Texts::Any };
        let compiled = self.0.compiled.get_or_init(Box::default);
        let regex = compiled[texts as usize][extent as usize].get_or_init(|| {
            // The tree is not kept: most patterns are compiled once at most.
            let ast = syntax::parse(self.as_str()).expect("it was accepted before");
            compile(&ast, texts, extent)
        });
        regex.is_match(text)
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
