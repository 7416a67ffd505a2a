//! `oci-hooks list`.

use std::os::unix::ffi::OsStrExt as _;

use clap::Args;
use oci_hooks::hooks::{self, HookFile, LoadedHooks};
use oci_hooks_cli::terminal::escape_control;
use serde::Serialize;

use crate::CommandExit;
use crate::context::CommandContext;
use crate::devices::{self, DeviceArgs};
use crate::error::{Diagnostic, HooksCommandError};
use crate::style;

/// List the hooks in force, in the order of injection
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  oci-hooks list
  oci-hooks list --as crio --format json
  oci-hooks list --cdi

Exit status is 1 when there are no hooks.")]
pub struct ListArgs {
    /// List the devices of CDI specifications instead of hooks
    #[arg(long)]
    cdi: bool,

    #[command(flatten)]
    devices: DeviceArgs,
}

/// One hook, as printed by `list` and `show` in JSON.
#[derive(Serialize)]
pub struct HookJson<'a> {
    name: String,
    pub path: String,
    #[serde(flatten)]
    definition: &'a hooks::HookDefinition,
}

impl<'a> HookJson<'a> {
    pub fn new(file: &'a HookFile) -> Self {
        HookJson {
            name: file.name.to_string_lossy().into_owned(),
            path: file.path.to_string_lossy().into_owned(),
            definition: &file.definition,
        }
    }
}

pub fn run(
    args: &ListArgs,
    context: &mut CommandContext,
) -> Result<CommandExit, HooksCommandError> {
    if args.cdi {
        return devices::list(&args.devices, context);
    }
    let directories = context.directories()?;
    directories.report(context);
    let loaded = hooks::load(&context.load_options(&directories));
    for problem in &loaded.problems {
        context.warn(&Diagnostic::of_problem(problem));
    }
    if context.is_json() {
        let hooks: Vec<_> = loaded.hooks.iter().map(HookJson::new).collect();
        context.json(&hooks)?;
    } else {
        for file in &loaded.hooks {
            let stages = match file.definition.when.can_hold() {
                true => stages(file),
                false => "never".to_owned(),
            };
            let path = escape_control(file.path.as_os_str().as_bytes());
            let path = context.paint.paint(style::FAINT, path);
            let name = context.paint.paint(style::TITLE, escape_control(file.name.as_bytes()));
            let program = escape_control(file.definition.hook.path.as_bytes());
            context.line(format!("{name}  {stages}  {program}  {path}"))?;
        }
        for entry in &loaded.entries {
            let name = entry.path.file_name().unwrap_or_default().as_bytes();
            let Some(name) = name.strip_suffix(b".disabled") else { continue };
            let path = escape_control(entry.path.as_os_str().as_bytes());
            let path = context.paint.paint(style::FAINT, path);
            context.line(format!("{}  disabled  {path}", escape_control(name)))?;
        }
    }
    if loaded.hooks.is_empty() {
        note_nothing(&loaded, context);
        return Ok(CommandExit::No);
    }
    Ok(CommandExit::Yes)
}

/// Prints for each directory why it provides no hook.
fn note_nothing(loaded: &LoadedHooks, context: &CommandContext) {
    for dir in &loaded.dirs {
        let why = match loaded.missing_dirs.contains(dir) {
            true => "does not exist",
            false => "has no hook that can be used",
        };
        context.note(&format!("{} {why}", dir.display()));
    }
}

/// Returns the stages of a hook, joined by commas.
pub fn stages(file: &HookFile) -> String {
    let stages: Vec<_> = file.definition.stages.iter().map(|stage| stage.name()).collect();
    if stages.is_empty() { "no stage".to_owned() } else { stages.join(",") }
}
