//! Settings: those of the command line, and those that the runtime passes on.

use std::path::PathBuf;

use oci_hooks::hooks::LoadOptions;
use oci_hooks::hooks::consumer::NRI;
use oci_hooks::hooks::trust::TrustOptions;
use oci_hooks::nri::Decider;
use oci_hooks::program::mistake::Mistake;
use oci_hooks::program::trace::LevelFilter;
use serde::Deserialize;

use crate::cli::{Missing, Options};

/// How hooks are found and judged, and what is written about it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    hooks_dirs: Vec<PathBuf>,
    strict: bool,
    missing_program: Option<Missing>,
    required_hooks: Vec<PathBuf>,
    allow_untrusted: bool,
    pub metrics: Option<PathBuf>,
    pub log_file: Option<PathBuf>,
    pub log_level: Option<LevelFilter>,
}

/// What the runtime passes on from `/etc/nri/conf.d/10-oci-hooks-nri.conf`, as TOML.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct File {
    #[serde(default)]
    hooks_dirs: Vec<PathBuf>,
    #[serde(default)]
    strict: bool,
    missing_program: Option<Missing>,
    #[serde(default)]
    required_hooks: Vec<PathBuf>,
    #[serde(default)]
    allow_untrusted: bool,
    metrics: Option<PathBuf>,
    log_file: Option<PathBuf>,
    log_level: Option<String>,
}

/// A mistake in the plugin's part of the runtime's configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("invalid NRI configuration of this plugin at {0}")]
    Parse(Mistake),
    #[error(
        "invalid `log-level` {0:?} in the NRI configuration of this plugin: expected off, error, \
         warn, info, debug or trace"
    )]
    LogLevel(String),
}

impl Settings {
    /// Takes what the command line says.
    pub fn of(options: &Options) -> Self {
        Settings {
            hooks_dirs: options.hooks_dir.clone(),
            strict: options.strict,
            missing_program: options.missing_program,
            required_hooks: options.require_hook.clone(),
            allow_untrusted: options.allow_untrusted,
            metrics: options.metrics.clone(),
            log_file: options.log_file.clone(),
            log_level: options.log_level,
        }
    }

    /// Adds what the runtime passed on, which options go before.
    pub fn with_config(&self, text: &str) -> Result<Self, ConfigError> {
        let file: File =
            toml::from_str(text).map_err(|error| ConfigError::Parse(Mistake::of(text, &error)))?;
        let level = |text: String| {
            text.parse::<LevelFilter>().map_err(|_| ConfigError::LogLevel(text.clone()))
        };
        let log_level = file.log_level.map(level).transpose()?;
        let dirs = if self.hooks_dirs.is_empty() { &file.hooks_dirs } else { &self.hooks_dirs };
        Ok(Settings {
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

    /// Returns what to load.
    pub fn load_options(&self) -> LoadOptions {
        let mut options = LoadOptions::for_consumer(&NRI);
        if !self.hooks_dirs.is_empty() {
            options.dirs.clone_from(&self.hooks_dirs);
        }
        options
    }

    /// Returns what decides about containers.
    pub fn decider(&self) -> Decider {
        let mut decider = Decider::default();
        decider.trust = (!self.allow_untrusted).then(TrustOptions::of_process);
        decider.strict = self.strict;
        decider.missing_program = self.missing_program.map(Into::into).unwrap_or_default();
        decider.required_hooks.clone_from(&self.required_hooks);
        decider
    }
}

#[cfg(test)]
mod tests {
    use oci_hooks::hooks::pipeline::MissingProgram;

    use super::*;

    const FULL: &str = "hooks-dirs = [\"/a\", \"/b\"]\nstrict = true\nmissing-program = \"fail\"\n\
                        required-hooks = [\"a.json\"]\nallow-untrusted = true\n\
                        metrics = \"/m\"\nlog-file = \"/l\"\nlog-level = \"debug\"\n";

    #[test]
    fn options_go_before_the_configuration() {
        let flags = Options { hooks_dir: vec!["/c".into()], ..Options::default() };
        let settings = Settings::of(&flags).with_config(FULL).unwrap();
        assert_eq!(settings.hooks_dirs, [PathBuf::from("/c")]);
        assert!(settings.strict && settings.allow_untrusted);
        assert_eq!(settings.decider().missing_program, MissingProgram::Fail);
        assert_eq!(settings.decider().required_hooks, [PathBuf::from("a.json")]);
        assert_eq!(settings.metrics, Some("/m".into()));
        assert_eq!(settings.log_level, Some(LevelFilter::DEBUG));
        let settings = Settings::default().with_config(FULL).unwrap();
        assert_eq!(settings.load_options().dirs, [PathBuf::from("/a"), PathBuf::from("/b")]);
        assert!(settings.decider().trust.is_none());
        assert_eq!(Settings::default().with_config("").unwrap(), Settings::default());
    }

    #[test]
    fn mistakes_have_their_place() {
        let error = |text| Settings::default().with_config(text).unwrap_err().to_string();
        let said = error("strict = true\nstrikt = true");
        assert!(
            said.starts_with("invalid NRI configuration of this plugin at 2:1: unknown field, "),
            "{said}"
        );
        assert!(error("log-level = \"loud\"").contains("\"loud\""));
    }

    #[test]
    fn the_man_page_names_all_keys() {
        let page = include_str!("../../../man/oci-hooks-nri.1");
        let page = page.replace("\\-", "-");
        for line in FULL.lines() {
            let key = line.split(' ').next().unwrap();
            assert!(page.contains(&format!("\n.B {key}\n")), "{key} is not in the man page");
        }
    }
}
