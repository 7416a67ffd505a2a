//! What hooks are matched against.

use std::collections::BTreeMap;

/// A container as the conditions of hooks see it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Target {
    pub command: Command,
    /// The annotations the consumer matches, which need not be those of `config.json`.
    pub annotations: BTreeMap<String, String>,
    /// Whether the user asked for mounts beyond the consumer's own.
    pub has_bind_mounts: bool,
}

/// Where hooks are matched against something else than the configuration shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TargetOverrides {
    /// Annotations that are matched too; they go before those of the configuration.
    pub annotations: BTreeMap<String, String>,
    /// Whether the configuration's own annotations are left out.
    pub without_config_annotations: bool,
    /// Whether the user asked for mounts, if that is known better than the configuration shows it.
    pub has_bind_mounts: Option<bool>,
}

/// What a container runs, from `process.args` of its `config.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Command {
    /// The configuration has no `process`: conditions on the command are ignored.
    #[default]
    NoProcess,
    /// `process.args` is missing or empty: conditions on the command are errors.
    NoArgs,
    Program(String),
}
