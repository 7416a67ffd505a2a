//! `oci-hooks list`.

use clap::Args;
use oci_hooks::hooks::{self, HookFile, Loaded};
use serde::Serialize;

use crate::Exit;
use crate::context::Context;
use crate::error::{Diagnostic, Error};
use crate::style;

/// List the hooks in force, in the order of injection
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  oci-hooks list
  oci-hooks list --as crio --format json

Exit status is 1 when there are no hooks.")]
pub struct ListArgs {}

/// One hook, as `list` and `show` print it in JSON.
#[derive(Serialize)]
pub struct HookJson<'a> {
    name: String,
    pub path: String,
    #[serde(flatten)]
    definition: &'a hooks::Definition,
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

pub fn run(_: &ListArgs, context: &mut Context) -> Result<Exit, Error> {
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
            let stages = stages(file);
            let path = context.paint.paint(style::FAINT, file.path.display());
            let name = context.paint.paint(style::TITLE, file.name.to_string_lossy());
            context.line(format!("{name}  {stages}  {}  {path}", file.definition.hook.path))?;
        }
    }
    if loaded.hooks.is_empty() {
        note_nothing(&loaded, context);
        return Ok(Exit::No);
    }
    Ok(Exit::Yes)
}

/// Says of each directory why there is no hook in force.
fn note_nothing(loaded: &Loaded, context: &Context) {
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
