//! Settings of the command line and of the runtime's configuration.

use std::path::PathBuf;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use oci_hooks::hooks::LoadOptions;
use oci_hooks::hooks::consumer::NRI;
use oci_hooks::hooks::pipeline::MissingProgramPolicy;
use oci_hooks::hooks::trust::TrustOptions;
use oci_hooks_cli::context::log_level;
use oci_hooks_cli::mistake::TomlError;
use oci_hooks_cli::trace::LevelFilter;
use oci_hooks_nri::Decider;
use serde::Deserialize;

/// Settings of the plugin. The options override the runtime's configuration.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct PluginSettings {
    /// Read hook files from DIR instead of /usr/share/containers/oci/hooks.d and
    /// /etc/containers/oci/hooks.d (can be repeated, in order of increasing precedence)
    #[arg(long = "hooks-dir", value_name = "DIR")]
    hooks_dirs: Vec<PathBuf>,

    /// Reject all containers while there is a broken hook file that was never valid, or a hook directory cannot
    /// be read or watched, instead of leaving it out
    #[arg(long)]
    strict: bool,

    /// Drop hook files whose program does not exist, as podman does, or reject all containers while there is
    /// one (fail) [default: drop]
    #[arg(long, value_name = "WHAT", value_parser = missing_program())]
    missing_program: Option<MissingProgramPolicy>,

    /// Reject containers unless the hook file FILE is in force: a name, with or without .json, or an
    /// absolute path (can be repeated)
    #[arg(long = "require-hook", value_name = "FILE")]
    required_hooks: Vec<PathBuf>,

    /// Inject hooks that non-root users can change too, and let hooks without `env` inherit the
    /// environment of the OCI runtime
    #[arg(long)]
    allow_untrusted: bool,

    /// Write metrics to FILE, for the textfile collector of Prometheus' node exporter
    #[arg(long, value_name = "FILE")]
    pub metrics: Option<PathBuf>,

    /// Append the log to FILE instead of writing it to standard error
    #[arg(long, value_name = "FILE")]
    pub log_file: Option<PathBuf>,

    /// Log from this level: info has the hooks of each container, debug explains them [default: info]
    #[arg(long, value_name = "LEVEL", value_parser = log_level())]
    pub log_level: Option<LevelFilter>,
}

/// The configuration that the runtime reads from `/etc/nri/conf.d/10-oci-hooks-nri.conf`, as TOML.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RuntimeConfig {
    #[serde(default)]
    hooks_dirs: Vec<PathBuf>,
    #[serde(default)]
    strict: bool,
    missing_program: Option<MissingProgramPolicy>,
    #[serde(default)]
    required_hooks: Vec<PathBuf>,
    #[serde(default)]
    allow_untrusted: bool,
    metrics: Option<PathBuf>,
    log_file: Option<PathBuf>,
    log_level: Option<String>,
}

/// Errors in the plugin's part of the runtime's configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("invalid NRI configuration of this plugin at {0}")]
    Parse(TomlError),
    #[error(
        "invalid `log-level` {0:?} in the NRI configuration of this plugin: expected off, error, \
         warn, info, debug or trace"
    )]
    LogLevel(String),
}

/// Parses `--missing-program`.
fn missing_program() -> impl TypedValueParser<Value = MissingProgramPolicy> {
    PossibleValuesParser::new(["drop", "fail"]).map(|name| match name.as_str() {
        "fail" => MissingProgramPolicy::Fail,
        _ => MissingProgramPolicy::Drop,
    })
}

impl PluginSettings {
    /// Adds the runtime's configuration. Options override it; flags and required hooks of both apply.
    pub fn with_config(&self, text: &str) -> Result<Self, ConfigError> {
        let file: RuntimeConfig = toml::from_str(text)
            .map_err(|error| ConfigError::Parse(TomlError::of(text, &error)))?;
        let level = |text: String| {
            text.parse::<LevelFilter>().map_err(|_| ConfigError::LogLevel(text.clone()))
        };
        let log_level = file.log_level.map(level).transpose()?;
        let dirs = if self.hooks_dirs.is_empty() { &file.hooks_dirs } else { &self.hooks_dirs };
        Ok(PluginSettings {
            hooks_dirs: dirs.clone(),
            strict: self.strict || file.strict,
            missing_program: self.missing_program.or(file.missing_program),
            required_hooks: [&self.required_hooks[..], &file.required_hooks].concat(),
            allow_untrusted: self.allow_untrusted || file.allow_untrusted,
            metrics: self.metrics.clone().or(file.metrics),
            log_file: self.log_file.clone().or(file.log_file),
            log_level: self.log_level.or(log_level),
        })
    }

    /// Returns the options for loading hook files.
    pub fn load_options(&self) -> LoadOptions {
        let mut options = LoadOptions::for_consumer(&NRI);
        if !self.hooks_dirs.is_empty() {
            options.dirs.clone_from(&self.hooks_dirs);
        }
        options
    }

    /// Returns the decider for containers.
    pub fn decider(&self) -> Decider {
        let mut decider = Decider {
            trust: (!self.allow_untrusted).then(TrustOptions::of_process),
            strict: self.strict,
            missing_program: self.missing_program.unwrap_or_default(),
            ..Decider::default()
        };
        decider.required_hooks.clone_from(&self.required_hooks);
        decider
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: &str = "hooks-dirs = [\"/a\", \"/b\"]\nstrict = true\nmissing-program = \"fail\"\n\
                        required-hooks = [\"a.json\"]\nallow-untrusted = true\n\
                        metrics = \"/m\"\nlog-file = \"/l\"\nlog-level = \"debug\"\n";

    #[test]
    fn options_override_the_configuration() {
        let flags = PluginSettings { hooks_dirs: vec!["/c".into()], ..PluginSettings::default() };
        let settings = flags.with_config(FULL).unwrap();
        assert_eq!(settings.hooks_dirs, [PathBuf::from("/c")]);
        assert!(settings.strict && settings.allow_untrusted);
        assert_eq!(settings.decider().missing_program, MissingProgramPolicy::Fail);
        assert_eq!(settings.decider().required_hooks, [PathBuf::from("a.json")]);
        assert_eq!(settings.metrics, Some("/m".into()));
        assert_eq!(settings.log_level, Some(LevelFilter::DEBUG));
        let settings = PluginSettings::default().with_config(FULL).unwrap();
        assert_eq!(settings.load_options().dirs, [PathBuf::from("/a"), PathBuf::from("/b")]);
        assert!(settings.decider().trust.is_none());
        assert_eq!(PluginSettings::default().with_config("").unwrap(), PluginSettings::default());
    }

    #[test]
    fn errors_have_a_position() {
        let error = |text| PluginSettings::default().with_config(text).unwrap_err().to_string();
        let said = error("strict = true\nstrikt = true");
        assert!(
            said.starts_with("invalid NRI configuration of this plugin at 2:1: unknown field, "),
            "{said}"
        );
        assert!(error("log-level = \"loud\"").contains("\"loud\""));
    }

    #[test]
    fn man_page_names_all_keys() {
        let page = include_str!("../../../man/oci-hooks-nri.1");
        let page = page.replace("\\-", "-");
        for line in FULL.lines() {
            let key = line.split(' ').next().unwrap();
            assert!(page.contains(&format!("\n.B {key}\n")), "{key} is not in the man page");
        }
    }
}
