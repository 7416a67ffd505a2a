//! Reading hook directories.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

use oci_hooks_files::fs::{DirectoryReader, PathContext, PathError, ReadError};

use super::consumer::{BadFilePolicy, Consumer};
use super::schema::FoundPrograms;
use super::set::is_hook_file_name;
use super::{HookDefinition, HookError, HookFile, HookSet, LoadProblem, ParseOptions, PathCheck};

/// Size limit of a hook file; real ones take a few hundred bytes.
pub const MAX_FILE_BYTES: u64 = 16 << 20;

/// Options of [`load()`].
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct LoadOptions {
    /// The directories, in order of increasing precedence.
    pub dirs: Vec<PathBuf>,
    /// Stages that the consumer runs itself.
    pub extension_stages: Vec<String>,
    pub path_check: PathCheck,
    /// Reaction of the consumer to files that it rejects. If it skips them, no problem is fatal,
    /// and a monitor keeps their last valid version active.
    pub bad_files: BadFilePolicy,
}

impl LoadOptions {
    /// Returns the default options of a consumer.
    pub fn for_consumer(consumer: &Consumer) -> Self {
        LoadOptions {
            dirs: consumer.dirs.iter().map(PathBuf::from).collect(),
            extension_stages: consumer.extension_stages.iter().map(|&s| s.to_owned()).collect(),
            path_check: PathCheck::Exists,
            bad_files: consumer.bad_files,
        }
    }

    fn skips_bad_files(&self) -> bool {
        self.bad_files == BadFilePolicy::Skipped
    }
}

/// The hooks and problems found in the directories.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct LoadedHooks {
    pub hooks: HookSet,
    /// Errors of files that could not be loaded, in the order found.
    pub problems: Vec<LoadProblem>,
    /// Hooks hidden by a file of a later directory.
    pub masked: Vec<HookFile>,
    /// The entries of all directories: in the order of the directories, and by name within each.
    pub entries: Vec<LoadedEntry>,
    /// The directories of the [`LoadOptions`].
    pub dirs: Vec<PathBuf>,
    /// Directories that do not exist, which is no error.
    pub missing_dirs: Vec<PathBuf>,
}

/// One entry of a hook directory.
#[derive(Debug)]
#[non_exhaustive]
pub struct LoadedEntry {
    pub path: PathBuf,
    pub state: EntryState,
}

/// The result of loading a directory entry.
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EntryState {
    Active,
    /// The entry is a hook, but a later directory has a file of the same name.
    Masked {
        by: PathBuf,
    },
    /// The entry cannot be used: one of the problems is about this entry or its directory.
    Broken,
    /// The entry vanished before it was opened, or is a dangling symlink.
    Vanished,
    /// The name does not end in `.json`.
    NotJson,
}

impl LoadedHooks {
    /// Returns the hooks, or the first fatal problem as an error.
    pub fn into_strict(mut self) -> Result<HookSet, Box<LoadProblem>> {
        match self.problems.iter().position(|problem| problem.fatal) {
            Some(at) => Err(Box::new(self.problems.swap_remove(at))),
            None => Ok(self.hooks),
        }
    }

    /// Returns all hooks: the active hooks, then the masked hooks.
    pub(super) fn files(&self) -> impl Iterator<Item = &HookFile> {
        self.hooks.iter().chain(&self.masked)
    }
}

/// Loads the hooks of some directories.
///
/// A bad file does not affect the others; its error becomes a problem. The first bad file of a
/// directory decides, as in podman: if its program does not exist, no problem of that directory is
/// fatal; otherwise all are.
///
/// ```
/// use oci_hooks::hooks::{self, LoadOptions, MatchTarget, consumer};
///
/// let loaded = hooks::load(&LoadOptions::for_consumer(&consumer::PODMAN));
/// for problem in &loaded.problems {
///     eprintln!("{problem}: {}", problem.source);
/// }
/// let target = MatchTarget::default();
/// for verdict in loaded.hooks.evaluate(&target) {
///     println!("{}: {}", verdict.file.path.display(), verdict.matches());
/// }
/// ```
pub fn load(options: &LoadOptions) -> LoadedHooks {
    load_after(&LoadedHooks::default(), options)
}

/// Loads hooks again. If a file was valid before and cannot be loaded now, and the consumer skips
/// such files, its previous hook stays active, although its entry is [`EntryState::Broken`].
pub fn load_after(previous: &LoadedHooks, options: &LoadOptions) -> LoadedHooks {
    load_reusing(previous, options, HashMap::new())
}

/// Loads hooks. Files in `unchanged`, keyed by path, are not read again.
pub(super) fn load_reusing(
    previous: &LoadedHooks,
    options: &LoadOptions,
    unchanged: HashMap<&OsStr, &HookFile>,
) -> LoadedHooks {
    let nothing = LoadedHooks::default();
    let previous = if options.skips_bad_files() { previous } else { &nothing };
    let previous_files = previous.files().map(|file| (file.path.as_os_str(), file)).collect();
    let mut loader = HookLoader {
        options,
        previous,
        previous_files,
        unchanged,
        loaded: LoadedHooks::default(),
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

struct HookLoader<'o> {
    options: &'o LoadOptions,
    previous: &'o LoadedHooks,
    /// The hook files of the previous load by path. The keys are `OsStr`, which compares faster
    /// than `Path`.
    previous_files: HashMap<&'o OsStr, &'o HookFile>,
    unchanged: HashMap<&'o OsStr, &'o HookFile>,
    loaded: LoadedHooks,
    /// The active hooks, each with the index of its entry.
    active: Vec<(HookFile, usize)>,
    /// Number of `active` hooks from earlier directories, which are sorted by name.
    earlier: usize,
    found_programs: FoundPrograms,
}

impl HookLoader<'_> {
    fn dir(&mut self, dir: &Path) {
        let (mut directory, names) = match open(dir) {
            Ok(opened) => opened,
            Err(error) if error.source.kind() == io::ErrorKind::NotFound => {
                return self.loaded.missing_dirs.push(dir.to_owned());
            }
            Err(error) => {
                let error = HookError::from(error);
                self.keep_dir(dir, &error);
                return self.loaded.problems.push(LoadProblem {
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
            self.loaded.entries.push(LoadedEntry { path, state });
        }
        if !self.options.skips_bad_files() {
            mark_fatal(&mut self.loaded.problems[first_problem..]);
        }
    }

    fn file(&mut self, directory: &mut DirectoryReader, name: OsString, path: &Path) -> EntryState {
        if let Some(&file) = self.unchanged.get(path.as_os_str())
            && self.has_program(file)
        {
            self.activate(file.clone());
            return EntryState::Active;
        }
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
        let schema = ParseOptions {
            extension_stages: &self.options.extension_stages,
            path_check: self.options.path_check,
        };
        match HookDefinition::parse_one_of_many(text, schema, &self.found_programs) {
            Ok(definition) => {
                self.activate(HookFile::with_name(name, path.to_owned(), definition));
                EntryState::Active
            }
            Err(fault) => {
                self.keep(path, &fault.error);
                self.loaded.problems.push(LoadProblem {
                    path: path.to_owned(),
                    location: fault.location,
                    source: fault.error,
                    fatal: false,
                });
                EntryState::Broken
            }
        }
    }

    /// Activates a hook, and masks an active hook of the same name from an earlier directory. The
    /// caller must push the hook's entry to `loaded.entries` next.
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

    /// Keeps the previous hook of a broken file active.
    fn keep(&mut self, path: &Path, error: &HookError) {
        if !keeps_hook(error) {
            return;
        }
        if let Some(&file) = self.previous_files.get(path.as_os_str())
            && self.has_program(file)
        {
            self.activate(file.clone());
        }
    }

    /// Keeps the hooks of a directory active if the directory can no longer be listed.
    fn keep_dir(&mut self, dir: &Path, error: &HookError) {
        if !keeps_hook(error) {
            return;
        }
        let mut files: Vec<_> = self
            .previous
            .files()
            .filter(|file| file.path.parent() == Some(dir) && self.has_program(file))
            .collect();
        files.sort_unstable_by_key(|file| &file.name);
        // If the options name a directory twice, each of its files masks itself.
        files.dedup_by_key(|file| &file.name);
        for file in files {
            self.activate(file.clone());
            self.loaded
                .entries
                .push(LoadedEntry { path: file.path.clone(), state: EntryState::Broken });
        }
    }

    fn has_program(&self, file: &HookFile) -> bool {
        self.options.path_check == PathCheck::Skip
            || self.found_programs.check(&file.definition.hook.path).is_ok()
    }

    fn problem(&mut self, path: &Path, source: HookError) {
        let problem = LoadProblem { path: path.to_owned(), location: None, source, fatal: false };
        self.loaded.problems.push(problem);
    }
}

/// Joins a directory and a name as [`Path::join`] does, but with a single allocation.
fn path_of(dir: &Path, name: &OsStr) -> PathBuf {
    let mut path = PathBuf::with_capacity(dir.as_os_str().len() + 1 + name.len());
    path.push(dir);
    path.push(name);
    path
}

/// Opens a directory and returns it with the names of its entries, in byte order.
pub fn open(dir: &Path) -> Result<(DirectoryReader, Vec<OsString>), PathError> {
    let directory = DirectoryReader::open(dir)?;
    let names = directory.names().with_path("list", dir)?;
    Ok((directory, names))
}

/// Returns whether a previously valid hook stays active despite an error.
///
/// A hook does not stay active if its file, its directory or its program was removed: a hook
/// without its program would make every container fail, and podman ignores it.
fn keeps_hook(error: &HookError) -> bool {
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

/// Marks the problems of one directory that podman treats as fatal.
fn mark_fatal(problems: &mut [LoadProblem]) {
    let is_vanished = |problem: &LoadProblem| problem.source.is_vanished();
    let first = problems.iter().find(|problem| !is_vanished(problem));
    if first.is_none_or(|first| matches!(first.source, HookError::PathMissing { .. })) {
        return;
    }
    for problem in problems.iter_mut().filter(|problem| !is_vanished(problem)) {
        problem.fatal = true;
    }
}
