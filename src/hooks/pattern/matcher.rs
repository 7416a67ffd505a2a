//! The pattern type: parsed when created, compiled on first use.

use std::fmt;
use std::sync::{Arc, OnceLock};

use regex::Regex;

use super::PatternError;
use super::literal::LiteralRequirements;
use super::syntax;
use super::translate::{MatchExtent, TextCharset, compile};

/// A regular expression as Go's `regexp` package understands it.
///
/// Creating a pattern only parses and checks it: most patterns of a hook directory are never
/// compared with a text. Clones share the compiled form.
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
pub struct Pattern(Arc<PatternInner>);

struct PatternInner {
    /// The pattern as it was written, followed by its literals.
    text: String,
    source_length: usize,
    requirements: LiteralRequirements,
    compiled: OnceLock<Box<CompiledRegexes>>,
}

/// Compiled regular expressions by [`TextCharset`] and [`MatchExtent`].
type CompiledRegexes = [[OnceLock<Regex>; 2]; 2];

impl Pattern {
    /// Parses a pattern.
    ///
    /// # Errors
    ///
    /// Rejects what Go's `regexp.Compile` rejects. Matching an accepted pattern never fails.
    pub fn new(source: impl Into<String>) -> Result<Self, PatternError> {
        Self::parse(&source.into())
    }

    /// Parses a pattern, and keeps a copy of it.
    pub(crate) fn parse(source: &str) -> Result<Self, PatternError> {
        let source_length = source.len();
        let mut text = String::with_capacity(2 * source_length);
        text.push_str(source);
        let requirements = match LiteralRequirements::of_simple(source, &mut text, source_length) {
            Some(requirements) => requirements,
            None => {
                let ast = syntax::parse(source)?;
                text.truncate(source_length);
                text.push_str(ast.literals());
                LiteralRequirements::new(&ast)
            }
        };
        let compiled = OnceLock::new();
        Ok(Self(Arc::new(PatternInner { text, source_length, requirements, compiled })))
    }

    /// Returns the pattern as it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0.text[..self.0.source_length]
    }

    /// Returns whether the pattern matches any part of the text, as in podman and CRI-O.
    #[must_use]
    pub fn is_match(&self, text: &str) -> bool {
        let requirements = &self.0.requirements;
        requirements.are_met(self.literals(), text)
            && (requirements.complete || self.regex_matches(text, MatchExtent::Part))
    }

    /// Returns whether the whole text matches.
    #[must_use]
    pub fn is_full_match(&self, text: &str) -> bool {
        let requirements = &self.0.requirements;
        match requirements.whole_text(self.literals()) {
            Some(whole) => text == whole,
            None => {
                requirements.are_met(self.literals(), text)
                    && (requirements.exact || self.regex_matches(text, MatchExtent::Whole))
            }
        }
    }

    /// Matches the regular expression, without comparing literals.
    pub(super) fn regex_matches(&self, text: &str, extent: MatchExtent) -> bool {
        // Nearly all texts are ASCII, and an expression for ASCII only is compiled ten times as fast.
        let texts = if text.is_ascii() { TextCharset::Ascii } else { TextCharset::Any };
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
