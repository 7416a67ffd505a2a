//! Reading hook directories.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::consumer::{BadFiles, Consumer};
use super::schema::FoundPrograms;
use super::set::is_hook_file_name;
use super::{Definition, HookError, HookFile, HookSet, PathCheck, Problem, SchemaOptions};
use crate::sys::fs::{Directory, PathContext, PathError, ReadError};

/// The most a hook file may hold. Real ones take a few hundred bytes.
pub const MAX_FILE_BYTES: u64 = 16 << 20;

/// What to load, and for whom.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct LoadOptions {
    /// The directories, in order of increasing precedence.
    pub dirs: Vec<PathBuf>,
    /// Stages the consumer runs by itself.
    pub extension_stages: Vec<String>,
    pub path_check: PathCheck,
    /// What the consumer does about files that it rejects. If it leaves them out, no problem is fatal.
    pub bad_files: BadFiles,
}

impl LoadOptions {
    /// Returns what a consumer loads by default.
    pub fn for_consumer(consumer: &Consumer) -> Self {
        LoadOptions {
            dirs: consumer.dirs.iter().map(PathBuf::from).collect(),
            extension_stages: consumer.extension_stages.iter().map(|&s| s.to_owned()).collect(),
            path_check: PathCheck::Exists,
            bad_files: consumer.bad_files,
        }
    }

    fn skips_bad_files(&self) -> bool {
        self.bad_files == BadFiles::Skipped
    }
}

/// What was found in the directories.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Loaded {
    pub hooks: HookSet,
    /// What stopped files from being hooks, in the order it was met.
    pub problems: Vec<Problem>,
    /// The hooks that a later directory's file hides.
    pub masked: Vec<HookFile>,
    /// Every directory entry, in the order of the directories, sorted by name.
    pub entries: Vec<Entry>,
    /// The directories that were to be read.
    pub dirs: Vec<PathBuf>,
    /// Those of them that do not exist, which is no fault.
    pub missing_dirs: Vec<PathBuf>,
}

/// One entry of a hook directory.
#[derive(Debug)]
#[non_exhaustive]
pub struct Entry {
    pub path: PathBuf,
    pub state: EntryState,
}

/// What became of a directory entry.
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EntryState {
    /// It is a hook in force.
    Active,
    /// It is a hook, but a later directory has a file of the same name.
    Masked { by: PathBuf },
    /// It cannot be used: one of the problems is about it, or about its directory.
    Broken,
    /// It went away while it was opened, or is a dangling symlink.
    Vanished,
    /// Its name does not end in `.json`.
    NotJson,
}

impl Loaded {
    /// Returns the hooks unless a problem keeps podman and CRI-O from working.
    pub fn into_strict(mut self) -> Result<HookSet, Box<Problem>> {
        match self.problems.iter().position(|problem| problem.fatal) {
            Some(at) => Err(Box::new(self.problems.swap_remove(at))),
            None => Ok(self.hooks),
        }
    }

    /// Returns all hooks, those in force first.
    pub(super) fn files(&self) -> impl Iterator<Item = &HookFile> {
        self.hooks.iter().chain(&self.masked)
    }
}

/// Loads the hooks of some directories.
///
/// One bad file does not hide the others: what could be loaded is, and the rest are problems. Which
/// of them are fatal follows the reference: if the first bad file of a directory names a program that
/// does not exist, the reference overlooks everything that is wrong in that directory; otherwise it
/// gives up.
///
/// ```
/// use oci_hooks::hooks::{self, LoadOptions, Target, consumer};
///
/// let loaded = hooks::load(&LoadOptions::for_consumer(&consumer::PODMAN));
/// for problem in &loaded.problems {
///     eprintln!("{problem}: {}", problem.source);
/// }
/// let target = Target::default();
/// for verdict in loaded.hooks.evaluate(&target) {
///     println!("{}: {}", verdict.file.path.display(), verdict.matches());
/// }
/// ```
pub fn load(options: &LoadOptions) -> Loaded {
    load_after(&Loaded::default(), options)
}

/// Loads hooks again. Where a file was good before and cannot be used now, what it said stays in
/// force; its entry is [`EntryState::Broken`] all the same.
pub fn load_after(previous: &Loaded, options: &LoadOptions) -> Loaded {
    let previous_files = previous.files().map(|file| (file.path.as_path(), file)).collect();
    let mut loader = Loader {
        options,
        previous,
        previous_files,
        loaded: Loaded::default(),
        active: Vec::new(),
        earlier: 0,
        found_programs: FoundPrograms::default(),
    };
    for dir in &options.dirs {
        loader.dir(dir);
        loader.active.sort_unstable_by(|(a, _), (b, _)| a.name.cmp(&b.name));
        loader.earlier = loader.active.len();
    }
    loader.loaded.dirs.clone_from(&options.dirs);
    loader.loaded.hooks = loader.active.into_iter().map(|(file, _)| file).collect();
    loader.loaded
}

struct Loader<'o> {
    options: &'o LoadOptions,
    previous: &'o Loaded,
    previous_files: HashMap<&'o Path, &'o HookFile>,
    loaded: Loaded,
    /// The hooks in force, each with the index of its entry.
    active: Vec<(HookFile, usize)>,
    /// How many of these are of earlier directories; they stand in the order of their names.
    earlier: usize,
    found_programs: FoundPrograms,
}

impl Loader<'_> {
    fn dir(&mut self, dir: &Path) {
        let (mut directory, names) = match open(dir) {
            Ok(opened) => opened,
            Err(error) if error.source.kind() == io::ErrorKind::NotFound => {
                return self.loaded.missing_dirs.push(dir.to_owned());
            }
            Err(error) => {
                let error = HookError::from(error);
                self.keep_dir(dir, &error);
                return self.loaded.problems.push(Problem {
                    path: dir.to_owned(),
                    location: None,
                    source: error,
                    fatal: !self.options.skips_bad_files(),
                });
            }
        };
        let first_problem = self.loaded.problems.len();
        for name in names {
            let path = path_of(dir, &name);
            let state = match is_hook_file_name(&name) {
                true => self.file(&mut directory, name, &path),
                false => EntryState::NotJson,
            };
            self.loaded.entries.push(Entry { path, state });
        }
        if !self.options.skips_bad_files() {
            mark_fatal(&mut self.loaded.problems[first_problem..]);
        }
    }

    fn file(&mut self, directory: &mut Directory, name: OsString, path: &Path) -> EntryState {
        let text = match directory.read(&name, path, MAX_FILE_BYTES) {
            Ok(text) => text,
            Err(error) => {
                let error = HookError::from(error);
                let vanished = error.is_vanished();
                self.keep(path, &error);
                self.problem(path, error);
                return if vanished { EntryState::Vanished } else { EntryState::Broken };
            }
        };
        let schema = SchemaOptions {
            extension_stages: &self.options.extension_stages,
            path_check: self.options.path_check,
        };
        match Definition::parse_one_of_many(text, schema, &self.found_programs) {
            Ok(definition) => {
                self.activate(HookFile::named(name, path.to_owned(), definition));
                EntryState::Active
            }
            Err(fault) => {
                self.keep(path, &fault.error);
                self.loaded.problems.push(Problem {
                    path: path.to_owned(),
                    location: fault.location,
                    source: fault.error,
                    fatal: false,
                });
                EntryState::Broken
            }
        }
    }

    /// Puts a hook in force whose entry comes next, and masks the one of its name.
    fn activate(&mut self, file: HookFile) {
        let entry = self.loaded.entries.len();
        let earlier = &mut self.active[..self.earlier];
        let Ok(at) = earlier.binary_search_by(|(other, _)| other.name.cmp(&file.name)) else {
            return self.active.push((file, entry));
        };
        let by = file.path.clone();
        let (masked, entry) = std::mem::replace(&mut earlier[at], (file, entry));
        self.loaded.masked.push(masked);
        let state = &mut self.loaded.entries[entry].state;
        if *state == EntryState::Active {
            *state = EntryState::Masked { by };
        }
    }

    /// Leaves in force what a file said before it got broken.
    fn keep(&mut self, path: &Path, error: &HookError) {
        if !outlives(error) {
            return;
        }
        if let Some(&file) = self.previous_files.get(path)
            && self.has_program(file)
        {
            self.activate(file.clone());
        }
    }

    /// Leaves in force the hooks of a directory that cannot be listed any more.
    fn keep_dir(&mut self, dir: &Path, error: &HookError) {
        if !outlives(error) {
            return;
        }
        let mut files: Vec<_> = self
            .previous
            .files()
            .filter(|file| file.path.parent() == Some(dir) && self.has_program(file))
            .collect();
        files.sort_unstable_by_key(|file| &file.name);
        // A directory that is named twice has each file masked by itself.
        files.dedup_by_key(|file| &file.name);
        for file in files {
            self.activate(file.clone());
            self.loaded.entries.push(Entry { path: file.path.clone(), state: EntryState::Broken });
        }
    }

    fn has_program(&self, file: &HookFile) -> bool {
        self.options.path_check == PathCheck::Skip
            || fs::metadata(&file.definition.hook.path).is_ok()
    }

    fn problem(&mut self, path: &Path, source: HookError) {
        let problem = Problem { path: path.to_owned(), location: None, source, fatal: false };
        self.loaded.problems.push(problem);
    }
}

/// Joins the two as [`Path::join`] does, with one allocation.
fn path_of(dir: &Path, name: &OsStr) -> PathBuf {
    let mut path = PathBuf::with_capacity(dir.as_os_str().len() + 1 + name.len());
    path.push(dir);
    path.push(name);
    path
}

/// Opens a directory and lists it in byte order.
pub fn open(dir: &Path) -> Result<(Directory, Vec<OsString>), PathError> {
    let directory = Directory::open(dir)?;
    let names = directory.names().at("list", dir)?;
    Ok((directory, names))
}

/// Returns whether a hook that was good before stays in force in spite of an error.
///
/// Not if the file, its directory or the hook's program was removed: a hook without its program
/// would make every container fail, and the reference ignores it.
fn outlives(error: &HookError) -> bool {
    match error {
        HookError::PathMissing { .. } | HookError::PathLookup { .. } => false,
        HookError::Read(ReadError::NotAFile { .. }) => false,
        HookError::Read(ReadError::Path(error)) | HookError::List(error) => !matches!(
            error.source.kind(),
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory
        ),
        _ => true,
    }
}

/// Marks the problems of one directory that the reference does not overlook.
fn mark_fatal(problems: &mut [Problem]) {
    let is_vanished = |problem: &Problem| problem.source.is_vanished();
    let first = problems.iter().find(|problem| !is_vanished(problem));
    if first.is_none_or(|first| matches!(first.source, HookError::PathMissing { .. })) {
        return;
    }
    for problem in problems.iter_mut().filter(|problem| !is_vanished(problem)) {
        problem.fatal = true;
    }
}
