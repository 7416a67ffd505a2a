//! Definitions of hooks, and drafts of hook files.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::{fs, io};

use serde::Serialize;

use crate::hooks::{Hook, HookConditions, HookError, HookStage};

/// A hook, its conditions and its stages.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct HookDefinition {
    /// The schema the file follows.
    pub version: SchemaVersion,
    pub hook: Hook,
    pub when: HookConditions,
    /// The stages, in the order of the file, repetitions included.
    pub stages: Vec<HookStage>,
}

/// Program of a mask: a hook that never applies and only hides another hook of the same name, as
/// `oci-hooks disable` writes it. It is never run, but must exist on every host.
pub const MASK_PROGRAM: &str = "/";

/// A schema of hook files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum SchemaVersion {
    /// The old schema; files need no version, and one condition is enough.
    #[serde(rename = "0.1.0")]
    V0_1_0,
    /// Schema 1.0.0, the current one.
    #[serde(rename = "1.0.0")]
    V1_0_0,
}

impl SchemaVersion {
    /// Returns the version as hook files write it.
    pub fn name(self) -> &'static str {
        match self {
            SchemaVersion::V0_1_0 => "0.1.0",
            SchemaVersion::V1_0_0 => "1.0.0",
        }
    }

    /// Returns a JSON Schema (draft 2020-12) of hook files of this version, for editors.
    ///
    /// The schema is stricter than consumers, which ignore unknown keys and load hooks that never
    /// apply. It is laxer where JSON Schema cannot check: it covers neither patterns nor repeated
    /// keys, nor the difference between `5` and `5.0`.
    pub fn json_schema(self) -> &'static str {
        match self {
            SchemaVersion::V0_1_0 => include_str!("0.1.0.schema.json"),
            SchemaVersion::V1_0_0 => include_str!("1.0.0.schema.json"),
        }
    }
}

/// Options of [`HookDefinition::parse`]: checks in addition to the schema.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct ParseOptions<'a> {
    /// Stages that the consumer runs itself.
    pub extension_stages: &'a [String],
    /// Check of the program's existence.
    pub path_check: PathCheck,
}

impl<'a> ParseOptions<'a> {
    /// Returns options for a consumer with these extension stages.
    pub fn new(extension_stages: &'a [String]) -> Self {
        ParseOptions { extension_stages, ..Self::default() }
    }

    /// Returns the options with another check of the program's existence.
    #[must_use]
    pub fn with_path_check(self, path_check: PathCheck) -> Self {
        ParseOptions { path_check, ..self }
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

/// The check whether a hook's program exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathCheck {
    /// The program must exist, as for podman and CRI-O. A relative path is looked up from the
    /// working directory.
    #[default]
    Exists,
    /// The program is not looked up.
    Skip,
}

impl HookDefinition {
    /// Returns whether the hook never applies and only hides a hook of the same name.
    pub fn is_mask(&self) -> bool {
        self.hook.path == MASK_PROGRAM && self.when.always == Some(false)
    }
}

/// The content of a new 1.0.0 hook file.
///
/// A draft is not checked: [`HookDefinition::parse`] checks its text.
///
/// ```
/// use oci_hooks::hooks::{HookDraft, DraftConditions, Hook};
///
/// let draft = HookDraft {
///     hook: Hook { path: "/usr/bin/note".to_owned(), ..Hook::default() },
///     when: DraftConditions { commands: vec!["/bash$".to_owned()], ..DraftConditions::default() },
///     stages: vec!["poststop".to_owned()],
/// };
/// assert!(draft.to_text().starts_with("{\n  \"version\": \"1.0.0\",\n  \"hook\": {"));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HookDraft {
    pub hook: Hook,
    /// Conditions, all of which must hold; without any, the hook never applies.
    pub when: DraftConditions,
    pub stages: Vec<String>,
}

/// The conditions of a [`HookDraft`]; unset ones are not written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DraftConditions {
    /// `true` holds for every container, `false` for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub always: Option<bool>,
    /// `true` holds for containers with bind mounts; `false` never holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub has_bind_mounts: Option<bool>,
    /// Patterns for annotation keys, each with the pattern for its value.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Patterns of which one must match `process.args[0]`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub commands: Vec<String>,
}

impl HookDraft {
    /// Returns the text of the file, on several lines.
    pub fn to_text(&self) -> String {
        /// A hook file with its keys in the order of the manual page.
        #[derive(Serialize)]
        struct DraftFile<'a> {
            version: &'static str,
            hook: &'a Hook,
            when: &'a DraftConditions,
            stages: &'a [String],
        }
        let file = DraftFile {
            version: SchemaVersion::V1_0_0.name(),
            hook: &self.hook,
            when: &self.when,
            stages: &self.stages,
        };
        let mut text = serde_json::to_string_pretty(&file).expect("strings, numbers and booleans");
        text.push('\n');
        text
    }
}
