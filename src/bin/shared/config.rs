//! `config`.

use clap::Args;

use crate::Exit;
use crate::context::Context;
use crate::error::Error;
use crate::settings::{CONFIG_EXAMPLES, TEMPLATE};

/// Print the settings that are in force
#[derive(Debug, Args)]
#[command(after_help = CONFIG_EXAMPLES)]
pub(crate) struct ConfigArgs {
    /// Print a file with every default and what it means
    #[arg(long)]
    default: bool,
}

pub(crate) fn run(args: &ConfigArgs, context: &mut Context) -> Result<Exit, Error> {
    if args.default {
        context.write(TEMPLATE)?;
        return Ok(Exit::Done);
    }
    let loaded = context.settings()?;
    if context.is_json() {
        context.json(&loaded.settings)?;
        return Ok(Exit::Done);
    }
    context.line(match &loaded.path {
        Some(path) => format!("# {} and defaults", path.display()),
        None => "# Defaults: there is no file of settings".to_owned(),
    })?;
    context.write(loaded.settings.to_toml())?;
    Ok(Exit::Done)
}
