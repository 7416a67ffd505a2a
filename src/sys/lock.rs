//! Lock files: processes that work on the same thing wait for each other.

use std::fs::{self, File, Metadata, OpenOptions, Permissions, TryLockError};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use tracing::trace;

use crate::sys::fs::{PathContext as _, PathError, Who};

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
    /// Waits until nobody else holds the lock, and takes it.
    pub fn exclusive(path: &Path) -> Result<Self, PathError> {
        let file = open(path)?;
        trace!(path = %path.display(), "lock");
        file.lock().at("lock", path)?;
        Ok(FileLock { file })
    }

    /// Waits until nobody holds the lock exclusively, and shares it.
    pub fn shared(path: &Path) -> Result<Self, PathError> {
        let file = open(path)?;
        trace!(path = %path.display(), "lock shared");
        file.lock_shared().at("lock", path)?;
        Ok(FileLock { file })
    }

    /// Returns a descriptor for a child: the lock is held until both are closed, and the child's is by all
    /// that inherit it.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        Ok(self.file.try_clone()?.into())
    }

    /// Takes the lock, or returns nothing if somebody else holds it all the time.
    pub fn try_exclusive_for(path: &Path, time: Duration) -> Result<Option<Self>, PathError> {
        const POLL_INTERVAL: Duration = Duration::from_millis(5);
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
    pub fn passing(path: &Path) -> Result<Self, PathError> {
        loop {
            let lock = FileLock::exclusive(path)?;
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
    match file.try_lock() {
        Ok(()) => Ok(Some(FileLock { file })),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(PathError::new("lock", path, error)),
    }
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
        let first = FileLock::passing(&path).unwrap();
        let waiting = thread::spawn({
            let path = path.clone();
            move || FileLock::passing(&path).map(|lock| lock.remove(&path))
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
        let held = FileLock::exclusive(&path).unwrap();
        assert!(FileLock::try_exclusive(&path).unwrap().is_none());
        drop(held);
        let _shared = FileLock::shared(&path).unwrap();
        let _too = FileLock::shared(&path).unwrap();
        assert!(FileLock::try_exclusive(&path).unwrap().is_none());
    }
}
