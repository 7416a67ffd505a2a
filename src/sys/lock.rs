//! Lock files: processes that work on the same thing wait for each other.

use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use crate::sys::fs::{PathContext as _, PathError};

/// A held lock. It is released when this is dropped, and by the kernel when the process dies.
///
/// The file stays: removing it would let a third process lock a new file of the same name while
/// a second one still waits for the old.
#[derive(Debug)]
pub struct FileLock {
    _file: File,
}

impl FileLock {
    /// Waits until nobody else holds the lock, and takes it.
    pub fn exclusive(path: &Path) -> Result<Self, PathError> {
        let file = open(path)?;
        file.lock().at("lock", path)?;
        Ok(FileLock { _file: file })
    }

    /// Waits until nobody holds the lock exclusively, and shares it.
    pub fn shared(path: &Path) -> Result<Self, PathError> {
        let file = open(path)?;
        file.lock_shared().at("lock", path)?;
        Ok(FileLock { _file: file })
    }

    /// Takes the lock, or returns nothing if somebody else holds it.
    pub fn try_exclusive(path: &Path) -> Result<Option<Self>, PathError> {
        let file = open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(FileLock { _file: file })),
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
