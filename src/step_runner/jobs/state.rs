//! The state directory of a server: files of jobs, and cleanup after a crash.

use std::fs::{self, DirBuilder};
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::super::engine::kill_recorded;
use super::super::socket::{SocketError, private_directory};
use crate::sys::fs::{PathContext as _, PathError, create_without_waiting, read_if_there};
use crate::sys::lock::FileLock;
use crate::sys::removal::remove_tree;
use crate::sys::trash::{SetAside, Trash};

/// How many characters of a job id are part of a directory name.
const NAME_CHARS: usize = 40;

/// Unique id of this boot of the kernel.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// An error with the state directory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// The directory cannot be made private.
    #[error(transparent)]
    Directory(#[from] SocketError),
    /// Another server uses the directory.
    #[error("state directory {} is in use by another server", path.display())]
    InUse { path: PathBuf },
    /// A file cannot be used.
    #[error(transparent)]
    Path(#[from] PathError),
}

/// The state directory of a server. Files of jobs are removed on drop.
#[derive(Debug)]
pub struct StateDir {
    root: PathBuf,
    made: AtomicU64,
    /// Number of jobs of a crashed server that were cleaned up.
    leftovers: usize,
    trash: Trash,
    _lock: FileLock,
}

/// The directory of one job, removed on drop.
#[derive(Debug)]
pub struct JobDir {
    root: PathBuf,
}

impl StateDir {
    /// Opens or creates a state directory. Kills processes and removes files of jobs whose server
    /// crashed.
    pub fn open(root: &Path) -> Result<Self, StateError> {
        private_directory(root)?;
        // Absolute, as jobs have other working directories.
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
        // A job of this user may have put anything there.
        let _ = fs::remove_file(&boot);
        let file = create_without_waiting(&boot, 0o600);
        file.and_then(|mut file| file.write_all(&boot_id())).at("write", &boot)?;
        Ok(StateDir { root, made: AtomicU64::new(0), leftovers, trash, _lock: lock })
    }

    /// Returns the number of jobs of a crashed server that were cleaned up.
    pub fn leftovers(&self) -> usize {
        self.leftovers
    }

    /// Returns files of earlier jobs that could not be removed and were moved to the trash.
    pub fn set_aside(&self) -> Vec<SetAside> {
        self.trash.take_set_aside()
    }

    /// Creates the directory of a job.
    pub(super) fn make(&self, id: &str) -> Result<JobDir, PathError> {
        // The number alone makes it unique; the rest is for readability.
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

impl Drop for StateDir {
    fn drop(&mut self) {
        // The next server removes what is left.
        let _ = self.trash.remove(&self.root.join("jobs"));
        let _ = fs::remove_file(self.root.join("boot"));
    }
}

impl JobDir {
    /// Returns the scratch directory of the engine.
    pub fn scratch(&self) -> PathBuf {
        self.root.join("scratch")
    }

    /// Returns the directory of file variables.
    pub fn variables(&self) -> PathBuf {
        self.root.join("variables")
    }

    /// Returns the path of the log.
    pub fn log(&self) -> PathBuf {
        self.root.join("log")
    }

    /// Returns the path of the results.
    pub fn results(&self) -> PathBuf {
        self.root.join("results")
    }
}

impl Drop for JobDir {
    fn drop(&mut self) {
        // What is left is removed with the server's directory.
        let _ = remove_tree(&self.root);
    }
}

/// Kills processes and removes files of jobs whose server crashed.
fn clean(root: &Path, trash: &Trash) -> Result<usize, PathError> {
    let jobs = root.join("jobs");
    let entries = match fs::read_dir(&jobs) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(PathError::new("list", &jobs, error)),
    };
    // After a reboot, pids refer to other processes.
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

/// Returns the boot id; empty if the kernel does not provide it.
fn boot_id() -> Vec<u8> {
    fs::read(BOOT_ID).unwrap_or_default()
}

/// Directories that were created, the outermost first. On drop those that are empty are removed, unless
/// they are kept.
#[derive(Debug, Default)]
pub struct CreatedDirs {
    paths: Vec<PathBuf>,
}

impl CreatedDirs {
    /// Creates a directory and its missing parents. The error has the path at which it failed.
    fn make(path: &Path) -> Result<Self, (PathBuf, io::Error)> {
        let mut created = CreatedDirs::default();
        let mut missing = Vec::new();
        for path in path.ancestors() {
            match fs::metadata(path) {
                Ok(meta) if meta.is_dir() => break,
                Ok(_) => return Err((path.to_path_buf(), io::ErrorKind::NotADirectory.into())),
                Err(error) if error.kind() == io::ErrorKind::NotFound => missing.push(path),
                // A parent is not a directory: found further up.
                Err(error) if error.kind() == io::ErrorKind::NotADirectory => {}
                Err(error) => return Err((path.to_path_buf(), error)),
            }
        }
        for path in missing.into_iter().rev() {
            match DirBuilder::new().mode(0o700).create(path) {
                Ok(()) => created.paths.push(path.to_path_buf()),
                // Another job has created it.
                Err(_) if path.is_dir() => {}
                Err(error) => return Err((path.to_path_buf(), error)),
            }
        }
        Ok(created)
    }

    /// Creates them as [`make`](Self::make) does, on a thread that is left alone if it takes longer: what it
    /// creates then is removed.
    pub fn make_within(path: &Path, limit: Duration) -> Result<Self, (PathBuf, io::Error)> {
        let (send, receive) = mpsc::channel();
        let theirs = path.to_path_buf();
        let make = move || {
            // Who waits may be gone.
            let _ = send.send(Self::make(&theirs));
        };
        let start = thread::Builder::new().name("work-dir".to_owned()).spawn(make);
        start.map_err(|error| (path.to_path_buf(), error))?;
        let made = receive.recv_timeout(limit);
        made.unwrap_or_else(|_| Err((path.to_path_buf(), io::ErrorKind::TimedOut.into())))
    }

    pub(super) fn keep(mut self) {
        self.paths.clear();
    }
}

impl Drop for CreatedDirs {
    fn drop(&mut self) {
        for path in self.paths.iter().rev() {
            // Another job may use it already.
            let _ = fs::remove_dir(path);
        }
    }
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
        let state = StateDir::open(&dir.path().join("state")).unwrap();
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
        let _state = StateDir::open(dir.path()).unwrap();
        assert!(matches!(StateDir::open(dir.path()), Err(StateError::InUse { .. })));
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
        let state = StateDir::open(dir.path()).unwrap();
        assert_eq!(state.leftovers(), 1);
        assert!(!child.wait().unwrap().success());
        assert_eq!(fs::read_dir(dir.path().join("jobs")).unwrap().count(), 0);
    }

    #[test]
    fn after_a_boot_processes_are_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let mut child = left(dir.path(), b"another");
        StateDir::open(dir.path()).unwrap();
        assert!(Identity::of(child.id()).unwrap().is_running());
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn what_was_made_is_removed_unless_it_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b/c");
        let created = CreatedDirs::make(&path).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        drop(created);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        CreatedDirs::make(&path).unwrap().keep();
        drop(CreatedDirs::make(&path).unwrap());
        assert!(path.is_dir());
    }

    #[test]
    fn a_file_is_no_directory() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("f");
        fs::write(&file, "").unwrap();
        for path in [file.clone(), file.join("x")] {
            let (at, error) = CreatedDirs::make(&path).unwrap_err();
            assert_eq!(
                (at, error.kind()),
                (file.clone(), io::ErrorKind::NotADirectory),
                "{path:?}"
            );
        }
    }
}
