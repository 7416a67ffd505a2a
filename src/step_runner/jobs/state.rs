//! Where a server keeps the files of its jobs, and what it finds there of one that was killed.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::super::engine::kill_recorded;
use super::super::socket::{SocketError, private_directory};
use crate::sys::fs::{PathContext as _, PathError, read_if_there};
use crate::sys::lock::FileLock;
use crate::sys::removal::remove_tree;
use crate::sys::trash::{SetAside, Trash};

/// How much of an id is seen in the name of a directory.
const NAME_CHARS: usize = 40;

/// Where the kernel says which boot this is.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Why there is no place for the files of jobs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// The directory cannot be made private.
    #[error(transparent)]
    Directory(#[from] SocketError),
    /// Another server keeps its jobs there.
    #[error("another server keeps its jobs in {}", path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
    },
    /// A file cannot be used.
    #[error(transparent)]
    Path(#[from] PathError),
}

/// The directory of a server. What jobs had there is removed when this is dropped.
#[derive(Debug)]
pub struct State {
    root: PathBuf,
    made: AtomicU64,
    /// How many jobs of a server that was killed were cleaned up.
    leftovers: usize,
    trash: Trash,
    _lock: FileLock,
}

/// The files of one job, in a directory of its own.
#[derive(Debug)]
pub(super) struct JobDir {
    root: PathBuf,
}

impl State {
    /// Takes a directory, which is made if there is none. Processes and files of jobs whose server
    /// was killed are ended and removed.
    pub fn open(root: &Path) -> Result<Self, StateError> {
        private_directory(root)?;
        // Paths go to jobs, which run elsewhere.
        let root = fs::canonicalize(root).at("resolve", root)?;
        let Some(lock) = FileLock::try_exclusive(&root.join("lock"))? else {
            return Err(StateError::InUse { path: root });
        };
        let trash = Trash::of(&root);
        // What an earlier server could not remove.
        trash.empty()?;
        let leftovers = clean(&root, &trash)?;
        let jobs = root.join("jobs");
        DirBuilder::new().mode(0o700).create(&jobs).at("make", &jobs)?;
        let boot = root.join("boot");
        fs::write(&boot, boot_id()).at("write", &boot)?;
        Ok(State { root, made: AtomicU64::new(0), leftovers, trash, _lock: lock })
    }

    /// Returns how many jobs of a server that was killed were cleaned up.
    pub fn leftovers(&self) -> usize {
        self.leftovers
    }

    /// Returns what could not be removed of what others left, and is out of the way.
    pub fn set_aside(&self) -> Vec<SetAside> {
        self.trash.take_set_aside()
    }

    /// Makes the directory of a job.
    pub(super) fn make(&self, id: &str) -> Result<JobDir, PathError> {
        // The number alone is what tells them apart; the rest is for people.
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let plain: String =
            id.chars().take(NAME_CHARS).map(|c| if is_plain(c) { c } else { '_' }).collect();
        let dir = JobDir { root: self.root.join("jobs").join(format!("{number}-{plain}")) };
        for path in [&dir.root, &dir.scratch(), &dir.variables()] {
            DirBuilder::new().mode(0o700).create(path).at("make", path)?;
        }
        Ok(dir)
    }
}

impl Drop for State {
    fn drop(&mut self) {
        // The next server removes what is left.
        let _ = self.trash.remove(&self.root.join("jobs"));
        let _ = fs::remove_file(self.root.join("boot"));
    }
}

impl JobDir {
    /// Returns the directory of the engine.
    pub(super) fn scratch(&self) -> PathBuf {
        self.root.join("scratch")
    }

    /// Returns the directory of variables that are files.
    pub(super) fn variables(&self) -> PathBuf {
        self.root.join("variables")
    }

    /// Returns the path of the log.
    pub(super) fn log(&self) -> PathBuf {
        self.root.join("log")
    }

    /// Returns the path of the results.
    pub(super) fn results(&self) -> PathBuf {
        self.root.join("results")
    }
}

impl Drop for JobDir {
    fn drop(&mut self) {
        // What is left goes with the server.
        let _ = remove_tree(&self.root);
    }
}

/// Ends and removes what jobs left whose server was killed.
fn clean(root: &Path, trash: &Trash) -> Result<usize, PathError> {
    let jobs = root.join("jobs");
    let entries = match fs::read_dir(&jobs) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(PathError::new("list", &jobs, error)),
    };
    // After a boot, numbers of processes mean others.
    let same_boot = read_if_there(&root.join("boot"), 64).ok().flatten();
    let same_boot = same_boot.is_some_and(|boot| !boot.is_empty() && boot == boot_id());
    let mut found = 0;
    for entry in entries {
        let path = entry.at("list", &jobs)?.path();
        if same_boot {
            kill_recorded(&path.join("scratch"));
        }
        found += 1;
    }
    trash.remove(&jobs)?;
    Ok(found)
}

/// Returns what no other boot has; nothing if the kernel does not say.
fn boot_id() -> Vec<u8> {
    fs::read(BOOT_ID).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::process::CommandExt as _;
    use std::process::{Child, Command};

    use super::*;
    use crate::sys::identity::Identity;

    #[test]
    fn directories_of_jobs_are_private_and_beneath_whatever_the_id_is() {
        let dir = tempfile::tempdir().unwrap();
        let state = State::open(&dir.path().join("state")).unwrap();
        let long = "x".repeat(5000);
        for id in ["1", "1", "../x", "a/b", "/etc", "..", "\0", "ü", &long] {
            let job = state.make(id).unwrap();
            assert_eq!(job.root.parent().unwrap(), state.root.join("jobs"));
            assert_eq!(job.root.metadata().unwrap().permissions().mode() & 0o777, 0o700);
            std::mem::forget(job);
        }
        assert_eq!(fs::read_dir(state.root.join("jobs")).unwrap().count(), 9);
        let root = state.root.clone();
        drop(state);
        assert!(!root.join("jobs").exists());
    }

    #[test]
    fn one_server_alone_has_a_directory() {
        let dir = tempfile::tempdir().unwrap();
        let _state = State::open(dir.path()).unwrap();
        assert!(matches!(State::open(dir.path()), Err(StateError::InUse { .. })));
    }

    /// Leaves what a killed server would: a job whose process lives.
    fn left(root: &Path, boot: &[u8]) -> Child {
        let mut sleep = Command::new("sleep");
        let child = sleep.arg("100").process_group(0).spawn().unwrap();
        let scratch = root.join("jobs/0-x/scratch");
        fs::create_dir_all(&scratch).unwrap();
        let Identity { pid, start } = Identity::of(child.id()).unwrap();
        fs::write(scratch.join("groups"), format!("{pid} {start}\n")).unwrap();
        fs::write(root.join("boot"), boot).unwrap();
        child
    }

    #[test]
    fn what_a_killed_server_left_is_ended_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let mut child = left(dir.path(), &boot_id());
        let state = State::open(dir.path()).unwrap();
        assert_eq!(state.leftovers(), 1);
        assert!(!child.wait().unwrap().success());
        assert_eq!(fs::read_dir(dir.path().join("jobs")).unwrap().count(), 0);
    }

    #[test]
    fn after_a_boot_processes_are_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let mut child = left(dir.path(), b"another");
        State::open(dir.path()).unwrap();
        assert!(Identity::of(child.id()).unwrap().is_running());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
