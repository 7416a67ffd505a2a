//! The changes, each as the steps it takes from what is there.

use std::path::{Path, PathBuf};

use super::directory::{Attributes, Directory, Entry};
use super::{Change, HookName, ManageError, Note, Step, directory};
use crate::hooks::migrate::Migration;
use crate::hooks::schema::MASK_PROGRAM;
use crate::hooks::{
    Definition, Draft, DraftWhen, Hook, LoadOptions, PathCheck, Problem, SchemaOptions,
};
use crate::sys::fs::ReplaceError;

/// Changes the last of the directories a consumer reads.
///
/// ```
/// use oci_hooks::hooks::manage::{Editor, HookName, Mode, Overwrite};
/// use oci_hooks::hooks::LoadOptions;
///
/// # let dir = tempfile::tempdir()?;
/// # let dir = dir.path().join("hooks.d");
/// let mut options = LoadOptions::default();
/// options.dirs = vec![dir.clone()];
/// let editor = Editor::new(options, Mode::Apply);
/// let text = br#"{"version": "1.0.0", "hook": {"path": "/bin/sh"},
///                 "when": {"always": true}, "stages": ["poststop"]}"#;
/// editor.install(&HookName::new("note")?, text, Overwrite::Refuse)?;
/// let change = editor.disable(&HookName::new("note")?)?;
/// assert!(!change.steps.is_empty());
/// assert!(!dir.join("note.json").exists());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Editor {
    /// The directories, and what the consumer takes for a hook.
    pub options: LoadOptions,
    pub mode: Mode,
}

impl Editor {
    /// Returns an editor of the directories in the options.
    pub fn new(options: LoadOptions, mode: Mode) -> Self {
        Editor { options, mode }
    }
}

/// Whether a change is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Apply,
    /// It is only worked out.
    Plan,
}

/// What happens to a file that is in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overwrite {
    /// The file stays, and the change is rejected.
    Refuse,
    Replace,
}

/// What is there under one name.
struct Found<'n> {
    name: &'n HookName,
    /// In the directory that is changed.
    path: PathBuf,
    own: Entry,
    /// The file kept aside while its hook is disabled.
    kept_path: PathBuf,
    kept: Entry,
    /// The file that would be in force without one of our own.
    lower: Option<PathBuf>,
}

impl Editor {
    /// Installs a hook file into a directory.
    pub fn install(
        &self,
        name: &HookName,
        text: &[u8],
        overwrite: Overwrite,
    ) -> Result<Change, ManageError> {
        self.change(name, |found| {
            check(&found.path, text, &self.options)?;
            let refuse = overwrite == Overwrite::Refuse;
            let is_there = matches!(&found.own, Entry::File(own) if own == text);
            match &found.own {
                Entry::File(_) if is_there => {}
                Entry::File(own) if refuse => {
                    let path = found.path.clone();
                    return Err(match is_mask(own) {
                        true => ManageError::Disabled { path },
                        false => ManageError::Exists { path },
                    });
                }
                Entry::Absent if refuse && found.kept.exists() => {
                    return Err(ManageError::Disabled { path: found.kept_path.clone() });
                }
                _ => {}
            }
            let mut change = match is_there {
                true => Change::note(Note::AlreadyThere { path: found.path.clone() }),
                false => found.write(text.to_vec()),
            };
            if found.kept.exists() && !refuse {
                change.steps.push(Step::Remove { path: found.kept_path.clone() });
            }
            Ok(change)
        })
    }

    /// Removes a hook file, be it disabled or not.
    pub fn remove(&self, name: &HookName) -> Result<Change, ManageError> {
        self.change(name, |found| {
            let remove = |path: &Path| vec![Step::Remove { path: path.to_owned() }];
            match &found.own {
                Entry::File(own) if is_mask(own) => {
                    let path = found.path.clone();
                    if !found.kept.exists() {
                        return Err(ManageError::OnlyMask { path });
                    }
                    let notes = vec![Note::StillMasked { path }];
                    Ok(Change { steps: remove(&found.kept_path), notes })
                }
                Entry::File(_) => {
                    Ok(Change { steps: remove(&found.path), notes: found.uncovers() })
                }
                Entry::Absent if found.kept.exists() => {
                    Ok(Change { steps: remove(&found.kept_path), notes: Vec::new() })
                }
                Entry::Absent => Err(match found.lower {
                    Some(path) => ManageError::Elsewhere { path, dir: self.dir()?.to_owned() },
                    None => found.no_such_hook(),
                }),
            }
        })
    }

    /// Keeps a hook from applying, so that [`enable`](Self::enable) can undo it.
    pub fn disable(&self, name: &HookName) -> Result<Change, ManageError> {
        self.change(name, |found| {
            let already = |path: &Path| Note::AlreadyDisabled { path: path.to_owned() };
            match &found.own {
                Entry::File(own) if is_mask(own) => Ok(Change::note(already(&found.path))),
                Entry::File(own) => {
                    let mut steps = Vec::new();
                    match &found.kept {
                        Entry::Absent => steps.push(Step::Keep {
                            path: found.path.clone(),
                            kept: found.kept_path.clone(),
                        }),
                        // An earlier call came this far.
                        Entry::File(kept) if kept == own => {}
                        Entry::File(_) => {
                            return Err(ManageError::Kept { path: found.kept_path.clone() });
                        }
                    }
                    let rest = match found.lower {
                        Some(_) => self.mask(&found)?,
                        None => Change::step(Step::Remove { path: found.path.clone() }),
                    };
                    steps.extend(rest.steps);
                    Ok(Change { steps, notes: rest.notes })
                }
                Entry::Absent if found.lower.is_some() => self.mask(&found),
                Entry::Absent if found.kept.exists() => Ok(Change::note(already(&found.kept_path))),
                Entry::Absent => Err(found.no_such_hook()),
            }
        })
    }

    /// Undoes [`disable`](Self::disable): the hook file is what it was, byte for byte.
    pub fn enable(&self, name: &HookName) -> Result<Change, ManageError> {
        self.change(name, |found| {
            let already = |path: &Path| Note::AlreadyEnabled { path: path.to_owned() };
            let is_masked = matches!(&found.own, Entry::File(own) if is_mask(own));
            let Entry::File(kept) = &found.kept else {
                return match (&found.own, &found.lower) {
                    (Entry::File(_), _) if is_masked => Ok(Change {
                        steps: vec![Step::Remove { path: found.path.clone() }],
                        notes: found.uncovers(),
                    }),
                    (Entry::File(_), _) => Ok(Change::note(already(&found.path))),
                    (Entry::Absent, Some(lower)) => Ok(Change::note(already(lower))),
                    (Entry::Absent, None) => Err(found.no_such_hook()),
                };
            };
            match &found.own {
                // An earlier call came this far.
                Entry::File(own) if own == kept => {
                    Ok(Change::step(Step::Remove { path: found.kept_path.clone() }))
                }
                Entry::File(_) if !is_masked => {
                    Err(ManageError::Kept { path: found.kept_path.clone() })
                }
                _ => {
                    check(&found.kept_path, kept, &self.options)?;
                    let step = Step::Restore {
                        path: found.path.clone(),
                        kept: found.kept_path.clone(),
                        replaces: is_masked,
                    };
                    Ok(Change { steps: vec![step], notes: found.masks() })
                }
            }
        })
    }

    /// Returns the directory that changes go to.
    fn dir(&self) -> Result<&Path, ManageError> {
        self.options.dirs.last().map(PathBuf::as_path).ok_or(ManageError::NoDirectory)
    }

    fn mask(&self, found: &Found<'_>) -> Result<Change, ManageError> {
        let text = mask_text();
        check(&found.path, &text, &self.options)?;
        Ok(found.write(text))
    }

    fn change(
        &self,
        name: &HookName,
        plan: impl Fn(Found<'_>) -> Result<Change, ManageError>,
    ) -> Result<Change, ManageError> {
        let dir = self.dir()?;
        directory::change(dir, self.mode, |opened| {
            let found = Found::look(name, opened, dir, &self.options.dirs)?;
            Ok((plan(found)?, Attributes::own()))
        })
    }
}

impl<'n> Found<'n> {
    fn look(
        name: &'n HookName,
        opened: &Directory<'_>,
        dir: &Path,
        dirs: &[PathBuf],
    ) -> Result<Self, ManageError> {
        let path = dir.join(name.as_os_str());
        let kept_path = dir.join(name.kept());
        // What is there counts, not what can be loaded: a mask must outlast a repair.
        let is_there = |path: &PathBuf| path.symlink_metadata().is_ok();
        let lower_dirs = dirs.iter().rev().filter(|lower| lower.as_path() != dir);
        let lower = lower_dirs.map(|lower| lower.join(name.as_os_str())).find(is_there);
        let (own, kept) = (opened.entry(name.as_os_str())?, opened.entry(&name.kept())?);
        Ok(Found { name, own, path, kept, kept_path, lower })
    }

    fn write(&self, text: Vec<u8>) -> Change {
        let path = self.path.clone();
        let step = Step::Write { path, replaces: self.own.exists(), text };
        Change { steps: vec![step], notes: self.masks() }
    }

    fn masks(&self) -> Vec<Note> {
        let masks = |hidden| Note::Masks { path: self.path.clone(), hidden };
        self.lower.clone().map(masks).into_iter().collect()
    }

    fn uncovers(&self) -> Vec<Note> {
        self.lower.clone().map(|path| Note::Uncovers { path }).into_iter().collect()
    }

    fn no_such_hook(&self) -> ManageError {
        ManageError::NoSuchHook { name: self.name.as_os_str().to_owned() }
    }
}

impl Change {
    fn step(step: Step) -> Self {
        Change { steps: vec![step], notes: Vec::new() }
    }

    fn note(note: Note) -> Self {
        Change { steps: Vec::new(), notes: vec![note] }
    }
}

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

/// Checks that a consumer takes a text.
fn check(path: &Path, text: &[u8], options: &LoadOptions) -> Result<Definition, ManageError> {
    let schema = SchemaOptions {
        extension_stages: &options.extension_stages,
        path_check: options.path_check,
    };
    Definition::parse(text, schema).map_err(|fault| {
        ManageError::Invalid(Box::new(Problem {
            path: path.to_owned(),
            location: fault.location,
            source: fault.error,
            fatal: true,
        }))
    })
}

/// Returns the text of a mask.
fn mask_text() -> Vec<u8> {
    Draft {
        hook: Hook { path: MASK_PROGRAM.to_owned(), ..Hook::default() },
        when: DraftWhen { always: Some(false), ..DraftWhen::default() },
        // Every consumer of every age knows this stage.
        stages: vec!["poststop".to_owned()],
    }
    .to_text()
    .into_bytes()
}

/// Returns whether a text is a mask, perhaps laid out anew.
fn is_mask(text: &[u8]) -> bool {
    let options = SchemaOptions { path_check: PathCheck::Skip, ..SchemaOptions::default() };
    Definition::parse(text, options).is_ok_and(|definition| definition.is_mask())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hooks::{Consumer, LoadOptions};

    #[test]
    fn every_consumer_takes_a_mask() {
        for consumer in Consumer::ALL {
            let options = LoadOptions::for_consumer(&consumer);
            check("m.json".as_ref(), &mask_text(), &options).unwrap();
        }
    }

    #[test]
    fn only_masks_are_taken_for_masks() {
        assert!(is_mask(&mask_text()));
        assert!(is_mask(
            br#"{"version":"1.0.0","hook":{"path":"/"},"when":{"always":false},"stages":[]}"#
        ));
        assert!(!is_mask(
            br#"{"version":"1.0.0","hook":{"path":"/x"},"when":{"always":false},"stages":[]}"#
        ));
        assert!(!is_mask(b""));
    }
}
