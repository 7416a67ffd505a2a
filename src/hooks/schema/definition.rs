//! A hook as its file defines it, and hook files yet to be written.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io;

use serde::Serialize;

use crate::hooks::{Hook, HookError, Stage, When};

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
pub const MASK_PROGRAM: &str = "/";

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
pub struct FoundPrograms(RefCell<HashSet<String>>);

impl FoundPrograms {
    /// Looks a program up, unless it was found before.
    pub fn check(&self, path: &str) -> Result<(), HookError> {
        if self.0.borrow().contains(path) {
            return Ok(());
        }
        match fs::metadata(path) {
            Ok(_) => {
                self.0.borrow_mut().insert(path.to_owned());
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(HookError::PathMissing { path: path.to_owned() })
            }
            Err(source) => Err(HookError::PathLookup { path: path.to_owned(), source }),
        }
    }
}

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
}

/// The content of a 1.0.0 hook file that is made, not read.
///
/// Nothing is checked here: [`Definition::parse`] judges the text.
///
/// ```
/// use oci_hooks::hooks::{Draft, DraftWhen, Hook};
///
/// let draft = Draft {
///     hook: Hook { path: "/usr/bin/note".to_owned(), ..Hook::default() },
///     when: DraftWhen { commands: vec!["/bash$".to_owned()], ..DraftWhen::default() },
///     stages: vec!["poststop".to_owned()],
/// };
/// assert!(draft.to_text().starts_with("{\n  \"version\": \"1.0.0\",\n  \"hook\": {"));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Draft {
    pub hook: Hook,
    /// The conditions, all of which must hold; without any the hook never applies.
    pub when: DraftWhen,
    pub stages: Vec<String>,
}

/// The conditions of a [`Draft`]; what is not set is not written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DraftWhen {
    /// `true` holds for every container, `false` for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub always: Option<bool>,
    /// `true` holds for containers with bind mounts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub has_bind_mounts: Option<bool>,
    /// Patterns for annotation values by patterns for their keys.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Patterns of which one must match `process.args[0]`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub commands: Vec<String>,
}

impl Draft {
    /// Returns the file's text, laid out over lines.
    pub fn to_text(&self) -> String {
        /// The order in which the manual page has the keys.
        #[derive(Serialize)]
        struct File<'a> {
            version: &'static str,
            hook: &'a Hook,
            when: &'a DraftWhen,
            stages: &'a [String],
        }
        let file = File {
            version: Version::V1_0_0.name(),
            hook: &self.hook,
            when: &self.when,
            stages: &self.stages,
        };
        let mut text = serde_json::to_string_pretty(&file).expect("strings, numbers and booleans");
        text.push('\n');
        text
    }
}
