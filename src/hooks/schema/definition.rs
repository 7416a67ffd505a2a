//! A hook as its file defines it.

use std::cell::RefCell;
use std::collections::HashSet;

use serde::Serialize;

use super::decode::{Decoder, Text};
use super::{usual, v0_1_0, v1_0_0, validate};
use crate::hooks::{Fault, Hook, HookError, Stage, When};
use crate::json::{Document, Location, Value};

/// A hook, when it applies, and at which stages.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Definition {
    /// The schema the file follows.
    pub version: Version,
    pub hook: Hook,
    pub when: When,
    /// The stages, in the order and as often as the file has them.
    pub stages: Vec<Stage>,
}

/// The program of hooks that only hide others by their name, as `oci-hooks disable` writes them. It is
/// never run, but must exist on every host.
pub(in crate::hooks) const MASK_PROGRAM: &str = "/";

/// A schema of hook files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Version {
    /// The old one, without a version, of which any condition is enough.
    #[serde(rename = "0.1.0")]
    V0_1_0,
    /// Schema 1.0.0, the current one.
    #[serde(rename = "1.0.0")]
    V1_0_0,
}

impl Version {
    /// Returns the version as hook files write it.
    pub fn name(self) -> &'static str {
        match self {
            Version::V0_1_0 => "0.1.0",
            Version::V1_0_0 => "1.0.0",
        }
    }

    /// Returns a JSON Schema (draft 2020-12) of such files, for editors.
    ///
    /// It is stricter than consumers, who ignore unknown keys and load hooks that never apply, and
    /// laxer where a schema cannot tell: it knows nothing of patterns, of keys that occur twice, and
    /// of the difference between `5` and `5.0`.
    pub fn json_schema(self) -> &'static str {
        match self {
            Version::V0_1_0 => include_str!("0.1.0.schema.json"),
            Version::V1_0_0 => include_str!("1.0.0.schema.json"),
        }
    }
}

/// What a definition is checked against beyond its schema.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct SchemaOptions<'a> {
    /// Stages the consumer runs by itself.
    pub extension_stages: &'a [String],
    /// Whether the program must exist.
    pub path_check: PathCheck,
}

impl<'a> SchemaOptions<'a> {
    /// Returns options for a consumer with these extension stages.
    pub fn new(extension_stages: &'a [String]) -> Self {
        SchemaOptions { extension_stages, ..Self::default() }
    }

    /// Returns the options with another answer to whether the program must exist.
    #[must_use]
    pub fn with_path_check(self, path_check: PathCheck) -> Self {
        SchemaOptions { path_check, ..self }
    }
}

/// Paths of programs that were found to exist.
#[derive(Debug, Default)]
pub(in crate::hooks) struct FoundPrograms(pub(super) RefCell<HashSet<String>>);

/// Whether the program of a hook must exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathCheck {
    /// It must, as for podman and CRI-O. A relative path is looked up from the working directory.
    #[default]
    Exists,
    /// It need not: the file system is left alone.
    Skip,
}

impl Definition {
    /// Returns whether this never applies and is only there to hide a hook of the same name.
    pub fn is_mask(&self) -> bool {
        self.hook.path == MASK_PROGRAM && self.when.always == Some(false)
    }

    /// Reads the text of a hook file.
    ///
    /// ```
    /// use oci_hooks::hooks::{Definition, PathCheck, SchemaOptions};
    ///
    /// let text = br#"{"version": "1.0.0", "hook": {"path": "/bin/true"},
    ///                 "when": {"commands": ["/bash$"]}, "stages": ["poststop"]}"#;
    /// let options = SchemaOptions::default().with_path_check(PathCheck::Skip);
    /// let definition = Definition::parse(text, options).unwrap();
    /// assert_eq!(definition.hook.path, "/bin/true");
    /// ```
    pub fn parse(text: &[u8], options: SchemaOptions<'_>) -> Result<Self, Fault> {
        Self::parse_one_of_many(text, options, &FoundPrograms::default())
    }

    /// Reads one of many hook files, whose programs are looked up once each.
    pub(in crate::hooks) fn parse_one_of_many(
        text: &[u8],
        options: SchemaOptions<'_>,
        found: &FoundPrograms,
    ) -> Result<Self, Fault> {
        if let Some(definition) = usual::decode(text, options, found) {
            return Ok(definition);
        }
        let document = Document::parse(text).map_err(|error| Fault {
            location: Some(Location::of_span(text, error.offset..error.offset + 1)),
            error: HookError::Syntax(error),
        })?;
        Self::from_parsed(&document, options, found)
    }

    /// Reads a hook file that is parsed already.
    pub fn from_document(
        document: &Document<'_>,
        options: SchemaOptions<'_>,
    ) -> Result<Self, Fault> {
        Self::from_parsed(document, options, &FoundPrograms::default())
    }

    fn from_parsed(
        document: &Document<'_>,
        options: SchemaOptions<'_>,
        found: &FoundPrograms,
    ) -> Result<Self, Fault> {
        let root = document.root();
        let raw = match version(root)? {
            Version::V1_0_0 => v1_0_0::decode(root)?,
            Version::V0_1_0 => v0_1_0::decode(root)?,
        };
        validate::validate(raw, root, options, found)
    }
}

/// Finds the version, which decides how the rest is read.
pub(super) fn version(root: Value<'_>) -> Result<Version, Fault> {
    let mut decoder = Decoder::default();
    let mut version = Text::default();
    decoder.object(root, &["version"], |decoder, _, value| decoder.string(value, &mut version));
    let version = decoder.finish(version)?;
    match version.text.as_str() {
        "1.0.0" => Ok(Version::V1_0_0),
        "0.1.0" | "" => Ok(Version::V0_1_0),
        _ => Err(Fault {
            error: HookError::UnknownVersion { version: version.text },
            location: version.at.map(Value::location),
        }),
    }
}
