//! Stand-in until the Go-compatible module lands.
#![expect(missing_docs)]
use std::fmt;
#[derive(Clone, Debug)]
pub struct Pattern(String, regex_automata::meta::Regex);
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct PatternError(String);
impl Pattern {
    pub fn new(s: impl Into<String>) -> Result<Self, PatternError> {
        let s = s.into();
        let r = regex_automata::meta::Regex::new(&s).map_err(|e| PatternError(e.to_string()))?;
        Ok(Self(s, r))
    }
    pub fn as_str(&self) -> &str {
        &self.0
    }
    pub fn is_match(&self, text: &str) -> bool {
        self.1.is_match(text)
    }
    pub fn is_full_match(&self, text: &str) -> bool {
        self.1.find(text).is_some_and(|m| m.len() == text.len())
    }
}
impl PatternError {
    pub fn hint(&self) -> Option<&'static str> {
        None
    }
}
impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
