//! The conditions of a hook, what they are matched against, and which of them decided.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Serialize, Serializer};

use super::Pattern;

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

/// The conditions under which a hook is injected.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct When {
    /// Whether all conditions must hold or one is enough.
    pub combine: Combine,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub always: Option<bool>,
    /// Holds if true and the container has bind mounts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub has_bind_mounts: Option<bool>,
    /// Each holds if some annotation matches both its patterns.
    #[serde(serialize_with = "by_key", skip_serializing_if = "Vec::is_empty")]
    pub annotations: Vec<AnnotationPattern>,
    /// Hold together if one of them matches `process.args[0]`.
    #[serde(serialize_with = "sources", skip_serializing_if = "Vec::is_empty")]
    pub commands: Vec<Pattern>,
}

/// Whether all conditions must hold, or one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Combine {
    /// All must hold: schema 1.0.0.
    All,
    /// One must hold: schema 0.1.0.
    Any,
}

/// The patterns for the key and the value of one annotation.
#[derive(Clone, Debug)]
pub struct AnnotationPattern {
    pub key: Pattern,
    pub value: Pattern,
}

/// One condition, looked at: what was asked for and what was there.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Reason<'a> {
    Always(bool),
    BindMounts {
        wanted: bool,
        /// Whether the container has bind mounts.
        present: bool,
    },
    /// An annotation is asked for.
    Annotation {
        pattern: &'a AnnotationPattern,
        /// The first annotation that matches, as key and value.
        found: Option<(&'a str, &'a str)>,
    },
    /// A command is asked for.
    Command {
        /// The patterns, of which one must match.
        patterns: &'a [Pattern],
        found: Option<&'a Pattern>,
        command: &'a str,
    },
    /// Only commands are asked for, and `config.json` has no `process`.
    NoProcess,
    /// There is no condition, and so nothing that could hold.
    NoCondition,
}

impl Reason<'_> {
    /// Returns whether the condition holds.
    pub fn holds(&self) -> bool {
        match self {
            Reason::Always(value) => *value,
            // `false` does not mean "has none": it never holds.
            Reason::BindMounts { wanted, present } => *wanted && *present,
            Reason::Annotation { found, .. } => found.is_some(),
            Reason::Command { found, .. } => found.is_some(),
            Reason::NoProcess | Reason::NoCondition => false,
        }
    }
}

/// Whether a hook applies to a container, and the condition that decided.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Evaluation<'a> {
    pub matched: bool,
    /// The condition that decided: the first to fail or the last to hold where all must hold, the
    /// first to hold or the last to fail where one is enough.
    pub reason: Reason<'a>,
}

/// The container runs nothing, and a hook has conditions on what it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("process.args must have at least one entry to match `commands` against")]
pub struct EmptyArgs;

impl When {
    /// Decides whether the conditions hold for a container.
    pub fn evaluate<'a>(&'a self, target: &'a Target) -> Result<Evaluation<'a>, EmptyArgs> {
        let decisive = self.combine == Combine::Any;
        let mut last = None;
        for reason in self.conditions(target) {
            let reason = reason?;
            if reason.holds() == decisive {
                return Ok(Evaluation { matched: decisive, reason });
            }
            last = Some(reason);
        }
        Ok(match last {
            Some(reason) => Evaluation { matched: !decisive, reason },
            None if self.commands.is_empty() => {
                Evaluation { matched: false, reason: Reason::NoCondition }
            }
            None => Evaluation { matched: false, reason: Reason::NoProcess },
        })
    }

    /// Looks at each condition in the order the reference does, which ends with the commands.
    ///
    /// Nothing is yielded for commands when the container has no process: they are ignored then.
    pub fn conditions<'a>(
        &'a self,
        target: &'a Target,
    ) -> impl Iterator<Item = Result<Reason<'a>, EmptyArgs>> {
        let always = self.always.map(Reason::Always);
        let present = target.has_bind_mounts;
        let mounts = self.has_bind_mounts.map(|wanted| Reason::BindMounts { wanted, present });
        let annotations = self.annotations.iter().map(move |pattern| {
            let found = target
                .annotations
                .iter()
                .find(|(key, value)| pattern.key.is_match(key) && pattern.value.is_match(value));
            let found = found.map(|(key, value)| (key.as_str(), value.as_str()));
            Reason::Annotation { pattern, found }
        });
        let commands = std::iter::once_with(move || self.command(target)).flatten();
        always.into_iter().chain(mounts).chain(annotations).map(Ok).chain(commands)
    }

    fn command<'a>(&'a self, target: &'a Target) -> Option<Result<Reason<'a>, EmptyArgs>> {
        if self.commands.is_empty() {
            return None;
        }
        match &target.command {
            Command::NoProcess => None,
            Command::NoArgs => Some(Err(EmptyArgs)),
            Command::Program(command) => {
                let found = self.commands.iter().find(|pattern| pattern.is_match(command));
                Some(Ok(Reason::Command { patterns: &self.commands, found, command }))
            }
        }
    }
}

fn by_key<S: Serializer>(patterns: &[AnnotationPattern], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(patterns.iter().map(|p| (p.key.as_str(), p.value.as_str())))
}

fn sources<S: Serializer>(patterns: &[Pattern], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(patterns.iter().map(Pattern::as_str))
}

impl fmt::Display for Reason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Reason::Always(true) => f.write_str("always is true"),
            Reason::Always(false) => f.write_str("always is false, which never matches"),
            Reason::BindMounts { wanted: true, present: true } => {
                f.write_str("hasBindMounts is true and the container has bind mounts")
            }
            Reason::BindMounts { wanted: true, present: false } => {
                f.write_str("hasBindMounts is true and the container has no bind mounts")
            }
            Reason::BindMounts { wanted: false, .. } => {
                f.write_str("hasBindMounts is false, which never matches")
            }
            Reason::Annotation { pattern, found: Some((key, value)) } => write!(
                f,
                "annotation `{key}={value}` matches key `{}` and value `{}`",
                pattern.key, pattern.value
            ),
            Reason::Annotation { pattern, found: None } => write!(
                f,
                "no annotation matches key `{}` and value `{}`",
                pattern.key, pattern.value
            ),
            Reason::Command { found: Some(pattern), command, .. } => {
                write!(f, "command `{command}` matches `{pattern}`")
            }
            Reason::Command { patterns: [pattern], command, .. } => {
                write!(f, "command `{command}` does not match `{pattern}`")
            }
            Reason::Command { patterns, command, .. } => {
                write!(f, "command `{command}` matches none of")?;
                for (at, pattern) in patterns.iter().enumerate() {
                    write!(f, "{} `{pattern}`", if at == 0 { "" } else { "," })?;
                }
                Ok(())
            }
            Reason::NoProcess => {
                f.write_str("commands are ignored, as the configuration has no process")
            }
            Reason::NoCondition => f.write_str("when has no condition, and so never matches"),
        }
    }
}
