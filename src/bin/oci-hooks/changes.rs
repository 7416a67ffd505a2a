//! Printing what `install`, `remove`, `disable`, `enable` and `migrate` changed.

use oci_hooks::hooks::manage::{Change, Mode, Note, Step};
use serde::Serialize;

use crate::Exit;
use crate::context::Context;
use crate::error::Error;

/// A change of hook files, as printed by `--format json`.
#[derive(Serialize)]
pub(crate) struct ChangeJson {
    dry_run: bool,
    #[serde(flatten)]
    change: Change,
}

impl ChangeJson {
    pub(crate) fn new(change: Change, mode: Mode) -> Self {
        ChangeJson { dry_run: mode == Mode::Plan, change }
    }
}

/// Prints what was done, and ends the command.
pub(crate) fn report(change: Change, mode: Mode, context: &mut Context) -> Result<Exit, Error> {
    if context.is_json() {
        context.json(&ChangeJson::new(change, mode))?;
    } else {
        write(&change, mode, context)?;
    }
    Ok(Exit::Yes)
}

/// Writes a line for each step, and one for each note that does not belong to a step.
pub(crate) fn write(change: &Change, mode: Mode, context: &mut Context) -> Result<(), Error> {
    for step in &change.steps {
        let mut line = match mode {
            Mode::Plan => format!("would {step}"),
            Mode::Apply => step.done(),
        };
        if let Step::Write { path, .. } | Step::Restore { path, .. } = step
            && let Some(Note::Masks { hidden, .. }) = change.notes.iter().find(|n| masks(n, path))
        {
            line += &format!(", which masks {}", hidden.display());
        }
        context.line(line)?;
    }
    for note in change.notes.iter().filter(|note| !matches!(note, Note::Masks { .. })) {
        context.line(note.to_string())?;
    }
    Ok(())
}

fn masks(note: &Note, by: &std::path::Path) -> bool {
    matches!(note, Note::Masks { path, .. } if path == by)
}
