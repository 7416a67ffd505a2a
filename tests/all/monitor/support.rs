//! A temporary tree of hook directories with a monitor.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use oci_hooks::hooks::consumer::NRI;
use oci_hooks::hooks::monitor::{ChangeKind, FileChange, Monitor, MonitorOptions, WakeReason};
use oci_hooks::hooks::{LoadOptions, LoadedHooks};
use tempfile::TempDir;

/// Exceeds any delay on a busy machine.
pub(crate) const LONG: Duration = Duration::from_secs(600);

/// Returns a hook that always applies, with an existing program.
pub(crate) fn hook() -> String {
    hook_with("/bin/true")
}

/// Returns such a hook with another program.
pub(crate) fn hook_with(program: impl AsRef<Path>) -> String {
    let program = program.as_ref().display();
    format!(
        r#"{{"version":"1.0.0","hook":{{"path":"{program}"}},"when":{{"always":true}},"stages":["poststop"]}}"#
    )
}

/// A temporary tree.
pub(crate) struct HookTree(TempDir);

impl HookTree {
    pub(crate) fn new() -> Self {
        HookTree(tempfile::tempdir().unwrap())
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

    /// Writes a file atomically, for monitors in other processes.
    pub(crate) fn put_file(&self, path: &str, text: impl AsRef<[u8]>) {
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

    /// Creates a symlink. A relative target is relative to the link's directory.
    pub(crate) fn link(&self, target: &str, link: &str) {
        std::os::unix::fs::symlink(target, self.path(link)).unwrap();
    }

    /// Replaces a symlink atomically.
    pub(crate) fn relink(&self, target: &str, link: &str) {
        self.link(target, "new-link");
        self.rename("new-link", link);
    }

    /// Returns options that keep broken hooks in force, as oci-hooks-nri does.
    pub(crate) fn options(&self, dirs: &[&str]) -> MonitorOptions {
        let dirs = dirs.iter().map(|dir| self.path(dir)).collect();
        let mut load = LoadOptions::default();
        load.dirs = dirs;
        load.bad_files = NRI.bad_files;
        MonitorOptions { load, coalesce: Duration::from_millis(10), ..Default::default() }
    }

    pub(crate) fn monitor(&self, dirs: &[&str]) -> FollowedTree<'_> {
        FollowedTree { tree: self, monitor: Monitor::new(self.options(dirs)).unwrap() }
    }

    /// Formats changes as text, with paths relative to the tree.
    pub(crate) fn show(&self, changes: &[FileChange]) -> String {
        let show = |change: &FileChange| {
            let path = change.path.strip_prefix(self.0.path()).unwrap().display();
            let kept = matches!(change.kind, ChangeKind::Broken { in_force: true });
            format!("{} {path}{}", change.kind.name(), if kept { " (kept)" } else { "" })
        };
        changes.iter().map(show).collect::<Vec<_>>().join(", ")
    }
}

/// A monitor on a tree. Each of its calls processes all earlier events, so changes between two calls arrive
/// in one batch.
pub(crate) struct FollowedTree<'t> {
    pub(crate) tree: &'t HookTree,
    pub(crate) monitor: Monitor,
}

impl FollowedTree<'_> {
    /// Waits for the next changes.
    pub(crate) fn next(&mut self) -> String {
        match self.monitor.wait(Some(Instant::now() + LONG)).unwrap() {
            WakeReason::Changed(changes) => self.tree.show(&changes),
            wake => panic!("nothing changed: {wake:?}"),
        }
    }

    /// Asserts that the changes so far caused no relevant event.
    pub(crate) fn assert_undisturbed(&mut self) {
        assert_eq!(self.monitor.poll().unwrap(), []);
        assert_eq!(self.monitor.due_time(), None);
    }

    /// Asserts that the changes so far make the monitor reload.
    pub(crate) fn assert_disturbed(&mut self) {
        assert_eq!(self.monitor.poll().unwrap(), []);
        assert!(self.monitor.due_time().is_some());
    }

    /// Asserts that the changes so far are ignored, and that the monitor still works.
    pub(crate) fn assert_quiet(&mut self, dir: &str) {
        let marker = format!("{dir}/marker.json");
        self.tree.write(&marker, hook());
        assert_eq!(self.next(), format!("added {marker}"));
        self.tree.remove(&marker);
        assert_eq!(self.next(), format!("removed {marker}"));
    }

    /// Returns the hooks in force, with paths relative to the tree.
    pub(crate) fn hooks_in_force(&self) -> String {
        list_in_force(self.tree, &self.monitor.snapshot())
    }
}

pub(crate) fn list_in_force(tree: &HookTree, loaded: &LoadedHooks) -> String {
    let show = |path: &Path| path.strip_prefix(tree.path("")).unwrap().display().to_string();
    loaded.hooks.iter().map(|file| show(&file.path)).collect::<Vec<_>>().join(", ")
}
