//! Names and indexes of plugins.

use std::fmt;

/// Name of a plugin, and the index that orders the calls of all plugins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginIdentity {
    pub(super) name: String,
    pub(super) index: String,
}

/// Errors of a name or index that runtimes reject.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    #[error("invalid plugin name {0:?}: expected letters, digits and any of _.+-")]
    Name(String),
    #[error("invalid plugin index {0:?}: expected two digits, for example 10")]
    Index(String),
}

impl PluginIdentity {
    /// Returns the identity of a plugin, if its name and index are valid.
    pub fn new(name: &str, index: &str) -> Result<Self, IdentityError> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.+-".contains(&byte);
        if name.is_empty() || !name.bytes().all(is_allowed) {
            return Err(IdentityError::Name(name.to_owned()));
        }
        if index.len() != 2 || !index.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(IdentityError::Index(index.to_owned()));
        }
        Ok(PluginIdentity { name: name.to_owned(), index: index.to_owned() })
    }
}

impl fmt::Display for PluginIdentity {
    /// Formats the identity as `INDEX-NAME`, the file name of a plugin that the runtime starts.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.index, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_indexes_invalid_for_runtimes_are_rejected() {
        assert_eq!(
            PluginIdentity::new("oci-hooks-nri", "10").unwrap().to_string(),
            "10-oci-hooks-nri"
        );
        for name in ["", "a b", "a/b", "é"] {
            assert_eq!(PluginIdentity::new(name, "10"), Err(IdentityError::Name(name.to_owned())));
        }
        for index in ["", "1", "100", "1a", "٣٣"] {
            assert_eq!(
                PluginIdentity::new("a", index),
                Err(IdentityError::Index(index.to_owned()))
            );
        }
    }
}
