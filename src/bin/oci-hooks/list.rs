//! `oci-hooks list`.

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use clap::Args;
use oci_hooks::hooks::manage::HookName;
use oci_hooks::hooks::{self, HookFile, LoadedHooks};
use oci_hooks_cli::exit::CliExit;
use oci_hooks_cli::terminal::escape_control;
use serde::Serialize;

use crate::context::CommandContext;
use crate::devices::{self, DeviceArgs};
use crate::error::{Diagnostic, HooksCommandError};
use crate::{explain, style};

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

pub fn run(args: &ListArgs, context: &mut CommandContext) -> Result<CliExit, HooksCommandError> {
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
        for (name, path) in disabled_files(&loaded) {
            let path = escape_control(path.as_os_str().as_bytes());
            let path = context.paint.paint(style::FAINT, path);
            let name = escape_control(name.as_os_str().as_bytes());
            context.line(format!("{name}  disabled  {path}"))?;
        }
    }
    if loaded.hooks.is_empty() {
        note_nothing(&loaded, context);
    }
    explain::warn_of_refusal(&loaded, context);
    Ok(if loaded.hooks.is_empty() { CliExit::Findings } else { CliExit::Done })
}

/// Returns the disabled hooks that `oci-hooks enable` can restore, and their files. A hook is left
/// out if a hook file of its name is in force.
fn disabled_files(loaded: &LoadedHooks) -> impl Iterator<Item = (HookName, &Path)> {
    let last = loaded.dirs.last().map(PathBuf::as_path);
    let paths = loaded.entries.iter().map(|entry| entry.path.as_path());
    let named = paths.filter(move |path| path.parent() == last).filter_map(|path| {
        let name = HookName::of_disabled_file(path.file_name()?)?;
        Some((name, path))
    });
    named.filter(|(name, path)| loaded.hooks.get(name.as_os_str()).is_none() && path.is_file())
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
