//! What is different between two loads.

use std::collections::{BTreeMap, HashMap};
use std::error::Error;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::hooks::{Definition, EntryState, HookFile, Loaded, Problem, When};

/// What became of one hook file, or of a hook directory that cannot be listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub path: PathBuf,
    pub kind: ChangeKind,
}

/// What became of a hook file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChangeKind {
    /// It was not there, and is in force now.
    Added,
    /// It is not there any more.
    Removed,
    /// It is in force with another definition. Reformatting a file does not change it.
    Changed,
    /// A file of the same name in a later directory hides it.
    Masked { by: PathBuf },
    /// It cannot be used: one of the problems is about it.
    Broken {
        /// Whether what it said before is in force.
        in_force: bool,
    },
    /// It was masked or broken, and is in force now; a directory can be listed again.
    Restored,
}

impl ChangeKind {
    /// Returns a stable name, for programs.
    pub fn name(&self) -> &'static str {
        match self {
            ChangeKind::Added => "added",
            ChangeKind::Removed => "removed",
            ChangeKind::Changed => "changed",
            ChangeKind::Masked { .. } => "masked",
            ChangeKind::Broken { .. } => "broken",
            ChangeKind::Restored => "restored",
        }
    }
}

/// What a load says about one path.
enum Status<'a> {
    Active(&'a HookFile),
    Masked { by: &'a Path },
    Broken { problem: Option<&'a Problem>, in_force: bool },
}

/// Returns what is different between two loads of the same directories, sorted by path.
///
/// ```
/// use oci_hooks::hooks::{LoadOptions, Loaded, load, monitor};
///
/// let loaded = load(&LoadOptions::default());
/// assert!(monitor::diff(&Loaded::default(), &loaded).is_empty());
/// ```
pub fn diff(old: &Loaded, new: &Loaded) -> Vec<Change> {
    let (before, after) = (statuses(old), statuses(new));
    let mut changes = Vec::new();
    for (&path, status) in &after {
        let kind = match (before.get(path), status) {
            (None, Status::Active(_)) => ChangeKind::Added,
            (Some(Status::Active(old)), Status::Active(new)) => {
                if is_same_definition(&old.definition, &new.definition) {
                    continue;
                }
                ChangeKind::Changed
            }
            (Some(_), Status::Active(_)) => ChangeKind::Restored,
            (Some(Status::Masked { by: old }), Status::Masked { by: new }) if old == new => {
                continue;
            }
            (_, Status::Masked { by }) => ChangeKind::Masked { by: by.to_path_buf() },
            (
                Some(Status::Broken { problem: old, in_force: was_in_force }),
                Status::Broken { problem: new, in_force },
            ) if in_force == was_in_force && old.map(text) == new.map(text) => continue,
            (_, &Status::Broken { in_force, .. }) => ChangeKind::Broken { in_force },
        };
        changes.push(Change { path: path.into(), kind });
    }
    for (&path, status) in before.iter().filter(|(path, _)| !after.contains_key(*path)) {
        // Only directories have problems without being entries.
        let is_dir = matches!(status, Status::Broken { .. })
            && !old.entries.iter().any(|entry| entry.path == path);
        let is_back = is_dir && !new.missing_dirs.iter().any(|dir| dir == path);
        let kind = if is_back { ChangeKind::Restored } else { ChangeKind::Removed };
        changes.push(Change { path: path.into(), kind });
    }
    changes.sort_by(|a, b| a.path.as_os_str().cmp(b.path.as_os_str()));
    changes
}

/// Keyed by paths as they are written, which compare faster than paths do.
fn statuses(loaded: &Loaded) -> BTreeMap<&OsStr, Status<'_>> {
    let active: HashMap<&OsStr, &HookFile> =
        loaded.hooks.iter().map(|file| (file.path.as_os_str(), file)).collect();
    let mut statuses: BTreeMap<&OsStr, Status<'_>> = loaded
        .problems
        .iter()
        .map(|problem| {
            let path = problem.path.as_os_str();
            (path, Status::Broken { problem: Some(problem), in_force: active.contains_key(path) })
        })
        .collect();
    for entry in &loaded.entries {
        let path = entry.path.as_os_str();
        let status = match &entry.state {
            EntryState::Active => match active.get(path) {
                Some(file) => Status::Active(file),
                None => continue,
            },
            EntryState::Masked { by } => Status::Masked { by },
            EntryState::Broken | EntryState::Vanished => {
                let in_force = active.contains_key(path);
                statuses.entry(path).or_insert(Status::Broken { problem: None, in_force });
                continue;
            }
            EntryState::NotJson => continue,
        };
        statuses.insert(path, status);
    }
    statuses
}

/// Returns what a problem says, without positions that move with every edit elsewhere in the file.
fn text(problem: &Problem) -> (&'static str, String, Option<String>) {
    let cause = problem.source.source().map(ToString::to_string);
    (problem.source.class(), problem.source.to_string(), cause)
}

fn is_same_definition(a: &Definition, b: &Definition) -> bool {
    a.version == b.version
        && a.hook == b.hook
        && a.stages == b.stages
        && is_same_when(&a.when, &b.when)
}

fn is_same_when(a: &When, b: &When) -> bool {
    let annotations = |when: &When| -> Vec<(String, String)> {
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

    use super::*;
    use crate::hooks::load::load_after;
    use crate::hooks::{LoadOptions, PathCheck};

    const GOOD: &str = r#"{"version":"1.0.0","hook":{"path":"/bin/true"},"when":{"always":true},"stages":["poststop"]}"#;

    /// Two directories of increasing precedence, loaded again and again.
    struct Dirs {
        root: tempfile::TempDir,
        options: LoadOptions,
        loaded: Loaded,
    }

    impl Dirs {
        fn new() -> Self {
            let root = tempfile::tempdir().unwrap();
            let dirs = vec![root.path().join("low"), root.path().join("high")];
            let options = LoadOptions { dirs, path_check: PathCheck::Skip, ..Default::default() };
            for dir in &options.dirs {
                fs::create_dir(dir).unwrap();
            }
            Dirs { root, options, loaded: Loaded::default() }
        }

        fn write(&self, path: &str, text: &str) {
            fs::write(self.root.path().join(path), text).unwrap();
        }

        /// Loads, and returns the changes as text.
        fn changes(&mut self) -> String {
            let new = load_after(&self.loaded, &self.options);
            let changes = diff(&self.loaded, &new);
            self.loaded = new;
            let show = |change: &Change| {
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
    fn files_come_change_and_go() {
        let mut dirs = Dirs::new();
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
        let mut dirs = Dirs::new();
        dirs.write("low/a.json", GOOD);
        dirs.changes();
        dirs.write("low/a.json", &GOOD.replace(',', ",\n  "));
        assert_eq!(dirs.changes(), "");
    }

    #[test]
    fn every_part_of_a_definition_counts() {
        let full = r#"{"version":"1.0.0","hook":{"path":"/x","args":["x"],"env":["A=1"],"timeout":3},
            "when":{"always":true,"hasBindMounts":true,"annotations":{"k":"v"},"commands":["c"]},"stages":["poststop"]}"#;
        let mut dirs = Dirs::new();
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
    fn masking_and_its_end_are_told() {
        let mut dirs = Dirs::new();
        dirs.write("low/a.json", GOOD);
        dirs.changes();
        dirs.write("high/a.json", GOOD);
        assert_eq!(dirs.changes(), "added high/a.json, masked low/a.json");
        fs::remove_file(dirs.root.path().join("high/a.json")).unwrap();
        assert_eq!(dirs.changes(), "removed high/a.json, restored low/a.json");
    }

    #[test]
    fn file_that_was_good_stays_in_force_when_broken_and_masks_on() {
        let mut dirs = Dirs::new();
        dirs.write("low/a.json", GOOD);
        dirs.write("high/a.json", GOOD);
        dirs.changes();
        dirs.write("high/a.json", "");
        assert_eq!(dirs.changes(), "broken(true) high/a.json");
        assert_eq!(dirs.loaded.hooks.len(), 1);
        // Still known after any number of loads, and another mistake is told too.
        assert_eq!(dirs.changes(), "");
        dirs.write("high/a.json", "{}");
        assert_eq!(dirs.changes(), "broken(true) high/a.json");
        assert!(dirs.loaded.hooks.iter().all(|file| file.path.ends_with("high/a.json")));
        dirs.write("high/a.json", GOOD);
        assert_eq!(dirs.changes(), "restored high/a.json");
    }

    #[test]
    fn file_that_was_never_good_masks_nothing() {
        let mut dirs = Dirs::new();
        dirs.write("low/a.json", GOOD);
        dirs.changes();
        dirs.write("high/a.json", "{");
        assert_eq!(dirs.changes(), "broken(false) high/a.json");
        assert!(dirs.loaded.hooks.iter().all(|file| file.path.ends_with("low/a.json")));
    }

    #[test]
    fn masked_file_that_broke_is_in_force_when_it_is_uncovered() {
        let mut dirs = Dirs::new();
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
        let mut dirs = Dirs::new();
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
        let mut dirs = Dirs::new();
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
    fn directory_that_becomes_a_file_takes_its_hooks_along() {
        let mut dirs = Dirs::new();
        dirs.write("low/a.json", GOOD);
        dirs.changes();
        fs::remove_dir_all(dirs.root.path().join("low")).unwrap();
        dirs.write("low", "");
        assert_eq!(dirs.changes(), "broken(false) low, removed low/a.json");
        fs::remove_file(dirs.root.path().join("low")).unwrap();
        fs::create_dir(dirs.root.path().join("low")).unwrap();
        assert_eq!(dirs.changes(), "restored low");
    }

    #[test]
    fn directory_that_becomes_a_file_and_goes_is_removed() {
        let mut dirs = Dirs::new();
        fs::remove_dir(dirs.root.path().join("low")).unwrap();
        dirs.write("low", "");
        assert_eq!(dirs.changes(), "broken(false) low");
        fs::remove_file(dirs.root.path().join("low")).unwrap();
        assert_eq!(dirs.changes(), "removed low");
    }
}
