//! Options that change the values hooks are matched against.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use oci_hooks::hooks::consumer::{AnnotationRule, MountOrigin};
use oci_hooks::hooks::{ConfigDocument, ConfigError, Consumer, MatchTarget, TargetOverrides};
use oci_hooks::json::{JsonDocument, TextLocation};

use crate::context::{open_input, read_limited};
use crate::error::{HooksCommandError, add_config_path};

/// Options that change the values hooks are matched against.
#[derive(Debug, Args)]
#[command(next_help_heading = "Matching options")]
pub struct TargetArgs {
    /// Also match this annotation (can be repeated; overrides files)
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    annotation: Vec<(String, String)>,

    /// Also match the annotations in FILE, a JSON object of strings
    #[arg(long, value_name = "FILE")]
    annotations_file: Option<PathBuf>,

    /// Ignore annotations in config.json
    #[arg(long)]
    no_config_annotations: bool,

    /// Whether the user requested bind mounts; auto detects mounts that engines do not add by themselves
    #[arg(long, value_enum, value_name = "WHICH", default_value_t)]
    has_bind_mounts: HasBindMounts,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum HasBindMounts {
    #[default]
    Auto,
    True,
    False,
}

impl TargetArgs {
    /// Returns the values of the configuration that hooks are matched against, with these options applied.
    pub fn target(
        &self,
        config: &ConfigDocument<'_>,
        path: &Path,
        consumer: &Consumer,
    ) -> Result<MatchTarget, HooksCommandError> {
        add_config_path(path, config.target_with(consumer.bind_mounts, &self.overrides(consumer)?))
    }

    /// Returns the destinations of mounts that the user may have requested. Returns none if another mount certainly
    /// is the user's, or if `--has-bind-mounts` decides.
    pub fn unclear_mounts(
        &self,
        config: &ConfigDocument<'_>,
        path: &Path,
        consumer: &Consumer,
    ) -> Result<Vec<String>, HooksCommandError> {
        if self.has_bind_mounts != HasBindMounts::Auto {
            return Ok(Vec::new());
        }
        let mounts = config.mount_origins(consumer.bind_mounts).and_then(Iterator::collect);
        let mut mounts: Vec<_> = add_config_path(path, mounts)?;
        if mounts.iter().any(|(_, origin)| *origin == MountOrigin::User) {
            return Ok(Vec::new());
        }
        let is_unclear =
            |origin| matches!(origin, MountOrigin::Unclear | MountOrigin::ProbablyUser);
        mounts.retain(|&(_, origin)| is_unclear(origin));
        Ok(mounts.into_iter().map(|(destination, _)| destination).collect())
    }

    /// Returns whether the engine may know annotations that neither `config.json` nor these options contain.
    pub fn has_unclear_annotations(&self, consumer: &Consumer) -> bool {
        consumer.annotation_rule == AnnotationRule::OfEngine
            && self.annotation.is_empty()
            && self.annotations_file.is_none()
    }

    /// Returns where the value of [`MatchTarget::has_bind_mounts`] comes from, for messages.
    pub fn mounts_source(&self) -> &'static str {
        match self.has_bind_mounts {
            HasBindMounts::Auto => "guessed from the mounts",
            HasBindMounts::True | HasBindMounts::False => "--has-bind-mounts",
        }
    }

    /// Returns these options as overrides of the configuration's values.
    pub fn overrides(&self, consumer: &Consumer) -> Result<TargetOverrides, HooksCommandError> {
        let mut overrides = TargetOverrides::default();
        overrides.annotation_rule = consumer.annotation_rule;
        if let Some(file) = &self.annotations_file {
            overrides.annotations = read_annotations(file)?;
        }
        overrides.annotations.extend(self.annotation.iter().cloned());
        overrides.without_config_annotations = self.no_config_annotations;
        overrides.has_bind_mounts = match self.has_bind_mounts {
            HasBindMounts::Auto => None,
            HasBindMounts::True => Some(true),
            HasBindMounts::False => Some(false),
        };
        Ok(overrides)
    }
}

/// Rejects a hook file that is passed as a configuration.
pub fn reject_hook_file(config: &ConfigDocument<'_>, path: &Path) -> Result<(), HooksCommandError> {
    let has = |key: &str| config.document().root().get(key).is_some();
    if has("ociVersion") || !has("hook") || !(has("stages") || has("stage")) {
        return Ok(());
    }
    let input = if path == OsStr::new("-") { Path::new("standard input") } else { path };
    Err(HooksCommandError::Usage {
        message: format!("{} is a hook file, not a config.json", input.display()),
        hint: Some("`oci-hooks explain --hook NAME config.json` explains a hook file".to_owned()),
    })
}

fn read_annotations(path: &Path) -> Result<BTreeMap<String, String>, HooksCommandError> {
    let text = read_limited(open_input(path)?, path)?;
    let document = JsonDocument::parse(&text).map_err(|error| HooksCommandError::Config {
        path: path.to_owned(),
        source: ConfigError::Syntax {
            location: TextLocation::of_span(&text, error.offset..error.offset + 1),
            error,
        },
    })?;
    let mut annotations = BTreeMap::new();
    for member in document.root().members() {
        let (Some(key), Some(value)) = (member.key.as_str(), member.value.as_str()) else {
            return Err(not_strings_error(path, member.value));
        };
        annotations.insert(key.into_owned(), value.into_owned());
    }
    if document.root().kind() != oci_hooks::json::JsonKind::Object {
        return Err(not_strings_error(path, document.root()));
    }
    Ok(annotations)
}

fn not_strings_error(path: &Path, value: oci_hooks::json::JsonValue<'_>) -> HooksCommandError {
    HooksCommandError::Config {
        path: path.to_owned(),
        source: ConfigError::Type {
            expected: "an object of strings",
            found: value.kind().name(),
            location: value.location(),
        },
    }
}

pub fn key_value(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}
