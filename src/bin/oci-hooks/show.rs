//! `oci-hooks show`.

use std::ffi::{OsStr, OsString};
use std::fs;

use clap::Args;
use clap_complete::ArgValueCandidates;
use oci_hooks::hooks::manage::ManageError;
use oci_hooks::hooks::{self, EntryState};
use oci_hooks::sys::fs::PathContext;

use crate::Exit;
use crate::context::Context;
use crate::directories;
use crate::error::{Diagnostic, Error};
use crate::list::{HookJson, stages};
use crate::remove::active;
use crate::style;

/// Show the hook file in force and the files it masks
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  oci-hooks show oci-nvidia-hook.json
  oci-hooks show oci-nvidia-hook --format json")]
pub struct ShowArgs {
    /// File name of the hook, with or without .json
    #[arg(add = ArgValueCandidates::new(active))]
    name: OsString,
}

pub fn run(args: &ShowArgs, context: &mut Context) -> Result<Exit, Error> {
    let directories = context.directories()?;
    let loaded = hooks::load(&context.load_options(&directories));
    let mut name = args.name.clone();
    if !name.as_encoded_bytes().ends_with(b".json") {
        name.push(".json");
    }
    for problem in &loaded.problems {
        if problem.path.file_name() == Some(&name) {
            context.warn(&Diagnostic::of_problem(problem));
        }
    }
    let Some(file) = loaded.hooks.get(&name) else {
        let error = ManageError::NoSuchHook { name };
        return Err(directories::explain_error(error, &directories, &context.consumer));
    };
    if context.is_json() {
        context.json(&HookJson::new(file))?;
        return Ok(Exit::Yes);
    }
    let definition = &file.definition;
    let mut field = |title: &str, value: String| {
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
    context.write(fs::read(&file.path).at("read", &file.path)?.trim_ascii_end())?;
    context.write("\n")?;
    Ok(Exit::Yes)
}
