//! `oci-hooks schema`.

use clap::{Args, ValueEnum};
use oci_hooks::hooks::SchemaVersion;
use oci_hooks_cli::exit::CliExit;

use crate::context::CommandContext;
use crate::error::HooksCommandError;

/// Print the JSON Schema of hook files, for editors
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  oci-hooks schema > ~/.config/oci-hook.schema.json
  oci-hooks schema --version 0.1.0

In Visual Studio Code, set \"json.schemas\" to
  [{\"fileMatch\": [\"**/hooks.d/*.json\"], \"url\": \"file:///usr/share/oci-hooks/hook.schema.json\"}]
The package of oci-hooks installs that file.

The schema (draft 2020-12) is stricter than consumers: it rejects unknown keys, which they ignore.")]
pub struct SchemaArgs {
    /// Version of the hook file format
    #[arg(long, value_enum, value_name = "VERSION", default_value_t)]
    version: FileVersion,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum FileVersion {
    /// Current format of podman and CRI-O
    #[default]
    #[value(name = "1.0.0")]
    V1_0_0,
    /// Old format, converted on load
    #[value(name = "0.1.0")]
    V0_1_0,
}

pub fn run(args: &SchemaArgs, context: &mut CommandContext) -> Result<CliExit, HooksCommandError> {
    let version = match args.version {
        FileVersion::V1_0_0 => SchemaVersion::V1_0_0,
        FileVersion::V0_1_0 => SchemaVersion::V0_1_0,
    };
    context.write(version.json_schema())?;
    Ok(CliExit::Done)
}
