//! `config`: the settings in force.

use clap::Args;

use super::context::{Context, OutputError};
use super::settings_file::{FileSettings, SettingsError};

/// Print the settings that are in force
#[derive(Debug, Args)]
pub struct ConfigArgs {
    /// Print a file with every default and what it means
    #[arg(long)]
    default: bool,
}

/// Prints the settings of a program, or the file with their defaults.
pub fn run<S, E>(args: &ConfigArgs, context: &mut Context) -> Result<(), E>
where
    S: FileSettings,
    E: From<SettingsError> + From<OutputError>,
{
    if args.default {
        return Ok(context.write(S::TEMPLATE)?);
    }
    let loaded = context.settings::<S>()?;
    if context.is_json() {
        return Ok(context.json(&loaded.settings)?);
    }
    context.line(match &loaded.path {
        Some(path) => format!("# {} and defaults", path.display()),
        None => "# Defaults: there is no settings file".to_owned(),
    })?;
    Ok(context.write(loaded.settings.to_toml())?)
}
