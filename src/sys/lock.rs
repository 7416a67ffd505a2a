//! Lock files: processes that work on the same thing wait for each other.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use crate::sys::fs::{PathContext as _, PathError};

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
        file.lock().at("lock", path)?;
        Ok(FileLock { file })
    }

    /// Waits until nobody holds the lock exclusively, and shares it.
    pub fn shared(path: &Path) -> Result<Self, PathError> {
        let file = open(path)?;
        file.lock_shared().at("lock", path)?;
        Ok(FileLock { file })
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

    /// Takes the lock, or returns nothing if somebody else holds it.
    pub fn try_exclusive(path: &Path) -> Result<Option<Self>, PathError> {
        let file = open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(FileLock { file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(PathError::new("lock", path, error)),
        }
    }
}

fn open(path: &Path) -> Result<File, PathError> {
    OpenOptions::new()
        .create(true)
        .write(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed())
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
        let waiting = std::thread::spawn({
            let path = path.clone();
            move || FileLock::passing(&path).map(|lock| lock.remove(&path))
        });
        first.remove(&path).unwrap();
        waiting.join().unwrap().unwrap().unwrap();
        assert!(!path.exists());
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
