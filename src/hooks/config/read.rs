//! Reading the values that hooks are matched against.

use std::collections::BTreeMap;

use crate::hooks::consumer::{BindMountRule, ConfigMount, MountOrigin};
use crate::hooks::{MatchTarget, TargetCommand, TargetOverrides};
use crate::json::{JsonDocument, JsonKind, JsonValue, SyntaxError, TextLocation, folds_to};

/// A `config.json` of the [runtime specification].
///
/// [runtime specification]: https://github.com/opencontainers/runtime-spec/blob/main/config.md
#[derive(Clone, Debug)]
pub struct ConfigDocument<'t> {
    pub(super) document: JsonDocument<'t>,
}

impl<'t> ConfigDocument<'t> {
    /// Parses a container's `config.json` from bytes or a string; its root must be an object.
    pub fn parse(text: &'t (impl AsRef<[u8]> + ?Sized)) -> Result<Self, ConfigError> {
        let text = text.as_ref();
        let document = JsonDocument::parse(text).map_err(|error| ConfigError::Syntax {
            location: TextLocation::of_span(text, error.offset..error.offset + 1),
            error,
        })?;
        expect(document.root(), JsonKind::Object, "an object")?;
        Ok(ConfigDocument { document })
    }

    /// Returns the JSON document as parsed.
    pub fn document(&self) -> &JsonDocument<'t> {
        &self.document
    }

    /// Returns the values to match hooks against, with the annotations of the configuration.
    pub fn target(&self, rule: BindMountRule) -> Result<MatchTarget, ConfigError> {
        self.target_with(rule, &TargetOverrides::default())
    }

    /// Returns the values to match hooks against, with the caller's overrides.
    pub fn target_with(
        &self,
        rule: BindMountRule,
        overrides: &TargetOverrides,
    ) -> Result<MatchTarget, ConfigError> {
        let mut annotations = match overrides.without_config_annotations {
            true => BTreeMap::new(),
            false => self.annotations()?,
        };
        annotations.retain(|key, _| overrides.annotation_rule.counts(key));
        annotations.extend(overrides.annotations.clone());
        let has_bind_mounts = match overrides.has_bind_mounts {
            Some(known) => known,
            None => self.has_bind_mounts(rule)?,
        };
        Ok(MatchTarget { command: self.command()?, annotations, has_bind_mounts })
    }

    /// Returns the container's command, `process.args[0]`.
    pub fn command(&self) -> Result<TargetCommand, ConfigError> {
        let Some(process) = member(self.document.root(), "process", JsonKind::Object, "an object")?
        else {
            return Ok(TargetCommand::NoProcess);
        };
        let Some(args) = member(process, "args", JsonKind::Array, "an array of strings")? else {
            return Ok(TargetCommand::NoArgs);
        };
        match args.elements().next() {
            // Go decodes null as the empty string.
            Some(first) if first.is_null() => Ok(TargetCommand::Program(String::new())),
            Some(first) => string(first).map(TargetCommand::Program),
            None => Ok(TargetCommand::NoArgs),
        }
    }

    /// Returns the annotations of the configuration; a null value becomes an empty string, as in
    /// Go.
    pub fn annotations(&self) -> Result<BTreeMap<String, String>, ConfigError> {
        let mut annotations = BTreeMap::new();
        let object = member(self.document.root(), "annotations", JsonKind::Object, "an object")?;
        for member in object.into_iter().flat_map(JsonValue::members) {
            let value = if member.value.is_null() { String::new() } else { string(member.value)? };
            annotations.insert(string(member.key)?, value);
        }
        Ok(annotations)
    }

    /// Returns whether the user requested mounts, as far as the configuration shows it.
    pub fn has_bind_mounts(&self, rule: BindMountRule) -> Result<bool, ConfigError> {
        for mount in self.mount_origins(rule)? {
            if mount?.1.counts() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns destination and origin of each mount.
    pub fn mount_origins(
        &self,
        rule: BindMountRule,
    ) -> Result<impl Iterator<Item = Result<(String, MountOrigin), ConfigError>>, ConfigError> {
        let mounts =
            member(self.document.root(), "mounts", JsonKind::Array, "an array of objects")?;
        let mounts = mounts.into_iter().flat_map(JsonValue::elements);
        let annotations = self.annotations()?;
        Ok(mounts.map(move |mount| {
            expect(mount, JsonKind::Object, "an object")?;
            let text = |name| mount.get(name).and_then(JsonValue::as_str).unwrap_or_default();
            let options = mount.get("options").into_iter().flat_map(JsonValue::elements);
            let options: Vec<_> = options.filter_map(JsonValue::as_str).collect();
            let destination = text("destination");
            let mount = ConfigMount {
                destination: &destination,
                kind: &text("type"),
                source: &text("source"),
                options: &options.iter().map(AsRef::as_ref).collect::<Vec<_>>(),
            };
            let origin = rule.origin(&mount, &annotations);
            Ok((destination.into_owned(), origin))
        }))
    }
}

/// Returns the value of a key that is present and not null, and checks its type.
///
/// runc, written in Go, merges keys that differ in case and reads the later of two; crun, written
/// in C, does not. Keys that the two would read differently are rejected.
pub fn member<'d>(
    object: JsonValue<'d>,
    name: &str,
    kind: JsonKind,
    expected: &'static str,
) -> Result<Option<JsonValue<'d>>, ConfigError> {
    let mut found = None;
    for member in object.members() {
        let key = member.key.as_str().unwrap_or_default();
        if !folds_to(&key, name) {
            continue;
        }
        if found.is_some() || key != name {
            return Err(ConfigError::Ambiguous {
                key: key.into_owned(),
                location: member.key.location(),
            });
        }
        found = Some(member.value);
    }
    let Some(value) = found.filter(|value| !value.is_null()) else { return Ok(None) };
    expect(value, kind, expected).map(Some)
}

fn expect<'d>(
    value: JsonValue<'d>,
    kind: JsonKind,
    expected: &'static str,
) -> Result<JsonValue<'d>, ConfigError> {
    if value.kind() == kind {
        return Ok(value);
    }
    Err(ConfigError::Type { expected, found: value.kind().name(), location: value.location() })
}

fn string(value: JsonValue<'_>) -> Result<String, ConfigError> {
    expect(value, JsonKind::String, "a string")?;
    Ok(value.as_str().unwrap_or_default().into_owned())
}

/// Errors of a `config.json`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    #[error("{error}")]
    Syntax { error: SyntaxError, location: TextLocation },
    /// A value is of the wrong type.
    #[error("expected {expected}, found {found}")]
    Type {
        /// Type that the runtime specification requires.
        expected: &'static str,
        found: &'static str,
        location: TextLocation,
    },
    /// A relevant key is repeated or in another case: runtimes disagree on its meaning.
    #[error(
        "key {key:?} is ambiguous: runtimes disagree about keys that are repeated or in another case"
    )]
    Ambiguous { key: String, location: TextLocation },
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

    /// Returns line and column of the error.
    pub fn location(&self) -> &TextLocation {
        match self {
            ConfigError::Syntax { location, .. }
            | ConfigError::Type { location, .. }
            | ConfigError::Ambiguous { location, .. } => location,
        }
    }

    /// Returns a hint for fixing the error.
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
