//! The conditions of a hook, the values they are matched against, and the deciding condition.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Serialize, Serializer};

use super::Pattern;
use super::consumer::AnnotationRule;

/// The values of a container that hook conditions are matched against.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MatchTarget {
    pub command: TargetCommand,
    /// Annotations that the consumer matches; they may differ from those of `config.json`.
    pub annotations: BTreeMap<String, String>,
    /// If set, the user requested mounts beyond the consumer's own.
    pub has_bind_mounts: bool,
}

/// Values that replace or extend those of the configuration when hooks are matched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TargetOverrides {
    /// Additional annotations, which override those of the configuration.
    pub annotations: BTreeMap<String, String>,
    /// If set, the configuration's own annotations are ignored.
    pub without_config_annotations: bool,
    /// Annotations of the configuration that are matched.
    pub annotation_rule: AnnotationRule,
    /// Overrides the detection of the user's mounts in the configuration.
    pub has_bind_mounts: Option<bool>,
}

/// The command of a container, from `process.args` of its `config.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TargetCommand {
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
pub struct HookConditions {
    /// Rule for combining the conditions.
    pub combine: CombineRule,
    /// `true` holds for every container, `false` for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub always: Option<bool>,
    /// The condition holds if this is true and the container has bind mounts; `false` never holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub has_bind_mounts: Option<bool>,
    /// Conditions on annotations. Each holds if one annotation matches both the key pattern and the
    /// value pattern.
    #[serde(serialize_with = "serialize_by_key", skip_serializing_if = "Vec::is_empty")]
    pub annotations: Vec<AnnotationPattern>,
    /// The condition holds if any pattern matches `process.args[0]`.
    #[serde(serialize_with = "sources", skip_serializing_if = "Vec::is_empty")]
    pub commands: Vec<Pattern>,
}

/// The rule for combining conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CombineRule {
    /// All conditions must hold: schema 1.0.0.
    All,
    /// One condition must hold: schema 0.1.0.
    Any,
}

/// The patterns for the key and the value of one annotation.
#[derive(Clone, Debug)]
pub struct AnnotationPattern {
    pub key: Pattern,
    pub value: Pattern,
}

/// A condition with its wanted and its actual value.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum MatchReason<'a> {
    Always(bool),
    BindMounts {
        wanted: bool,
        /// If set, the container has bind mounts.
        present: bool,
    },
    /// A condition on an annotation.
    Annotation {
        pattern: &'a AnnotationPattern,
        /// The first annotation that matches, as key and value; `None` if none matches.
        found: Option<(&'a str, &'a str)>,
    },
    /// A condition on the command.
    Command {
        /// The patterns, of which one must match.
        patterns: &'a [Pattern],
        /// The first pattern that matches; `None` if none matches.
        found: Option<&'a Pattern>,
        /// The container's command, from `process.args[0]`.
        command: &'a str,
    },
    /// Commands are the only condition, and `config.json` has no `process`.
    NoProcess,
    /// The hook has no condition, so none can hold.
    NoCondition,
}

impl MatchReason<'_> {
    /// Returns whether the condition holds.
    pub fn holds(&self) -> bool {
        match self {
            MatchReason::Always(value) => *value,
            // `false` does not mean "has none": it never holds.
            MatchReason::BindMounts { wanted, present } => *wanted && *present,
            MatchReason::Annotation { found, .. } => found.is_some(),
            MatchReason::Command { found, .. } => found.is_some(),
            MatchReason::NoProcess | MatchReason::NoCondition => false,
        }
    }
}

/// The result of a hook's conditions, and the deciding one.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct MatchEvaluation<'a> {
    pub matched: bool,
    /// The deciding condition. For [`CombineRule::All`], the first that fails, or else the last
    /// that holds; for [`CombineRule::Any`], the first that holds, or else the last that fails.
    pub reason: MatchReason<'a>,
}

/// Error of matching `commands` against a container without `process.args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("process.args must have at least one entry to match `commands` against")]
pub struct EmptyArgs;

impl HookConditions {
    /// Returns whether the conditions can hold for any container.
    pub fn can_hold(&self) -> bool {
        let flags = [self.always, self.has_bind_mounts];
        let has_patterns = !self.annotations.is_empty() || !self.commands.is_empty();
        let is_one_true = flags.contains(&Some(true)) || has_patterns;
        is_one_true && (self.combine == CombineRule::Any || !flags.contains(&Some(false)))
    }

    /// Evaluates the conditions for a container.
    pub fn evaluate<'a>(
        &'a self,
        target: &'a MatchTarget,
    ) -> Result<MatchEvaluation<'a>, EmptyArgs> {
        let decisive = self.combine == CombineRule::Any;
        let mut last = None;
        for reason in self.conditions(target) {
            let reason = reason?;
            if reason.holds() == decisive {
                return Ok(MatchEvaluation { matched: decisive, reason });
            }
            last = Some(reason);
        }
        Ok(match last {
            Some(reason) => MatchEvaluation { matched: !decisive, reason },
            None if self.commands.is_empty() => {
                MatchEvaluation { matched: false, reason: MatchReason::NoCondition }
            }
            None => MatchEvaluation { matched: false, reason: MatchReason::NoProcess },
        })
    }

    /// Evaluates the conditions in podman's order, which ends with the commands.
    ///
    /// Yields nothing for commands if the container has no process: they are ignored then.
    pub fn conditions<'a>(
        &'a self,
        target: &'a MatchTarget,
    ) -> impl Iterator<Item = Result<MatchReason<'a>, EmptyArgs>> {
        let always = self.always.map(MatchReason::Always);
        let present = target.has_bind_mounts;
        let mounts = self.has_bind_mounts.map(|wanted| MatchReason::BindMounts { wanted, present });
        let annotations = self.annotations.iter().map(move |pattern| {
            let found = target
                .annotations
                .iter()
                .find(|(key, value)| pattern.key.is_match(key) && pattern.value.is_match(value));
            let found = found.map(|(key, value)| (key.as_str(), value.as_str()));
            MatchReason::Annotation { pattern, found }
        });
        let commands = std::iter::once_with(move || self.command(target)).flatten();
        always.into_iter().chain(mounts).chain(annotations).map(Ok).chain(commands)
    }

    fn command<'a>(
        &'a self,
        target: &'a MatchTarget,
    ) -> Option<Result<MatchReason<'a>, EmptyArgs>> {
        if self.commands.is_empty() {
            return None;
        }
        match &target.command {
            TargetCommand::NoProcess => None,
            TargetCommand::NoArgs => Some(Err(EmptyArgs)),
            TargetCommand::Program(command) => {
                let found = self.commands.iter().find(|pattern| pattern.is_match(command));
                Some(Ok(MatchReason::Command { patterns: &self.commands, found, command }))
            }
        }
    }
}

fn serialize_by_key<S: Serializer>(
    patterns: &[AnnotationPattern],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(patterns.iter().map(|p| (p.key.as_str(), p.value.as_str())))
}

fn sources<S: Serializer>(patterns: &[Pattern], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(patterns.iter().map(Pattern::as_str))
}

impl fmt::Display for MatchReason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            MatchReason::Always(true) => f.write_str("always is true"),
            MatchReason::Always(false) => f.write_str("always is false, which never matches"),
            MatchReason::BindMounts { wanted: true, present: true } => {
                f.write_str("hasBindMounts is true and the container has bind mounts")
            }
            MatchReason::BindMounts { wanted: true, present: false } => {
                f.write_str("hasBindMounts is true and the container has no bind mounts")
            }
            MatchReason::BindMounts { wanted: false, .. } => {
                f.write_str("hasBindMounts is false, which never matches")
            }
            MatchReason::Annotation { pattern, found: Some((key, value)) } => write!(
                f,
                "annotation `{key}={value}` matches key `{}` and value `{}`",
                pattern.key, pattern.value
            ),
            MatchReason::Annotation { pattern, found: None } => write!(
                f,
                "no annotation matches key `{}` and value `{}`",
                pattern.key, pattern.value
            ),
            MatchReason::Command { found: Some(pattern), command, .. } => {
                write!(f, "command `{command}` matches `{pattern}`")
            }
            MatchReason::Command { patterns: [pattern], command, .. } => {
                write!(f, "command `{command}` does not match `{pattern}`")
            }
            MatchReason::Command { patterns, command, .. } => {
                write!(f, "command `{command}` matches none of")?;
                for (at, pattern) in patterns.iter().enumerate() {
                    write!(f, "{} `{pattern}`", if at == 0 { "" } else { "," })?;
                }
                Ok(())
            }
            MatchReason::NoProcess => {
                f.write_str("commands are ignored, as the configuration has no process")
            }
            MatchReason::NoCondition => f.write_str("when has no condition, and so never matches"),
        }
    }
}
