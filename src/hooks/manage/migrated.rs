//! Writing what a migration made.

use std::path::Path;

use super::check::check;
use super::directory::{self, Attributes, Entry};
use super::{Change, ManageError, Mode, Step};
use crate::hooks::LoadOptions;
use crate::hooks::migrate::Migration;
use crate::sys::fs::ReplaceError;

/// Where the files of a migration go.
#[derive(Clone, Copy, Debug)]
pub enum Destination<'a> {
    /// Into a directory, where nothing is replaced.
    Directory(&'a Path),
    /// To the place of the old file and beside it, with its mode and owner.
    Replace {
        path: &'a Path,
        /// Its content when it was read.
        text: &'a [u8],
    },
}

/// Writes the files of a migration.
///
/// The first file, the one with the old name, comes last: until then a container may get the hook
/// twice, but none goes without. Files that are there already with the right content are left, so
/// that a call that was interrupted can be repeated.
pub fn write_migration(
    migration: &Migration,
    destination: Destination<'_>,
    options: &LoadOptions,
    mode: Mode,
) -> Result<Change, ManageError> {
    let dir = match destination {
        Destination::Directory(dir) => dir,
        Destination::Replace { path, .. } => match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        },
    };
    directory::change(dir, mode, |directory| {
        let mut change = Change::default();
        let mut attributes = Attributes::own();
        let mut old = None;
        if let Destination::Replace { path, text } = destination {
            let name = path.file_name().unwrap_or_default();
            if directory.entry(name)? != Entry::File(text.to_vec()) {
                return Err(ReplaceError::Changed { path: path.to_owned() }.into());
            }
            attributes = directory.attributes(name)?;
            old = path.file_name();
        }
        for file in migration.files.iter().rev() {
            let path = dir.join(&file.name);
            let text = file.text.as_bytes();
            check(&path, text, options)?;
            let replaces = match directory.entry(&file.name)? {
                Entry::File(found) if found == text => continue,
                Entry::File(_) if old == Some(&file.name) => true,
                Entry::File(_) => return Err(ManageError::Exists { path }),
                Entry::Absent => false,
            };
            change.steps.push(Step::Write { path, replaces, text: text.to_vec() });
        }
        Ok((change, attributes))
    })
}
