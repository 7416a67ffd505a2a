//! `config` command: prints the settings in force.

use std::collections::BTreeMap;

use clap::Args;
use oci_hooks_cli::context::{CliContext, OutputError};

use super::checks::registries;
use super::settings_file::{
    FileSettings, LoadedSettings, SettingOrigin, SettingsError, lines, load,
};

/// Print the settings in force
#[derive(Debug, Args)]
pub struct ConfigArgs {
    /// Print a settings file with all defaults and their explanations
    #[arg(long)]
    default: bool,
}

/// Prints the settings of a program, or the file with their defaults.
pub fn run<S, E>(args: &ConfigArgs, context: &mut CliContext) -> Result<(), E>
where
    S: FileSettings,
    E: From<SettingsError> + From<OutputError>,
{
    if args.default {
        return Ok(context.write(S::TEMPLATE)?);
    }
    let loaded = load::<S>(context)?;
    if context.is_json() {
        return Ok(context.json(&loaded.settings)?);
    }
    for check in registries::missing(loaded.settings.registries()) {
        context.note(&format!("{}: {}", check.finding(), check.hint()));
    }
    context.line(match loaded.files_named() {
        Some(files) => format!("# {files} and defaults"),
        None => "# Defaults: there is no settings file".to_owned(),
    })?;
    Ok(context.write(with_origins(&loaded))?)
}

/// Returns the settings as TOML, each value that is not a default with its origin in a comment.
fn with_origins<S: FileSettings>(loaded: &LoadedSettings<S>) -> String {
    let text = loaded.settings.to_toml();
    let printed: BTreeMap<usize, String> =
        lines(&text).into_iter().map(|(key, line)| (line, key)).collect();
    let origin = |key: &String| match loaded.lines.get(key) {
        Some(SettingOrigin { line, .. }) if loaded.files.len() == 1 => Some(format!("line {line}")),
        Some(SettingOrigin { file, line }) => {
            Some(format!("{}:{line}", loaded.files[*file].display()))
        }
        None => loaded.settings.origin(key),
    };
    let lines =
        text.lines().enumerate().map(|(at, line)| match printed.get(&(at + 1)).and_then(origin) {
            Some(origin) => format!("{line} # {origin}\n"),
            None => format!("{line}\n"),
        });
    lines.collect()
}
