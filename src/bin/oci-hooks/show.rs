//! `oci-hooks show`.

use std::ffi::{OsStr, OsString};
use std::fs;

use clap::Args;
use clap_complete::ArgValueCandidates;
use oci_hooks::hooks::manage::{HookName, ManageError};
use oci_hooks::hooks::{self, EntryState};
use oci_hooks_cli::exit::CliExit;
use oci_hooks_cli::terminal::escape_control;
use oci_hooks_files::fs::PathContext;

use crate::context::CommandContext;
use crate::devices::{self, DeviceArgs};
use crate::directories;
use crate::error::{Diagnostic, HooksCommandError};
use crate::list::{HookJson, stages};
use crate::remove::complete_active;
use crate::style;

/// Show the hook file in force and the files it masks, or a CDI device
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  oci-hooks show oci-nvidia-hook.json
  oci-hooks show oci-nvidia-hook --format json
  oci-hooks show nvidia.com/gpu=all")]
pub struct ShowArgs {
    /// File name of the hook, with or without .json; or a device as VENDOR/CLASS=NAME
    #[arg(add = ArgValueCandidates::new(complete_active))]
    name: OsString,

    #[command(flatten)]
    devices: DeviceArgs,
}

pub fn run(args: &ShowArgs, context: &mut CommandContext) -> Result<CliExit, HooksCommandError> {
    // Only names of devices contain a slash: no file name does.
    if let Some(device) = args.name.to_str().filter(|name| name.contains('/')) {
        return devices::show(device, &args.devices, context);
    }
    let directories = context.directories()?;
    let loaded = hooks::load(&context.load_options(&directories));
    let name = HookName::new(&args.name)?;
    let name = name.as_os_str();
    for problem in &loaded.problems {
        if problem.path.file_name() == Some(name) {
            context.warn(&Diagnostic::of_problem(problem));
        }
    }
    let Some(file) = loaded.hooks.get(name) else {
        let error = ManageError::NoSuchHook { name: name.to_owned() };
        return Err(directories::explain_error(error, &directories, &context.consumer));
    };
    if context.is_json() {
        context.json(&HookJson::new(file))?;
        return Ok(CliExit::Done);
    }
    let definition = &file.definition;
    let mut field = |title: &str, value: String| {
        let value = escape_control(value.as_bytes());
        let title = context.paint.paint(style::TITLE, format_args!("{title:<9}"));
        context.line(format!("{title} {value}"))
    };
    field("file", file.path.display().to_string())?;
    for entry in &loaded.entries {
        if let EntryState::Masked { by } = &entry.state
            && by.file_name() == Some(OsStr::new(&name))
        {
            field("masks", entry.path.display().to_string())?;
        }
    }
    field("schema", definition.version.name().to_owned())?;
    field("program", definition.hook.path.clone())?;
    field("stages", stages(file))?;
    context.write("\n")?;
    context.write(fs::read(&file.path).with_path("read", &file.path)?.trim_ascii_end())?;
    context.write("\n")?;
    Ok(CliExit::Done)
}
