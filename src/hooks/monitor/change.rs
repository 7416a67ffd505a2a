//! Differences between two loads.

use std::collections::HashMap;
use std::error::Error;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::hooks::{
    EntryState, HookConditions, HookDefinition, HookFile, LoadProblem, LoadedHooks,
};

/// A change of a hook file, of its program, or of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileChange {
    pub path: PathBuf,
    pub kind: ChangeKind,
}

/// The kind of a [`FileChange`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChangeKind {
    /// The file is new, and its hook is active.
    Added,
    Removed,
    /// The active definition changed. Reformatting a file does not change it.
    Changed,
    /// A file of the same name in a later directory masks the file.
    Masked {
        by: PathBuf,
    },
    /// The file or directory cannot be used; see [`LoadedHooks::problems`].
    Broken {
        /// If set, the previous definition stays active.
        in_force: bool,
    },
    /// The file was masked or broken, and its hook is active now.
    Restored,
    /// A directory can be listed again, or a CDI specification can be used again.
    Readable,
    /// The owner, mode or writers of the path, the content of a program, or the target of a symlink
    /// changed. The path is a hook file, a program, or a directory or symlink on the way to one.
    /// [`check_path`](crate::hooks::trust::check_path) checks whether the path is still trusted.
    Altered,
}

impl ChangeKind {
    /// Returns a stable name of the kind of change, for programs.
    pub fn name(&self) -> &'static str {
        match self {
            ChangeKind::Added => "added",
            ChangeKind::Removed => "removed",
            ChangeKind::Changed => "changed",
            ChangeKind::Masked { .. } => "masked",
            ChangeKind::Broken { .. } => "broken",
            ChangeKind::Restored => "restored",
            ChangeKind::Readable => "readable",
            ChangeKind::Altered => "altered",
        }
    }
}

/// The state of one path after a load.
enum PathStatus<'a> {
    Active(&'a HookFile),
    Masked { by: &'a Path },
    Broken { problem: Option<&'a LoadProblem>, in_force: bool },
}

/// Returns the differences between two loads of the same directories, sorted by path.
///
/// ```
/// use oci_hooks::hooks::{LoadOptions, LoadedHooks, load, monitor};
///
/// let loaded = load(&LoadOptions::default());
/// assert!(monitor::diff(&LoadedHooks::default(), &loaded).is_empty());
/// ```
pub fn diff(old: &LoadedHooks, new: &LoadedHooks) -> Vec<FileChange> {
    let (before, after) = (statuses(old), statuses(new));
    let mut changes = Vec::new();
    for (&path, status) in &after {
        let kind = match (before.get(path), status) {
            (None, PathStatus::Active(_)) => ChangeKind::Added,
            (Some(PathStatus::Active(old)), PathStatus::Active(new)) => {
                if is_same_definition(&old.definition, &new.definition) {
                    continue;
                }
                ChangeKind::Changed
            }
            (Some(_), PathStatus::Active(_)) => ChangeKind::Restored,
            (Some(PathStatus::Masked { by: old }), PathStatus::Masked { by: new })
                if old == new =>
            {
                continue;
            }
            (_, PathStatus::Masked { by }) => ChangeKind::Masked { by: by.to_path_buf() },
            (
                Some(PathStatus::Broken { problem: old, in_force: was_in_force }),
                PathStatus::Broken { problem: new, in_force },
            ) if in_force == was_in_force && old.map(text) == new.map(text) => continue,
            (_, &PathStatus::Broken { in_force, .. }) => ChangeKind::Broken { in_force },
        };
        changes.push(FileChange { path: path.into(), kind });
    }
    for (&path, status) in before.iter().filter(|(path, _)| !after.contains_key(*path)) {
        // Only directories have problems without being entries.
        let is_dir = matches!(status, PathStatus::Broken { .. })
            && !old.entries.iter().any(|entry| entry.path == path);
        let is_back = is_dir && !new.missing_dirs.iter().any(|dir| dir == path);
        let kind = if is_back { ChangeKind::Readable } else { ChangeKind::Removed };
        changes.push(FileChange { path: path.into(), kind });
    }
    changes.sort_by(|a, b| a.path.as_os_str().cmp(b.path.as_os_str()));
    changes
}

/// Returns the state of each path. The keys are `OsStr`, which compares faster than `Path`.
fn statuses(loaded: &LoadedHooks) -> HashMap<&OsStr, PathStatus<'_>> {
    let active: HashMap<&OsStr, &HookFile> =
        loaded.hooks.iter().map(|file| (file.path.as_os_str(), file)).collect();
    let mut statuses: HashMap<&OsStr, PathStatus<'_>> = loaded
        .problems
        .iter()
        .map(|problem| {
            let path = problem.path.as_os_str();
            (
                path,
                PathStatus::Broken { problem: Some(problem), in_force: active.contains_key(path) },
            )
        })
        .collect();
    for entry in &loaded.entries {
        let path = entry.path.as_os_str();
        let status = match &entry.state {
            EntryState::Active => match active.get(path) {
                Some(file) => PathStatus::Active(file),
                None => continue,
            },
            EntryState::Masked { by } => PathStatus::Masked { by },
            EntryState::Broken | EntryState::Vanished => {
                let in_force = active.contains_key(path);
                statuses.entry(path).or_insert(PathStatus::Broken { problem: None, in_force });
                continue;
            }
            EntryState::NotJson => continue,
        };
        statuses.insert(path, status);
    }
    statuses
}

/// Returns the texts of a problem, without positions, which move with every edit elsewhere in the file.
fn text(problem: &LoadProblem) -> (&'static str, String, Option<String>) {
    let cause = problem.source.source().map(ToString::to_string);
    (problem.source.class(), problem.source.to_string(), cause)
}

fn is_same_definition(a: &HookDefinition, b: &HookDefinition) -> bool {
    a.version == b.version
        && a.hook == b.hook
        && a.stages == b.stages
        && is_same_when(&a.when, &b.when)
}

fn is_same_when(a: &HookConditions, b: &HookConditions) -> bool {
    let annotations = |when: &HookConditions| -> Vec<(String, String)> {
        let pairs = when.annotations.iter();
        pairs.map(|p| (p.key.as_str().to_owned(), p.value.as_str().to_owned())).collect()
    };
    a.combine == b.combine
        && a.always == b.always
        && a.has_bind_mounts == b.has_bind_mounts
        && annotations(a) == annotations(b)
        && a.commands.iter().map(|p| p.as_str()).eq(b.commands.iter().map(|p| p.as_str()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::follow::load_changed;
    use super::*;
    use crate::hooks::load::load_after;
    use crate::hooks::{LoadOptions, PathCheck, consumer::BadFilePolicy};

    const GOOD: &str = r#"{"version":"1.0.0","hook":{"path":"/bin/true"},"when":{"always":true},"stages":["poststop"]}"#;

    /// Two directories of increasing precedence, loaded again and again.
    struct ReloadedDirs {
        root: tempfile::TempDir,
        options: LoadOptions,
        loaded: LoadedHooks,
    }

    impl ReloadedDirs {
        fn new() -> Self {
            let root = tempfile::tempdir().unwrap();
            let dirs = vec![root.path().join("low"), root.path().join("high")];
            let options = LoadOptions {
                dirs,
                path_check: PathCheck::Skip,
                bad_files: BadFilePolicy::Skipped,
                ..Default::default()
            };
            for dir in &options.dirs {
                fs::create_dir(dir).unwrap();
            }
            ReloadedDirs { root, options, loaded: LoadedHooks::default() }
        }

        fn write(&self, path: &str, text: &str) {
            fs::write(self.root.path().join(path), text).unwrap();
        }

        /// Loads, and returns the changes as text.
        fn changes(&mut self) -> String {
            let new = load_after(&self.loaded, &self.options);
            let changes = diff(&self.loaded, &new);
            self.loaded = new;
            let show = |change: &FileChange| {
                let path = change.path.strip_prefix(self.root.path()).unwrap().display();
                match &change.kind {
                    ChangeKind::Broken { in_force } => format!("broken({in_force}) {path}"),
                    kind => format!("{} {path}", kind.name()),
                }
            };
            changes.iter().map(show).collect::<Vec<_>>().join(", ")
        }
    }

    #[test]
    fn files_are_added_changed_and_removed() {
        let mut dirs = ReloadedDirs::new();
        dirs.write("low/a.json", GOOD);
        dirs.write("low/not-a-hook.txt", GOOD);
        assert_eq!(dirs.changes(), "added low/a.json");
        assert_eq!(dirs.changes(), "");
        dirs.write("low/a.json", &GOOD.replace("poststop", "poststart"));
        assert_eq!(dirs.changes(), "changed low/a.json");
        fs::remove_file(dirs.root.path().join("low/a.json")).unwrap();
        assert_eq!(dirs.changes(), "removed low/a.json");
    }

    #[test]
    fn reformatting_is_no_change() {
        let mut dirs = ReloadedDirs::new();
        dirs.write("low/a.json", GOOD);
        dirs.changes();
        dirs.write("low/a.json", &GOOD.replace(',', ",\n  "));
        assert_eq!(dirs.changes(), "");
    }

    #[test]
    fn every_part_of_a_definition_counts() {
        let full = r#"{"version":"1.0.0","hook":{"path":"/x","args":["x"],"env":["A=1"],"timeout":3},
            "when":{"always":true,"hasBindMounts":true,"annotations":{"k":"v"},"commands":["c"]},"stages":["poststop"]}"#;
        let mut dirs = ReloadedDirs::new();
        for (from, to) in [
            ("/x", "/y"),
            (r#"["x"]"#, r#"["y"]"#),
            ("A=1", "A=2"),
            (":3", ":4"),
            (r#""always":true"#, r#""always":false"#),
            (r#"Mounts":true"#, r#"Mounts":false"#),
            (r#""k""#, r#""l""#),
            (r#""v""#, r#""w""#),
            (r#"["c"]"#, r#"["d"]"#),
            ("poststop", "poststart"),
        ] {
            dirs.write("low/a.json", full);
            dirs.changes();
            dirs.write("low/a.json", &full.replace(from, to));
            assert_eq!(dirs.changes(), "changed low/a.json", "{from} to {to}");
        }
    }

    #[test]
    fn masking_and_unmasking_are_reported() {
        let mut dirs = ReloadedDirs::new();
        dirs.write("low/a.json", GOOD);
        dirs.changes();
        dirs.write("high/a.json", GOOD);
        assert_eq!(dirs.changes(), "added high/a.json, masked low/a.json");
        fs::remove_file(dirs.root.path().join("high/a.json")).unwrap();
        assert_eq!(dirs.changes(), "removed high/a.json, restored low/a.json");
    }

    #[test]
    fn broken_file_stays_in_force_and_keeps_masking() {
        let mut dirs = ReloadedDirs::new();
        dirs.write("low/a.json", GOOD);
        dirs.write("high/a.json", GOOD);
        dirs.changes();
        dirs.write("high/a.json", "");
        assert_eq!(dirs.changes(), "broken(true) high/a.json");
        assert_eq!(dirs.loaded.hooks.len(), 1);
        // The previous definition survives any number of loads, and another mistake is reported too.
        assert_eq!(dirs.changes(), "");
        dirs.write("high/a.json", "{}");
        assert_eq!(dirs.changes(), "broken(true) high/a.json");
        assert!(dirs.loaded.hooks.iter().all(|file| file.path.ends_with("high/a.json")));
        dirs.write("high/a.json", GOOD);
        assert_eq!(dirs.changes(), "restored high/a.json");
    }

    #[test]
    fn broken_file_is_dropped_unless_the_consumer_skips_bad_files() {
        for bad_files in [BadFilePolicy::NoContainers, BadFilePolicy::NoHooks] {
            let mut dirs = ReloadedDirs::new();
            dirs.options.bad_files = bad_files;
            dirs.write("low/a.json", GOOD);
            dirs.write("high/a.json", GOOD);
            dirs.changes();
            dirs.write("high/a.json", "{");
            assert_eq!(dirs.changes(), "broken(false) high/a.json, restored low/a.json");
            dirs.write("low/a.json", "{");
            assert_eq!(dirs.changes(), "broken(false) low/a.json");
            assert!(dirs.loaded.hooks.is_empty());
            dirs.write("high/a.json", GOOD);
            assert_eq!(dirs.changes(), "restored high/a.json");
        }
    }

    #[test]
    fn file_that_was_never_valid_masks_nothing() {
        let mut dirs = ReloadedDirs::new();
        dirs.write("low/a.json", GOOD);
        dirs.changes();
        dirs.write("high/a.json", "{");
        assert_eq!(dirs.changes(), "broken(false) high/a.json");
        assert!(dirs.loaded.hooks.iter().all(|file| file.path.ends_with("low/a.json")));
    }

    #[test]
    fn broken_masked_file_is_in_force_when_uncovered() {
        let mut dirs = ReloadedDirs::new();
        dirs.write("low/a.json", GOOD);
        dirs.write("high/a.json", GOOD);
        dirs.changes();
        dirs.write("low/a.json", "{");
        assert_eq!(dirs.changes(), "broken(false) low/a.json");
        fs::remove_file(dirs.root.path().join("high/a.json")).unwrap();
        assert_eq!(dirs.changes(), "removed high/a.json, broken(true) low/a.json");
    }

    #[test]
    fn hook_without_its_program_is_not_in_force() {
        let mut dirs = ReloadedDirs::new();
        dirs.options.path_check = PathCheck::Exists;
        let program = dirs.root.path().join("program");
        fs::write(&program, "").unwrap();
        dirs.write("low/a.json", &GOOD.replace("/bin/true", program.to_str().unwrap()));
        assert_eq!(dirs.changes(), "added low/a.json");
        fs::remove_file(&program).unwrap();
        assert_eq!(dirs.changes(), "broken(false) low/a.json");
        fs::write(&program, "").unwrap();
        assert_eq!(dirs.changes(), "restored low/a.json");
    }

    #[test]
    fn broken_file_does_not_keep_a_hook_whose_program_is_gone() {
        let mut dirs = ReloadedDirs::new();
        dirs.options.path_check = PathCheck::Exists;
        let program = dirs.root.path().join("program");
        fs::write(&program, "").unwrap();
        dirs.write("low/a.json", &GOOD.replace("/bin/true", program.to_str().unwrap()));
        dirs.changes();
        dirs.write("low/a.json", "{");
        assert_eq!(dirs.changes(), "broken(true) low/a.json");
        fs::remove_file(&program).unwrap();
        assert_eq!(dirs.changes(), "broken(false) low/a.json");
        assert!(dirs.loaded.hooks.is_empty());
    }

    #[test]
    fn directory_replaced_by_a_file_removes_its_hooks() {
        let mut dirs = ReloadedDirs::new();
        dirs.write("low/a.json", GOOD);
        dirs.changes();
        fs::remove_dir_all(dirs.root.path().join("low")).unwrap();
        dirs.write("low", "");
        assert_eq!(dirs.changes(), "broken(false) low, removed low/a.json");
        fs::remove_file(dirs.root.path().join("low")).unwrap();
        fs::create_dir(dirs.root.path().join("low")).unwrap();
        assert_eq!(dirs.changes(), "readable low");
    }

    #[test]
    fn directory_replaced_by_a_deleted_file_is_removed() {
        let mut dirs = ReloadedDirs::new();
        fs::remove_dir(dirs.root.path().join("low")).unwrap();
        dirs.write("low", "");
        assert_eq!(dirs.changes(), "broken(false) low");
        fs::remove_file(dirs.root.path().join("low")).unwrap();
        assert_eq!(dirs.changes(), "removed low");
    }

    #[test]
    fn only_files_with_a_changed_name_are_read_again() {
        let mut dirs = ReloadedDirs::new();
        for name in ["a", "b"] {
            dirs.write(&format!("low/{name}.json"), GOOD);
        }
        dirs.changes();
        for name in ["a", "b"] {
            dirs.write(&format!("low/{name}.json"), &GOOD.replace("poststop", "poststart"));
        }
        let new = load_changed(&dirs.loaded, &dirs.options, |name| name == "b.json");
        let changes = diff(&dirs.loaded, &new);
        assert_eq!(changes.len(), 1, "{changes:?}");
        assert!(changes[0].path.ends_with("low/b.json"));
    }

    /// Returns the result of a load as text, with the stages of each definition.
    fn description(loaded: &LoadedHooks) -> String {
        let problem = |problem: &LoadProblem| {
            (problem.path.clone(), text(problem), problem.location.clone(), problem.fatal)
        };
        let file = |file: &HookFile| (file.path.clone(), format!("{:?}", file.definition.stages));
        let hooks: Vec<_> = loaded.hooks.iter().map(file).collect();
        let masked: Vec<_> = loaded.masked.iter().map(file).collect();
        let problems: Vec<_> = loaded.problems.iter().map(problem).collect();
        format!(
            "{hooks:?}\n{masked:?}\n{problems:?}\n{:?}\n{:?}",
            loaded.entries, loaded.missing_dirs
        )
    }

    /// A series of numbers, the same for each seed.
    struct NumberSeries(u64);

    impl NumberSeries {
        fn next_below(&mut self, limit: usize) -> usize {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            usize::try_from(self.0 >> 33).unwrap() % limit
        }
    }

    #[test]
    fn loading_changed_files_finds_the_same_as_loading_all() {
        let consumers =
            [BadFilePolicy::NoContainers, BadFilePolicy::NoHooks, BadFilePolicy::Skipped];
        for (seed, bad_files) in (0..24).zip(consumers.into_iter().cycle()) {
            let mut numbers = NumberSeries(seed);
            let mut dirs = ReloadedDirs::new();
            dirs.options.bad_files = bad_files;
            dirs.options.path_check = PathCheck::Exists;
            let program = dirs.root.path().join("program");
            fs::write(&program, "").unwrap();
            let other = GOOD.replace("/bin/true", program.to_str().unwrap());
            let poststart = GOOD.replace("poststop", "poststart");
            let missing = GOOD.replace("/bin/true", "/nonexistent");
            let texts = [GOOD, &poststart, &other, &missing, "{", "{}"];
            for step in 0..160 {
                let mut changed = Vec::new();
                for _ in 0..=numbers.next_below(2) {
                    let dir = ["low", "high"][numbers.next_below(2)];
                    let name =
                        ["a.json", "B.json", "c.json", "d.json", "README"][numbers.next_below(5)];
                    let path = dirs.root.path().join(dir).join(name);
                    match numbers.next_below(8) {
                        0 | 1 => drop(fs::remove_file(&path)),
                        2 => {
                            let to = path.with_file_name("e.json");
                            let _ = fs::rename(&path, &to);
                            changed.push("e.json");
                        }
                        _ => fs::write(&path, texts[numbers.next_below(6)]).unwrap(),
                    }
                    changed.push(name);
                }
                match numbers.next_below(9) {
                    0 => drop(fs::remove_file(&program)),
                    1 => fs::write(&program, "").unwrap(),
                    _ => {}
                }
                let is_changed = |name: &OsStr| changed.iter().any(|changed| name == *changed);
                let partial = load_changed(&dirs.loaded, &dirs.options, is_changed);
                let full = load_after(&dirs.loaded, &dirs.options);
                assert_eq!(description(&partial), description(&full), "seed {seed}, step {step}");
                dirs.loaded = partial;
            }
        }
    }
}
