//! What can be wrong with a configuration.

use crate::json::{Location, SyntaxError};

/// What is wrong with a `config.json`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    #[error("{error}")]
    Syntax { error: SyntaxError, location: Location },
    /// A value is of the wrong type.
    #[error("expected {expected}, found {found}")]
    Type {
        /// What the runtime specification asks for.
        expected: &'static str,
        found: &'static str,
        location: Location,
    },
    /// A key that matters here stands twice, or in other case: runtimes do not agree on its meaning.
    #[error("key {key:?} is ambiguous")]
    Ambiguous {
        /// The key as it stands.
        key: String,
        location: Location,
    },
}

impl ConfigError {
    /// Returns a stable name of the kind of error, for programs.
    pub fn class(&self) -> &'static str {
        match self {
            ConfigError::Syntax { .. } => "json-syntax",
            ConfigError::Type { .. } => "json-type",
            ConfigError::Ambiguous { .. } => "ambiguous-key",
        }
    }

    /// Returns line and column of the error.
    pub fn location(&self) -> &Location {
        match self {
            ConfigError::Syntax { location, .. }
            | ConfigError::Type { location, .. }
            | ConfigError::Ambiguous { location, .. } => location,
        }
    }

    /// Returns what to do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            ConfigError::Syntax { error, .. } => error.kind.hint(),
            ConfigError::Type { .. } => None,
            ConfigError::Ambiguous { .. } => {
                Some("write the key once, in the case of the runtime specification")
            }
        }
    }
}
