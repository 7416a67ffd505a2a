//! A temporary tree of hook directories with a monitor on it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use oci_hooks::hooks::monitor::{Change, ChangeKind, Monitor, MonitorOptions, Wake};
use oci_hooks::hooks::{LoadOptions, Loaded};
use tempfile::TempDir;

/// Longer than anything takes on a busy machine.
pub(crate) const LONG: Duration = Duration::from_secs(180);

/// A hook that always applies, with a program that exists.
pub(crate) fn hook() -> String {
    hook_with("/bin/true")
}

/// The same with another program.
pub(crate) fn hook_with(program: impl AsRef<Path>) -> String {
    let program = program.as_ref().display();
    format!(
        r#"{{"version":"1.0.0","hook":{{"path":"{program}"}},"when":{{"always":true}},"stages":["poststop"]}}"#
    )
}

/// A temporary tree.
pub(crate) struct Tree(TempDir);

impl Tree {
    pub(crate) fn new() -> Self {
        Tree(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    pub(crate) fn mkdir(&self, path: &str) {
        fs::create_dir_all(self.path(path)).unwrap();
    }

    pub(crate) fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        fs::write(self.path(path), text).unwrap();
    }

    /// Writes a file in one step, for monitors in other processes.
    pub(crate) fn put(&self, path: &str, text: impl AsRef<[u8]>) {
        self.write("new-file", text);
        self.rename("new-file", path);
    }

    pub(crate) fn rename(&self, from: &str, to: &str) {
        fs::rename(self.path(from), self.path(to)).unwrap();
    }

    pub(crate) fn remove(&self, path: &str) {
        let path = self.path(path);
        if path.is_dir() && !path.is_symlink() {
            fs::remove_dir_all(path).unwrap();
        } else {
            fs::remove_file(path).unwrap();
        }
    }

    /// Makes a link; a relative target is relative to the link's directory.
    pub(crate) fn link(&self, target: &str, link: &str) {
        std::os::unix::fs::symlink(target, self.path(link)).unwrap();
    }

    /// Points a link elsewhere in one step, as careful people do.
    pub(crate) fn relink(&self, target: &str, link: &str) {
        self.link(target, "new-link");
        self.rename("new-link", link);
    }

    pub(crate) fn options(&self, dirs: &[&str]) -> MonitorOptions {
        let dirs = dirs.iter().map(|dir| self.path(dir)).collect();
        let mut load = LoadOptions::default();
        load.dirs = dirs;
        MonitorOptions { load, coalesce: Duration::from_millis(10), ..Default::default() }
    }

    pub(crate) fn monitor(&self, dirs: &[&str]) -> Followed<'_> {
        Followed { tree: self, monitor: Monitor::new(self.options(dirs)).unwrap() }
    }

    /// Shows changes as text, with paths in the tree.
    pub(crate) fn show(&self, changes: &[Change]) -> String {
        let show = |change: &Change| {
            let path = change.path.strip_prefix(self.0.path()).unwrap().display();
            let kept = matches!(change.kind, ChangeKind::Broken { in_force: true });
            format!("{} {path}{}", change.kind.name(), if kept { " (kept)" } else { "" })
        };
        changes.iter().map(show).collect::<Vec<_>>().join(", ")
    }
}

/// A monitor on a tree. As each of its calls takes note of all that happened before it, what a test
/// does between two of them comes in one batch.
pub(crate) struct Followed<'t> {
    pub(crate) tree: &'t Tree,
    pub(crate) monitor: Monitor,
}

impl Followed<'_> {
    /// Waits for the next changes.
    pub(crate) fn next(&mut self) -> String {
        match self.monitor.wait(Some(Instant::now() + LONG)).unwrap() {
            Wake::Changed(changes) => self.tree.show(&changes),
            wake => panic!("nothing changed: {wake:?}"),
        }
    }

    /// Asserts that what was done so far is no event that matters.
    pub(crate) fn assert_undisturbed(&mut self) {
        assert_eq!(self.monitor.poll().unwrap(), []);
        assert_eq!(self.monitor.due(), None);
    }

    /// Asserts that what was done so far makes the monitor load.
    pub(crate) fn assert_disturbed(&mut self) {
        assert_eq!(self.monitor.poll().unwrap(), []);
        assert!(self.monitor.due().is_some());
    }

    /// Asserts that what was done so far is no change, and that the monitor still works.
    pub(crate) fn assert_quiet(&mut self, dir: &str) {
        let marker = format!("{dir}/marker.json");
        self.tree.write(&marker, hook());
        assert_eq!(self.next(), format!("added {marker}"));
        self.tree.remove(&marker);
        assert_eq!(self.next(), format!("removed {marker}"));
    }

    /// Returns the hooks in force, as paths in the tree.
    pub(crate) fn in_force(&self) -> String {
        in_force(self.tree, &self.monitor.snapshot())
    }
}

pub(crate) fn in_force(tree: &Tree, loaded: &Loaded) -> String {
    let show = |path: &Path| path.strip_prefix(tree.path("")).unwrap().display().to_string();
    loaded.hooks.iter().map(|file| show(&file.path)).collect::<Vec<_>>().join(", ")
}
