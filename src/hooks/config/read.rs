//! Reading what hooks are matched against.

use std::collections::BTreeMap;

use crate::hooks::consumer::BindMountRule;
use crate::hooks::{Command, Target, TargetOverrides};
use crate::json::{Document, Kind, Location, SyntaxError, Value, folds_to};

/// A `config.json` of the [runtime specification].
///
/// [runtime specification]: https://github.com/opencontainers/runtime-spec/blob/main/config.md
#[derive(Clone, Debug)]
pub struct Config<'t> {
    pub(super) document: Document<'t>,
}

impl<'t> Config<'t> {
    /// Parses a container's `config.json`: bytes, or a string.
    pub fn parse(text: &'t (impl AsRef<[u8]> + ?Sized)) -> Result<Self, ConfigError> {
        let text = text.as_ref();
        let document = Document::parse(text).map_err(|error| ConfigError::Syntax {
            location: Location::of_span(text, error.offset..error.offset + 1),
            error,
        })?;
        expect(document.root(), Kind::Object, "an object")?;
        Ok(Config { document })
    }

    /// Returns the JSON document as parsed.
    pub fn document(&self) -> &Document<'t> {
        &self.document
    }

    /// Returns what hooks are matched against, with the annotations of the configuration itself.
    pub fn target(&self, rule: BindMountRule) -> Result<Target, ConfigError> {
        self.target_with(rule, &TargetOverrides::default())
    }

    /// Returns what hooks are matched against where the caller knows better than the configuration.
    pub fn target_with(
        &self,
        rule: BindMountRule,
        overrides: &TargetOverrides,
    ) -> Result<Target, ConfigError> {
        let mut annotations = match overrides.without_config_annotations {
            true => BTreeMap::new(),
            false => self.annotations()?,
        };
        annotations.extend(overrides.annotations.clone());
        let has_bind_mounts = match overrides.has_bind_mounts {
            Some(known) => known,
            None => self.has_bind_mounts(rule)?,
        };
        Ok(Target { command: self.command()?, annotations, has_bind_mounts })
    }

    /// Returns what the container runs.
    pub fn command(&self) -> Result<Command, ConfigError> {
        let Some(process) = member(self.document.root(), "process", Kind::Object, "an object")?
        else {
            return Ok(Command::NoProcess);
        };
        let Some(args) = member(process, "args", Kind::Array, "an array of strings")? else {
            return Ok(Command::NoArgs);
        };
        match args.elements().next() {
            // Go decodes null as the empty string.
            Some(first) if first.is_null() => Ok(Command::Program(String::new())),
            Some(first) => string(first).map(Command::Program),
            None => Ok(Command::NoArgs),
        }
    }

    /// Returns the annotations of the configuration.
    pub fn annotations(&self) -> Result<BTreeMap<String, String>, ConfigError> {
        let mut annotations = BTreeMap::new();
        let object = member(self.document.root(), "annotations", Kind::Object, "an object")?;
        for member in object.into_iter().flat_map(Value::members) {
            let value = if member.value.is_null() { String::new() } else { string(member.value)? };
            annotations.insert(string(member.key)?, value);
        }
        Ok(annotations)
    }

    /// Returns whether the user asked for mounts, as far as the configuration shows it.
    pub fn has_bind_mounts(&self, rule: BindMountRule) -> Result<bool, ConfigError> {
        let mounts = member(self.document.root(), "mounts", Kind::Array, "an array of objects")?;
        for mount in mounts.into_iter().flat_map(Value::elements) {
            expect(mount, Kind::Object, "an object")?;
            let text = |name| mount.get(name).and_then(Value::as_str).unwrap_or_default();
            if rule.counts(&text("destination"), &text("type")) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Returns the value of a key that is there and not null, and makes sure of its kind.
///
/// runc, written in Go, merges keys that differ in case and reads the later of two; crun, written in
/// C, does not. What they would not agree on is rejected.
pub fn member<'d>(
    object: Value<'d>,
    name: &str,
    kind: Kind,
    expected: &'static str,
) -> Result<Option<Value<'d>>, ConfigError> {
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
    value: Value<'d>,
    kind: Kind,
    expected: &'static str,
) -> Result<Value<'d>, ConfigError> {
    if value.kind() == kind {
        return Ok(value);
    }
    Err(ConfigError::Type { expected, found: value.kind().name(), location: value.location() })
}

fn string(value: Value<'_>) -> Result<String, ConfigError> {
    expect(value, Kind::String, "a string")?;
    Ok(value.as_str().unwrap_or_default().into_owned())
}

/// What is wrong with a `config.json`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    #[error("{error}")]
    Syntax { error: SyntaxError, location: Location },
    /// A value is of the wrong type.
    #[error("expected {expected}, found {found}")]
    Type {
        /// What the runtime specification asks for.
        expected: &'static str,
        found: &'static str,
        location: Location,
    },
    /// A key that matters here stands twice, or in other case: runtimes do not agree on its meaning.
    #[error("key {key:?} is ambiguous")]
    Ambiguous {
        /// The key as it stands.
        key: String,
        location: Location,
    },
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
    pub fn location(&self) -> &Location {
        match self {
            ConfigError::Syntax { location, .. }
            | ConfigError::Type { location, .. }
            | ConfigError::Ambiguous { location, .. } => location,
        }
    }

    /// Returns what to do about it.
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
