//! `oci-hooks list`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use clap::Args;
use oci_hooks::hooks::{self, HookFile, LoadedEntry, LoadedHooks};
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
            let path = escape_control(file.path.as_os_str().as_bytes());
            let path = context.paint.paint(style::FAINT, path);
            let name = context.paint.paint(style::TITLE, escape_control(file.name.as_bytes()));
            if file.definition.is_mask() {
                context.line(format!("{name}  disabled  {path}"))?;
                continue;
            }
            let program = escape_control(file.definition.hook.path.as_bytes());
            context.line(format!("{name}  {}  {program}  {path}", stages(file)))?;
        }
        for (name, entry) in disabled_files(&loaded) {
            let path = escape_control(entry.path.as_os_str().as_bytes());
            let path = context.paint.paint(style::FAINT, path);
            context.line(format!("{}  disabled  {path}", escape_control(name.as_bytes())))?;
        }
    }
    if loaded.hooks.is_empty() {
        note_nothing(&loaded, context);
        return Ok(CommandExit::No);
    }
    Ok(CommandExit::Yes)
}

/// Returns the names of hooks that `oci-hooks enable` can restore, and their files, without hooks in force.
fn disabled_files(loaded: &LoadedHooks) -> impl Iterator<Item = (&OsStr, &LoadedEntry)> {
    let last = loaded.dirs.last();
    let of_last =
        loaded.entries.iter().filter(move |entry| entry.path.parent() == last.map(|dir| &**dir));
    let named = of_last.filter_map(|entry| {
        let name = entry.path.file_name()?.as_bytes().strip_suffix(b".disabled")?;
        Some((OsStr::from_bytes(name), entry))
    });
    named.filter(|(name, entry)| {
        let is_hook = name.as_bytes().len() > 5 && name.as_bytes().ends_with(b".json");
        is_hook && loaded.hooks.get(name).is_none() && entry.path.is_file()
    })
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
