//! Lock files: processes that work on the same thing wait for each other, for a limited time. A process that is stopped
//! while it holds a lock fails the others, with its name, instead of stopping them too.

use std::fs::{self, File, Metadata, OpenOptions, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{OFlags, major, minor};
use tracing::{trace, warn};

use crate::sys::fs::{PathContext as _, PathError, Who};

/// The patience of a process that looks at what belongs to others, as to remove what nothing uses.
pub const PASSING_BY: Duration = Duration::from_secs(5);
/// The patience for a lock that processes hold for a moment.
pub const BRIEF: Duration = Duration::from_secs(30);
/// The patience for a lock that is held while something is fetched or copied.
pub const LONG: Duration = Duration::from_secs(600);

/// How long a process waits until it reports who holds the lock.
const REPORT_AFTER: Duration = Duration::from_secs(2);

const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// A held lock. It is released when this is dropped, and by the kernel when the process dies.
///
/// The file stays, unless all who lock it take it for a [passing](Self::passing) one: removing it
/// would let a third process lock a new file of the same name while a second one still waits for the
/// old.
#[derive(Debug)]
pub struct FileLock {
    file: File,
}

impl FileLock {
    /// Waits until no other process holds the lock, and takes it.
    ///
    /// # Errors
    ///
    /// Fails if another process still holds it after the given time.
    pub fn exclusive(path: &Path, within: Duration) -> Result<Self, PathError> {
        trace!(path = %path.display(), "lock");
        let file = open(path)?;
        wait(&file, path, Mode::Exclusive, within)?;
        Ok(FileLock { file })
    }

    /// Waits until no other process holds the lock exclusively, and shares it.
    ///
    /// # Errors
    ///
    /// Fails if another process still holds it after the given time.
    pub fn shared(path: &Path, within: Duration) -> Result<Self, PathError> {
        trace!(path = %path.display(), "lock shared");
        let file = open(path)?;
        wait(&file, path, Mode::Shared, within)?;
        Ok(FileLock { file })
    }

    /// Takes the lock, or returns nothing if somebody else holds it all the time.
    pub fn try_exclusive_for(path: &Path, time: Duration) -> Result<Option<Self>, PathError> {
        let end = Instant::now() + time;
        loop {
            let lock = Self::try_exclusive(path)?;
            if lock.is_some() || Instant::now() >= end {
                return Ok(lock);
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Waits for a lock as [`exclusive`](Self::exclusive) does, whose file
    /// [goes away](Self::remove) with what it is for.
    pub fn passing(path: &Path, within: Duration) -> Result<Self, PathError> {
        loop {
            let lock = FileLock::exclusive(path, within)?;
            // Who waited for a file that was removed meanwhile has a lock that nobody else looks at.
            let held = lock.file.metadata().at("look up", path)?;
            let is_there = fs::metadata(path)
                .is_ok_and(|now| (now.dev(), now.ino()) == (held.dev(), held.ino()));
            if is_there {
                return Ok(lock);
            }
        }
    }

    /// Removes the file of a [passing](Self::passing) lock, and gives the lock back.
    pub fn remove(self, path: &Path) -> Result<(), PathError> {
        fs::remove_file(path).at("remove", path)
    }

    /// Takes a lock as [`try_exclusive`](Self::try_exclusive) does where others can make files too, as in
    /// `/tmp`: that of a file which is this user's and which nobody else can open, so that only this
    /// user's processes can hold it.
    pub fn try_own(path: &Path) -> Result<Option<Self>, PathError> {
        let file = match open(path) {
            Ok(file) => file,
            // A stranger's file; or a directory or link, which says whose it is as well.
            Err(error) => {
                let found = fs::symlink_metadata(path).ok();
                found.map_or(Ok(()), |found| check_owner(&found)).at("use the lock file", path)?;
                return Err(error);
            }
        };
        let found = file.metadata().at("look up", path)?;
        check_owner(&found).at("use the lock file", path)?;
        if found.nlink() != 1 {
            let error = io::Error::other("it has another name, which is no lock's: remove it");
            return Err(PathError::new("use the lock file", path, error));
        }
        file.set_permissions(Permissions::from_mode(0o600)).at("change the mode of", path)?;
        lock(file, path)
    }

    /// Takes the lock, or returns nothing if somebody else holds it.
    pub fn try_exclusive(path: &Path) -> Result<Option<Self>, PathError> {
        lock(open(path)?, path)
    }
}

fn lock(file: File, path: &Path) -> Result<Option<FileLock>, PathError> {
    Ok(Mode::Exclusive.try_lock(&file).at("lock", path)?.then_some(FileLock { file }))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Exclusive,
    Shared,
}

impl Mode {
    /// Returns whether no other process held the lock, and notes for those who wait when it was taken.
    fn try_lock(self, file: &File) -> io::Result<bool> {
        let locked = match self {
            Mode::Exclusive => file.try_lock(),
            Mode::Shared => file.try_lock_shared(),
        };
        match locked {
            Ok(()) => {
                // Only a message needs it.
                let _ = file.set_modified(SystemTime::now());
                Ok(true)
            }
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

/// Waits until no other process holds the lock of an open file, and takes it: it is released when the file is unlocked
/// or closed.
///
/// # Errors
///
/// Fails if another process still holds it after the given time.
pub fn lock_open(file: &File, path: &Path, within: Duration) -> Result<(), PathError> {
    wait(file, path, Mode::Exclusive, within)
}

/// Waits for a lock. flock(2) has no timeout, and a thread that waits would be in the way of setns(2) into a user
/// namespace for a moment after its end.
fn wait(file: &File, path: &Path, mode: Mode, within: Duration) -> Result<(), PathError> {
    let start = Instant::now();
    let mut is_reported = false;
    while !mode.try_lock(file).at("lock", path)? {
        let waited = start.elapsed();
        let is_over = waited >= within;
        if is_over || (waited >= REPORT_AFTER && !is_reported) {
            let holder = holder(&file.metadata().at("look up", path)?);
            if is_over {
                let text = format!("{holder}; end that process if it is stopped, or try again");
                return Err(PathError::new(
                    "lock",
                    path,
                    io::Error::new(io::ErrorKind::TimedOut, text),
                ));
            }
            warn!("waiting for the lock {}: {holder}", path.display());
            is_reported = true;
        }
        thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

/// Says which process holds the lock of a file, since when, and whether it is stopped.
fn holder(file: &Metadata) -> String {
    let since = file.modified().ok().and_then(|time| time.elapsed().ok()).unwrap_or_default();
    let for_seconds = format!("has held it for {} s", since.as_secs());
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    let id = format!("{:02x}:{:02x}:{}", major(file.dev()), minor(file.dev()), file.ino());
    // 1: FLOCK  ADVISORY  WRITE 1234 fd:00:5678 0 EOF; the locks of those that wait begin with `->`.
    let holder = locks.lines().find_map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        match words[..] {
            [_, "FLOCK", _, _, pid, found, ..] if found == id => Some(pid.to_owned()),
            _ => None,
        }
    });
    let Some(pid) = holder else {
        // In the holder of an ordinary user's job no other processes are seen; the user sees all.
        return format!("a process outside of this job (`lslocks` names it) {for_seconds}");
    };
    let read = |name: &str| fs::read(Path::new("/proc").join(&pid).join(name)).unwrap_or_default();
    let command = read("cmdline");
    let command = command.split(|byte| *byte == 0).filter(|word| !word.is_empty()).take(2);
    let command: Vec<_> = command.map(|word| String::from_utf8_lossy(word).into_owned()).collect();
    let stat = String::from_utf8_lossy(&read("stat")).into_owned();
    // After the name, which may have anything in it.
    let state =
        stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next().map(str::to_owned));
    let is_stopped = matches!(state.as_deref(), Some("T" | "t"));
    let stopped = if is_stopped { ", and is stopped" } else { "" };
    format!("process {pid} ({}) {for_seconds}{stopped}", command.join(" "))
}

/// Refuses what belongs to somebody else, who could keep the lock for ever.
fn check_owner(found: &Metadata) -> io::Result<()> {
    if found.uid() == rustix::process::geteuid().as_raw() {
        return Ok(());
    }
    let text = format!(
        "it belongs to {}, who could hold the lock for ever: remove it, or use a directory where \
         nobody else can make files",
        Who::User(found.uid()).named()
    );
    Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
}

fn open(path: &Path) -> Result<File, PathError> {
    OpenOptions::new()
        .create(true)
        .write(true)
        .truncate(false)
        .mode(0o600)
        // Of a FIFO that somebody put there, no reader is waited for.
        .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed())
        .open(path)
        .at("open the lock file", path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_removed_is_no_lock() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let first = FileLock::passing(&path, BRIEF).unwrap();
        let waiting = thread::spawn({
            let path = path.clone();
            move || FileLock::passing(&path, BRIEF).map(|lock| lock.remove(&path))
        });
        first.remove(&path).unwrap();
        waiting.join().unwrap().unwrap().unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn a_lock_that_somebody_else_made_is_not_taken() {
        if !rustix::process::geteuid().is_root() {
            // Nobody else can make files of others.
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o1777)).unwrap();
        let foreign = |name: &str| {
            std::os::unix::fs::lchown(dir.path().join(name), Some(54321), None).unwrap();
            FileLock::try_own(&dir.path().join(name)).unwrap_err().source.to_string()
        };
        fs::write(dir.path().join("file"), "").unwrap();
        // The kernel may refuse to open it first (fs.protected_regular).
        assert!(foreign("file").starts_with("it belongs to user 54321, who could hold the lock"));
        fs::create_dir(dir.path().join("directory")).unwrap();
        assert!(foreign("directory").starts_with("it belongs to user 54321, "));
        fs::write(dir.path().join("own"), "").unwrap();
        std::os::unix::fs::symlink("own", dir.path().join("link")).unwrap();
        assert!(foreign("link").starts_with("it belongs to user 54321, "));
        fs::hard_link(dir.path().join("own"), dir.path().join("other name")).unwrap();
        FileLock::try_own(&dir.path().join("other name")).unwrap_err();
    }

    #[test]
    fn nobody_else_can_open_a_lock_of_ones_own() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
        let _held = FileLock::try_own(&path).unwrap().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert!(FileLock::try_own(&path).unwrap().is_none());
    }

    #[test]
    fn one_process_holds_the_lock_until_it_drops_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let held = FileLock::exclusive(&path, BRIEF).unwrap();
        assert!(FileLock::try_exclusive(&path).unwrap().is_none());
        drop(held);
        let _shared = FileLock::shared(&path, BRIEF).unwrap();
        let _too = FileLock::shared(&path, BRIEF).unwrap();
        assert!(FileLock::try_exclusive(&path).unwrap().is_none());
    }

    #[test]
    fn who_waits_too_long_is_told_who_holds_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let held = FileLock::exclusive(&path, BRIEF).unwrap();
        let text = |error: PathError| error.source.to_string();
        for wait in [FileLock::exclusive, FileLock::shared] {
            let said = text(wait(&path, Duration::from_millis(20)).unwrap_err());
            let start = format!("process {} (", std::process::id());
            assert!(said.starts_with(&start) && said.contains(") has held it for 0 s; "), "{said}");
        }
        drop(held);
        drop(FileLock::exclusive(&path, BRIEF).unwrap());
    }
}
