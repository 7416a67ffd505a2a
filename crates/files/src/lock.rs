//! Lock files with a timeout: processes that use the same file or directory wait for each other, but not for ever. If a
//! stopped process holds a lock, waiting processes fail with an error that names it, instead of hanging too.

use std::fs::{self, File, Metadata, OpenOptions, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{OFlags, major, minor};
use tracing::{trace, warn};

use crate::fs::{AccessSubject, PathContext as _, PathError};
use crate::retry::retry_for;

/// Timeout for each lock that belongs to another job or instance, for programs such as `prune` that
/// take many of them.
pub const BULK_LOCK_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout for a lock that is held briefly.
pub const LOCK_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout for a lock that is held during a download or copy.
pub const LONG_LOCK_TIMEOUT: Duration = Duration::from_secs(600);

/// Time after which a waiting process logs the holder of the lock.
const REPORT_AFTER: Duration = Duration::from_secs(2);

const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// A held lock, released when this value is dropped, and by the kernel when the process dies.
///
/// The lock file is not removed, unless all processes lock it with [`acquire_removable`](Self::acquire_removable): a
/// third process could lock a new file of the same name while a second one still waits for the old file.
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
    pub fn acquire_exclusive(path: &Path, within: Duration) -> Result<Self, PathError> {
        trace!(path = %path.display(), "lock");
        let file = open(path)?;
        wait(&file, path, LockMode::Exclusive, within)?;
        Ok(FileLock { file })
    }

    /// Waits until no other process holds the lock exclusively, and shares it.
    ///
    /// # Errors
    ///
    /// Fails if another process still holds it after the given time.
    pub fn acquire_shared(path: &Path, within: Duration) -> Result<Self, PathError> {
        trace!(path = %path.display(), "lock shared");
        let file = open(path)?;
        wait(&file, path, LockMode::Shared, within)?;
        Ok(FileLock { file })
    }

    /// Takes the lock, or returns `None` if another process still holds it after the given time.
    pub fn try_exclusive_for(path: &Path, time: Duration) -> Result<Option<Self>, PathError> {
        retry_for(time, || Self::try_exclusive(path).transpose()).transpose()
    }

    /// Waits for a lock as [`acquire_exclusive`](Self::acquire_exclusive) does, but allows its file to be
    /// [removed](Self::remove) together with the object that it protects.
    pub fn acquire_removable(path: &Path, within: Duration) -> Result<Self, PathError> {
        loop {
            let lock = FileLock::acquire_exclusive(path, within)?;
            // If the file was removed while this process waited, the lock on it protects nothing.
            let held = lock.file.metadata().with_path("look up", path)?;
            let is_there = fs::metadata(path)
                .is_ok_and(|now| (now.dev(), now.ino()) == (held.dev(), held.ino()));
            if is_there {
                return Ok(lock);
            }
        }
    }

    /// Removes the file of a lock taken with [`acquire_removable`](Self::acquire_removable), and releases the lock.
    pub fn remove(self, path: &Path) -> Result<(), PathError> {
        fs::remove_file(path).with_path("remove", path)
    }

    /// Takes a lock as [`try_exclusive`](Self::try_exclusive) does, in a directory where other users can
    /// create files, such as `/tmp`: the lock file has to belong to this user and gets mode 0600, so that
    /// only this user's processes can hold the lock.
    pub fn try_own(path: &Path) -> Result<Option<Self>, PathError> {
        let file = match open(path) {
            Ok(file) => file,
            // Another user's file, directory or symbolic link is reported with its owner.
            Err(error) => {
                let found = fs::symlink_metadata(path).ok();
                found
                    .map_or(Ok(()), |found| check_owner(&found))
                    .with_path("use the lock file", path)?;
                return Err(error);
            }
        };
        let found = file.metadata().with_path("look up", path)?;
        check_owner(&found).with_path("use the lock file", path)?;
        if found.nlink() != 1 {
            let error = io::Error::other("it has more than one hard link: remove it");
            return Err(PathError::new("use the lock file", path, error));
        }
        file.set_permissions(Permissions::from_mode(0o600))
            .with_path("change the mode of", path)?;
        lock(file, path)
    }

    /// Takes the lock, or returns `None` if another process holds it.
    pub fn try_exclusive(path: &Path) -> Result<Option<Self>, PathError> {
        lock(open(path)?, path)
    }
}

fn lock(file: File, path: &Path) -> Result<Option<FileLock>, PathError> {
    Ok(LockMode::Exclusive.try_lock(&file).with_path("lock", path)?.then_some(FileLock { file }))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LockMode {
    Exclusive,
    Shared,
}

impl LockMode {
    /// Takes the lock and returns whether it was free. The modification time of the file tells waiting
    /// processes when it was taken.
    fn try_lock(self, file: &File) -> io::Result<bool> {
        let locked = match self {
            LockMode::Exclusive => file.try_lock(),
            LockMode::Shared => file.try_lock_shared(),
        };
        match locked {
            Ok(()) => {
                // Only an error message needs the time.
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
    wait(file, path, LockMode::Exclusive, within)
}

/// Polls a lock until it is free. flock(2) has no timeout, and a thread that blocks in it would make setns(2) into a
/// user namespace fail for a moment after its end.
fn wait(file: &File, path: &Path, mode: LockMode, within: Duration) -> Result<(), PathError> {
    let start = Instant::now();
    let mut is_reported = false;
    loop {
        // Read before the attempt: this process may be stopped for longer than the timeout.
        let waited = start.elapsed();
        if mode.try_lock(file).with_path("lock", path)? {
            return Ok(());
        }
        let is_over = waited >= within;
        if is_over || (waited >= REPORT_AFTER && !is_reported) {
            let holder = holder(&file.metadata().with_path("look up", path)?);
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
}

/// Describes the process that holds the lock of a file: since when, and whether it is stopped.
fn holder(file: &Metadata) -> String {
    let since = file.modified().ok().and_then(|time| time.elapsed().ok()).unwrap_or_default();
    let for_seconds = format!("has held it for {} s", since.as_secs());
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    let id = format!("{:02x}:{:02x}:{}", major(file.dev()), minor(file.dev()), file.ino());
    // 1: FLOCK  ADVISORY  WRITE 1234 fd:00:5678 0 EOF; lines of waiting processes have `->` after the number.
    let holder = locks.lines().find_map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        match words[..] {
            [_, "FLOCK", _, _, pid, found, ..] if found == id => Some(pid.to_owned()),
            _ => None,
        }
    });
    let Some(pid) = holder else {
        // Processes outside of the PID namespace of a rootless job are invisible here, but not to the user.
        return format!("a process outside of this job (`lslocks` names it) {for_seconds}");
    };
    let read = |name: &str| fs::read(Path::new("/proc").join(&pid).join(name)).unwrap_or_default();
    let command = read("cmdline");
    let command = command.split(|byte| *byte == 0).filter(|word| !word.is_empty()).take(2);
    let command: Vec<_> = command.map(|word| String::from_utf8_lossy(word).into_owned()).collect();
    let stat = String::from_utf8_lossy(&read("stat")).into_owned();
    // The state follows the command name, which may contain any character.
    let state =
        stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next().map(str::to_owned));
    let is_stopped = matches!(state.as_deref(), Some("T" | "t"));
    let stopped = if is_stopped { ", and is stopped" } else { "" };
    format!("process {pid} ({}) {for_seconds}{stopped}", command.join(" "))
}

/// Rejects a file of another user, who could hold the lock for ever.
fn check_owner(found: &Metadata) -> io::Result<()> {
    if found.uid() == rustix::process::geteuid().as_raw() {
        return Ok(());
    }
    let text = format!(
        "it belongs to {}, who could hold the lock for ever: remove it, or use a directory where \
         no other user can create files",
        AccessSubject::User(found.uid()).display_name()
    );
    Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
}

fn open(path: &Path) -> Result<File, PathError> {
    OpenOptions::new()
        .create(true)
        .write(true)
        .truncate(false)
        .mode(0o600)
        // If another user put a FIFO there, do not wait for its reader.
        .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed())
        .open(path)
        .with_path("open the lock file", path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_on_a_removed_file_is_not_held() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let first = FileLock::acquire_removable(&path, LOCK_TIMEOUT).unwrap();
        let waiting = thread::spawn({
            let path = path.clone();
            move || FileLock::acquire_removable(&path, LOCK_TIMEOUT).map(|lock| lock.remove(&path))
        });
        first.remove(&path).unwrap();
        waiting.join().unwrap().unwrap().unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn lock_file_of_another_user_is_rejected() {
        if !rustix::process::geteuid().is_root() {
            // Only root can give files away.
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o1777)).unwrap();
        let foreign = |name: &str| {
            std::os::unix::fs::lchown(dir.path().join(name), Some(54321), None).unwrap();
            FileLock::try_own(&dir.path().join(name)).unwrap_err().source.to_string()
        };
        fs::write(dir.path().join("file"), "").unwrap();
        // The kernel may deny opening the file first (fs.protected_regular).
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
    fn private_lock_cannot_be_opened_by_others() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
        let _held = FileLock::try_own(&path).unwrap().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert!(FileLock::try_own(&path).unwrap().is_none());
    }

    #[test]
    fn one_process_holds_the_lock_until_it_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let held = FileLock::acquire_exclusive(&path, LOCK_TIMEOUT).unwrap();
        assert!(FileLock::try_exclusive(&path).unwrap().is_none());
        drop(held);
        let _shared = FileLock::acquire_shared(&path, LOCK_TIMEOUT).unwrap();
        let _too = FileLock::acquire_shared(&path, LOCK_TIMEOUT).unwrap();
        assert!(FileLock::try_exclusive(&path).unwrap().is_none());
    }

    #[test]
    fn lock_timeout_names_the_holder() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let held = FileLock::acquire_exclusive(&path, LOCK_TIMEOUT).unwrap();
        let text = |error: PathError| error.source.to_string();
        for wait in [FileLock::acquire_exclusive, FileLock::acquire_shared] {
            let said = text(wait(&path, Duration::from_millis(20)).unwrap_err());
            let start = format!("process {} (", std::process::id());
            assert!(said.starts_with(&start) && said.contains(") has held it for "), "{said}");
            assert!(said.contains(" s; "), "{said}");
        }
        drop(held);
        drop(FileLock::acquire_exclusive(&path, LOCK_TIMEOUT).unwrap());
    }
}
