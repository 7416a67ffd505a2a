//! Which unquoted words are what, and which mappings are read.

use super::node::Value;
use super::{gopkg, scalar};

/// Dialect of YAML.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// YAML 1.2 with its core schema. Any scalar is a key, and is read as text.
    Core,
    /// What Go's `gopkg.in/yaml.v3` reads: the core schema with what it keeps of YAML 1.1, which are
    /// numbers such as `010`, `0b11` and `1_000`, `!!binary`, and merge keys `<<`. Keys are strings.
    Go,
}

impl Dialect {
    /// Returns the value of an unquoted scalar; `None` if it is a number that JSON does not have.
    pub(super) fn resolve<O>(self, word: &str) -> Option<Value<O>> {
        match self {
            Dialect::Core => Some(scalar::resolve(word)),
            Dialect::Go => gopkg::resolve(word),
        }
    }

    /// Returns the value of a scalar with a tag of YAML, such as `int`; `None` if the tag is unknown or the
    /// scalar is not of that type.
    pub(super) fn resolve_as<O>(self, tag: &str, word: &str) -> Option<Value<O>> {
        match self {
            Dialect::Core => scalar::resolve_as(tag, word),
            Dialect::Go => gopkg::resolve_as(tag, word),
        }
    }
}
