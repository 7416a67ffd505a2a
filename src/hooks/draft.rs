//! Hook files yet to be written.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Hook, Version};

/// The content of a 1.0.0 hook file that is made, not read.
///
/// Nothing is checked here: [`Definition::parse`](super::Definition::parse) judges the text.
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
