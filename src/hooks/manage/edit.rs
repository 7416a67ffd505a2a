//! The operations of [`HookEditor`], each planned as steps from the current state of the
//! directories.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use oci_hooks_files::fs::{FileKind, ReplaceError, read_bounded};

use super::directory::{EntryContent, LockedDirectory, WriteAttributes};
use super::{ChangeNote, ChangeStep, HookChange, HookName, ManageError, directory};
use crate::hooks::load::MAX_FILE_BYTES;
use crate::hooks::migrate::Migration;
use crate::hooks::schema::MASK_PROGRAM;
use crate::hooks::{
    DraftConditions, Hook, HookDefinition, HookDraft, LoadOptions, LoadProblem, ParseOptions,
    PathCheck,
};

/// Changes hook files in the last of the directories a consumer reads.
///
/// ```
/// use oci_hooks::hooks::manage::{HookEditor, HookName, EditMode, OverwritePolicy};
/// use oci_hooks::hooks::LoadOptions;
///
/// # let dir = tempfile::tempdir()?;
/// # let dir = dir.path().join("hooks.d");
/// let mut options = LoadOptions::default();
/// options.dirs = vec![dir.clone()];
/// let editor = HookEditor::new(options, EditMode::Apply);
/// let text = br#"{"version": "1.0.0", "hook": {"path": "/bin/sh"},
///                 "when": {"always": true}, "stages": ["poststop"]}"#;
/// editor.install(&HookName::new("note")?, text, OverwritePolicy::Refuse)?;
/// let change = editor.disable(&HookName::new("note")?)?;
/// assert!(!change.steps.is_empty());
/// assert!(!dir.join("note.json").exists());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HookEditor {
    /// The directories, and the consumer's rules for hook files.
    pub options: LoadOptions,
    pub mode: EditMode,
}

impl HookEditor {
    /// Returns an editor of the directories in the options.
    pub fn new(options: LoadOptions, mode: EditMode) -> Self {
        HookEditor { options, mode }
    }
}

/// Choice between applying a change and only planning it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EditMode {
    Apply,
    Plan,
}

/// Treatment of an existing file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverwritePolicy {
    /// The file is kept, and the change is rejected.
    Refuse,
    Replace,
}

/// The files that belong to one hook name.
struct FilesOfName<'n> {
    name: &'n HookName,
    /// Path in the directory to change.
    path: PathBuf,
    /// The hook file or [mask](super) at `path`.
    own: EntryContent,
    /// Path of the file while its hook is disabled.
    kept_path: PathBuf,
    kept: EntryContent,
    /// File of the same name in an earlier directory, the one with the highest precedence; `own`
    /// masks it.
    lower: Option<PathBuf>,
}

impl HookEditor {
    /// Checks a text and writes it as a hook file into the last of the directories. Another file of this
    /// name, or a disabled hook, is an error unless it is to be replaced.
    pub fn install(
        &self,
        name: &HookName,
        text: &[u8],
        overwrite: OverwritePolicy,
    ) -> Result<HookChange, ManageError> {
        self.change(name, |found| {
            check(&found.path, text, &self.options)?;
            let refuse = overwrite == OverwritePolicy::Refuse;
            let is_there = matches!(&found.own, EntryContent::File(own) if own == text);
            match &found.own {
                EntryContent::File(_) if is_there => {}
                EntryContent::File(own) if refuse && is_mask(own) => {
                    return Err(ManageError::Disabled { path: found.path.clone() });
                }
                EntryContent::File(_) | EntryContent::Link(_) if refuse => {
                    return Err(ManageError::Exists { path: found.path.clone() });
                }
                EntryContent::Absent if refuse && found.kept.exists() => {
                    return Err(ManageError::Disabled { path: found.kept_path.clone() });
                }
                _ => {}
            }
            let mut change = match is_there {
                true => HookChange::note(ChangeNote::AlreadyThere { path: found.path.clone() }),
                false => found.write(text.to_vec()),
            };
            if found.kept.exists() && !refuse {
                change.steps.push(ChangeStep::Remove { path: found.kept_path.clone() });
            }
            Ok(change)
        })
    }

    /// Removes the file of an enabled or disabled hook.
    pub fn remove(&self, name: &HookName) -> Result<HookChange, ManageError> {
        self.change(name, |found| {
            let remove = |path: &Path| vec![ChangeStep::Remove { path: path.to_owned() }];
            match &found.own {
                EntryContent::File(own) if is_mask(own) => {
                    let path = found.path.clone();
                    if !found.kept.exists() {
                        return Err(ManageError::OnlyMask { path });
                    }
                    let notes = vec![ChangeNote::StillMasked { path }];
                    Ok(HookChange { steps: remove(&found.kept_path), notes })
                }
                EntryContent::File(_) | EntryContent::Link(_) => {
                    Ok(HookChange { steps: remove(&found.path), notes: found.uncovered_notes() })
                }
                EntryContent::Absent if found.kept.exists() => {
                    Ok(HookChange { steps: remove(&found.kept_path), notes: Vec::new() })
                }
                EntryContent::Absent => Err(match found.lower {
                    Some(path) => ManageError::Elsewhere { path, dir: self.dir()?.to_owned() },
                    None => found.no_such_hook_error(),
                }),
            }
        })
    }

    /// Keeps a hook from applying; [`enable`](Self::enable) undoes this.
    pub fn disable(&self, name: &HookName) -> Result<HookChange, ManageError> {
        self.change(name, |found| {
            let already = |path: &Path| ChangeNote::AlreadyDisabled { path: path.to_owned() };
            match &found.own {
                EntryContent::File(own) if is_mask(own) => {
                    Ok(HookChange::note(already(&found.path)))
                }
                own @ (EntryContent::File(_) | EntryContent::Link(_)) => {
                    let mut steps = Vec::new();
                    match &found.kept {
                        EntryContent::Absent => steps.push(ChangeStep::Keep {
                            path: found.path.clone(),
                            kept: found.kept_path.clone(),
                        }),
                        // An interrupted call got this far.
                        kept if kept == own => {}
                        EntryContent::File(_) | EntryContent::Link(_) => {
                            return Err(ManageError::DisabledNameTaken {
                                path: found.kept_path.clone(),
                            });
                        }
                    }
                    let rest = match &found.lower {
                        Some(_) => self.mask(&found)?,
                        None => HookChange::step(ChangeStep::Remove { path: found.path.clone() }),
                    };
                    steps.extend(rest.steps);
                    Ok(HookChange { steps, notes: rest.notes })
                }
                EntryContent::Absent if found.lower.is_some() => self.mask(&found),
                EntryContent::Absent if found.kept.exists() => {
                    Ok(HookChange::note(already(&found.kept_path)))
                }
                EntryContent::Absent => Err(found.no_such_hook_error()),
            }
        })
    }

    /// Undoes [`disable`](Self::disable): restores the hook file byte for byte.
    pub fn enable(&self, name: &HookName) -> Result<HookChange, ManageError> {
        self.change(name, |found| {
            let is_masked = matches!(&found.own, EntryContent::File(own) if is_mask(own));
            if !found.kept.exists() {
                return match (&found.own, &found.lower) {
                    (EntryContent::File(_), _) if is_masked => Ok(HookChange {
                        steps: vec![ChangeStep::Remove { path: found.path.clone() }],
                        notes: found.uncovered_notes(),
                    }),
                    (EntryContent::Absent, None) => Err(found.no_such_hook_error()),
                    (EntryContent::Absent, Some(lower)) => {
                        self.already_enabled(lower, &found.own.read(lower)?)
                    }
                    (own, _) => self.already_enabled(&found.path, &own.read(&found.path)?),
                };
            }
            match &found.own {
                // An interrupted call got this far.
                own if *own == found.kept => {
                    Ok(HookChange::step(ChangeStep::Remove { path: found.kept_path.clone() }))
                }
                own if own.exists() && !is_masked => {
                    Err(ManageError::DisabledNameTaken { path: found.kept_path.clone() })
                }
                _ => {
                    check(&found.kept_path, &found.kept.read(&found.kept_path)?, &self.options)?;
                    let step = ChangeStep::Restore {
                        path: found.path.clone(),
                        kept: found.kept_path.clone(),
                        replaces: is_masked,
                    };
                    Ok(HookChange { steps: vec![step], notes: found.masks() })
                }
            }
        })
    }

    /// Returns a change without steps, with the note that the hook is enabled already. Fails if the
    /// consumer rejects the hook file, or if the hook never applies.
    fn already_enabled(&self, path: &Path, text: &[u8]) -> Result<HookChange, ManageError> {
        let options = LoadOptions { path_check: PathCheck::Skip, ..self.options.clone() };
        let HookDefinition { when, stages, .. } = check(path, text, &options)?;
        let path = path.to_owned();
        if !when.can_hold() || stages.is_empty() {
            return Err(ManageError::NeverApplies { path });
        }
        Ok(HookChange::note(ChangeNote::AlreadyEnabled { path }))
    }

    /// Returns the directory to change.
    fn dir(&self) -> Result<&Path, ManageError> {
        self.options.dirs.last().map(PathBuf::as_path).ok_or(ManageError::NoDirectory)
    }

    fn mask(&self, found: &FilesOfName<'_>) -> Result<HookChange, ManageError> {
        let text = mask_text();
        check(&found.path, &text, &self.options)?;
        Ok(found.write(text))
    }

    fn change(
        &self,
        name: &HookName,
        plan: impl Fn(FilesOfName<'_>) -> Result<HookChange, ManageError>,
    ) -> Result<HookChange, ManageError> {
        let dir = self.dir()?;
        directory::change(dir, self.mode, |opened| {
            let found = FilesOfName::find_files(name, opened, dir, &self.options.dirs)?;
            Ok((plan(found)?, WriteAttributes::own()))
        })
    }
}

impl<'n> FilesOfName<'n> {
    fn find_files(
        name: &'n HookName,
        opened: &LockedDirectory<'_>,
        dir: &Path,
        dirs: &[PathBuf],
    ) -> Result<Self, ManageError> {
        let path = dir.join(name.as_os_str());
        let kept_name = name.disabled_file_name();
        let kept_path = dir.join(&kept_name);
        // Files that cannot be loaded count, too: the mask must hide them after a repair.
        let is_there = |path: &PathBuf| path.symlink_metadata().is_ok();
        let lower_dirs = dirs.iter().rev().filter(|lower| lower.as_path() != dir);
        let lower = lower_dirs.map(|lower| lower.join(name.as_os_str())).find(is_there);
        let (own, kept) = (opened.entry(name.as_os_str())?, opened.entry(&kept_name)?);
        Ok(FilesOfName { name, own, path, kept, kept_path, lower })
    }

    fn write(&self, text: Vec<u8>) -> HookChange {
        let path = self.path.clone();
        let step = ChangeStep::Write { path, replaces: self.own.exists(), text };
        HookChange { steps: vec![step], notes: self.masks() }
    }

    fn masks(&self) -> Vec<ChangeNote> {
        let masks = |hidden| ChangeNote::Masks { path: self.path.clone(), hidden };
        self.lower.clone().map(masks).into_iter().collect()
    }

    fn uncovered_notes(&self) -> Vec<ChangeNote> {
        self.lower.clone().map(|path| ChangeNote::Uncovers { path }).into_iter().collect()
    }

    fn no_such_hook_error(&self) -> ManageError {
        ManageError::NoSuchHook { name: self.name.as_os_str().to_owned() }
    }
}

impl EntryContent {
    /// Returns the content of a file; that of another entry is read from `path`, through symlinks.
    fn read(&self, path: &Path) -> Result<Cow<'_, [u8]>, ManageError> {
        Ok(match self {
            EntryContent::File(text) => Cow::Borrowed(text.as_slice()),
            _ => Cow::Owned(read_bounded(path, MAX_FILE_BYTES)?),
        })
    }
}

impl HookChange {
    fn step(step: ChangeStep) -> Self {
        HookChange { steps: vec![step], notes: Vec::new() }
    }

    fn note(note: ChangeNote) -> Self {
        HookChange { steps: Vec::new(), notes: vec![note] }
    }
}

/// The destination of the files of a migration.
#[derive(Clone, Copy, Debug)]
pub enum MigrationDestination<'a> {
    /// A directory in which no existing file is replaced.
    Directory(&'a Path),
    /// The directory of the old file. The old file is replaced; new files get its mode and owner.
    Replace {
        path: &'a Path,
        /// Content of the old file when it was read.
        text: &'a [u8],
    },
}

/// Writes the files of a migration.
///
/// The file with the old name is written last: until then a container may get the hook twice, but
/// always gets it. Existing files with the right content are kept, so that an interrupted call can
/// be repeated.
pub fn write_migration(
    migration: &Migration,
    destination: MigrationDestination<'_>,
    options: &LoadOptions,
    mode: EditMode,
) -> Result<HookChange, ManageError> {
    let dir = match destination {
        MigrationDestination::Directory(dir) => dir,
        MigrationDestination::Replace { path, .. } => match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        },
    };
    directory::change(dir, mode, |directory| {
        let mut change = HookChange::default();
        let mut attributes = WriteAttributes::own();
        let mut old = None;
        if let MigrationDestination::Replace { path, text } = destination {
            let name = path.file_name().unwrap_or_default();
            match directory.entry(name)? {
                EntryContent::File(found) if found == text => {}
                EntryContent::Link(_) => {
                    let (path, kind) = (path.to_owned(), FileKind::Symlink);
                    return Err(ReplaceError::NotAFile { path, kind }.into());
                }
                _ => return Err(ReplaceError::Changed { path: path.to_owned() }.into()),
            }
            attributes = directory.attributes(name)?;
            old = path.file_name();
        }
        for file in migration.files.iter().rev() {
            let path = dir.join(&file.name);
            let text = file.text.as_bytes();
            check(&path, text, options)?;
            let replaces = match directory.entry(&file.name)? {
                EntryContent::File(found) if found == text => continue,
                EntryContent::File(_) if old == Some(&file.name) => true,
                EntryContent::File(_) | EntryContent::Link(_) => {
                    return Err(ManageError::Exists { path });
                }
                EntryContent::Absent => false,
            };
            change.steps.push(ChangeStep::Write { path, replaces, text: text.to_vec() });
        }
        Ok((change, attributes))
    })
}

/// Checks that the consumer accepts the text of a hook file.
fn check(path: &Path, text: &[u8], options: &LoadOptions) -> Result<HookDefinition, ManageError> {
    let schema = ParseOptions {
        extension_stages: &options.extension_stages,
        path_check: options.path_check,
    };
    HookDefinition::parse(text, schema).map_err(|fault| {
        ManageError::Invalid(Box::new(LoadProblem {
            path: path.to_owned(),
            location: fault.location,
            source: fault.error,
            fatal: true,
        }))
    })
}

/// Returns the text of a [mask](super), a hook file that never applies and only hides others.
fn mask_text() -> Vec<u8> {
    HookDraft {
        hook: Hook { path: MASK_PROGRAM.to_owned(), ..Hook::default() },
        when: DraftConditions { always: Some(false), ..DraftConditions::default() },
        // Every version of every consumer knows this stage.
        stages: vec!["poststop".to_owned()],
    }
    .to_text()
    .into_bytes()
}

/// Returns whether a text is that of a [mask](super), in any layout.
fn is_mask(text: &[u8]) -> bool {
    let options = ParseOptions { path_check: PathCheck::Skip, ..ParseOptions::default() };
    HookDefinition::parse(text, options).is_ok_and(|definition| definition.is_mask())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hooks::{Consumer, LoadOptions};

    #[test]
    fn every_consumer_accepts_a_mask() {
        for consumer in Consumer::ALL {
            let options = LoadOptions::for_consumer(&consumer);
            check("m.json".as_ref(), &mask_text(), &options).unwrap();
        }
    }

    #[test]
    fn only_masks_are_recognized_as_masks() {
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
