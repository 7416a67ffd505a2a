//! What can be wrong with a configuration.

use crate::json::{Location, SyntaxError};

/// What is wrong with a `config.json`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// It is not JSON.
    #[error("{error}")]
    Syntax {
        /// What is wrong.
        error: SyntaxError,
        /// Where.
        location: Location,
    },
    /// A value is of the wrong type.
    #[error("expected {expected}, found {found}")]
    Type {
        /// What the runtime specification asks for.
        expected: &'static str,
        /// What is there.
        found: &'static str,
        /// Where.
        location: Location,
    },
    /// A key that matters here stands twice, or in other case: runtimes do not agree on its meaning.
    #[error("key {key:?} is ambiguous")]
    Ambiguous {
        /// The key as it stands.
        key: String,
        /// Where.
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

    /// Returns where it is.
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
