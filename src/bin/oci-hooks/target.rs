//! Options that change what hooks are matched against.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use oci_hooks::hooks::{Config, ConfigError, Consumer, Target, TargetOverrides};
use oci_hooks::json::{Document, Location};
use oci_hooks::sys::fs::PathContext;

use crate::context::read_limited;
use crate::error::{Error, in_config};

/// Options that change what hooks are matched against.
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

    /// Whether the user requested bind mounts; auto detects mounts that engines do not add by
    /// themselves
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
    /// Returns what hooks are matched against: the configuration with the overrides.
    pub fn target(
        &self,
        config: &Config<'_>,
        path: &Path,
        consumer: &Consumer,
    ) -> Result<Target, Error> {
        in_config(path, config.target_with(consumer.bind_mounts, &self.overrides()?))
    }

    /// Returns what overrides the configuration.
    pub fn overrides(&self) -> Result<TargetOverrides, Error> {
        let mut overrides = TargetOverrides::default();
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

fn read_annotations(path: &Path) -> Result<BTreeMap<String, String>, Error> {
    let text = read_limited(fs::File::open(path).at("open", path)?, path)?;
    let document = Document::parse(&text).map_err(|error| Error::Config {
        path: path.to_owned(),
        source: ConfigError::Syntax {
            location: Location::of_span(&text, error.offset..error.offset + 1),
            error,
        },
    })?;
    let mut annotations = BTreeMap::new();
    for member in document.root().members() {
        let (Some(key), Some(value)) = (member.key.as_str(), member.value.as_str()) else {
            return Err(not_strings(path, member.value));
        };
        annotations.insert(key.into_owned(), value.into_owned());
    }
    if document.root().kind() != oci_hooks::json::Kind::Object {
        return Err(not_strings(path, document.root()));
    }
    Ok(annotations)
}

fn not_strings(path: &Path, value: oci_hooks::json::Value<'_>) -> Error {
    Error::Config {
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
