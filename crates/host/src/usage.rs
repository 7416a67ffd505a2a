//! Disk usage of untrusted directory trees.

use std::ops::ControlFlow;
use std::path::Path;

use oci_hooks_files::beneath::open_strictly;
use oci_hooks_files::descent::{
    DIRECTORY, DirentBuffer, NameStack, TreeDescent, file_status, list,
};
use oci_hooks_files::fs::{PathContext as _, PathError};
use rustix::fd::AsFd as _;
use rustix::fs::{AtFlags, CWD, FileType, Mode, openat, statat};
use rustix::io::Errno;

/// Unit of `st_blocks`, regardless of the block size of the file system.
const BLOCK_BYTES: u64 = 512;

/// Size limit of the pending names of a directory.
const MAX_WAITING_BYTES: usize = 16 << 10;

struct UsageLevel {
    waiting: NameStack,
    /// Position to continue listing at; `None` at the end.
    position: Option<u64>,
}

impl Default for UsageLevel {
    fn default() -> Self {
        UsageLevel { waiting: NameStack::default(), position: Some(0) }
    }
}

/// Returns the approximate disk usage of a directory with its content, in bytes. A file counts once for each hard
/// link; mounts, removed files and unreadable directories are not counted.
pub fn disk_bytes(path: &Path) -> Result<u64, PathError> {
    let top = openat(CWD, path, DIRECTORY, Mode::empty()).with_path("open", path)?;
    let mut bytes = BLOCK_BYTES * file_status(top.as_fd()).with_path("inspect", path)?.stx_blocks;
    let mut descent =
        TreeDescent::new(top.as_fd(), UsageLevel::default()).with_path("inspect", path)?;
    let mut buffer = DirentBuffer::default();
    loop {
        let (here, level) = descent.current_directory();
        if let Some(name) = level.waiting.pop() {
            let opened = open_strictly(here, name.as_c_str(), DIRECTORY, Mode::empty());
            let found =
                opened.and_then(|directory| Ok((file_status(directory.as_fd())?, directory)));
            if let Ok((found, directory)) = found {
                bytes += BLOCK_BYTES * found.stx_blocks;
                descent.enter(directory, &found, UsageLevel::default());
            }
        } else if let Some(position) = level.position {
            let waiting = &mut level.waiting;
            let rest = list(here, position, &mut buffer, |name, _| {
                if let Ok(found) = statat(here, name, AtFlags::SYMLINK_NOFOLLOW) {
                    if FileType::from_raw_mode(found.st_mode).is_dir() {
                        waiting.push(name);
                    } else {
                        bytes += BLOCK_BYTES * u64::try_from(found.st_blocks).unwrap_or_default();
                    }
                }
                if waiting.bytes() < MAX_WAITING_BYTES {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                }
            });
            level.position = rest.unwrap_or_default();
        } else {
            match descent.leave() {
                Ok(Some(_)) => {}
                // If a directory was moved meanwhile, the number is too small.
                Ok(None) | Err(Errno::STALE) => return Ok(bytes),
                Err(error) => return Err(PathError::new("inspect", path, error)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use oci_hooks_testsupport::descriptors::with_few_descriptors;
    use rustix::fd::OwnedFd;
    use rustix::fs::mkdirat;

    use super::super::removal::remove_tree;
    use super::*;

    #[test]
    fn written_bytes_are_counted_without_holes() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        fs::create_dir_all(dir.path().join("a/b")).unwrap();
        fs::write(dir.path().join("a/b/full"), vec![1; 1 << 20]).unwrap();
        fs::write(dir.path().join("full"), vec![1; 1 << 20]).unwrap();
        fs::File::create(dir.path().join("a/hole")).unwrap().set_len(1 << 40).unwrap();
        let bytes = disk_bytes(dir.path()).unwrap();
        assert!((2 << 20..3 << 20).contains(&bytes), "{bytes}");
    }

    #[test]
    fn deep_trees_are_measured_with_few_descriptors() {
        let test = "usage::tests::deep_trees_are_measured_with_few_descriptors";
        with_few_descriptors(test, || {
            let dir = tempfile::tempdir_in("/dev/shm").unwrap();
            let top = dir.path().join("top");
            fs::create_dir(&top).unwrap();
            let mut here = OwnedFd::from(fs::File::open(&top).unwrap());
            for _ in 0..2000 {
                mkdirat(&here, "deep", Mode::RWXU).unwrap();
                here = openat(&here, "deep", DIRECTORY, Mode::empty()).unwrap();
            }
            let mut file = fs::File::from(
                openat(
                    &here,
                    "file",
                    rustix::fs::OFlags::CREATE | rustix::fs::OFlags::RDWR,
                    Mode::RWXU,
                )
                .unwrap(),
            );
            std::io::Write::write_all(&mut file, &[1; 8192]).unwrap();
            drop((here, file));
            assert!(disk_bytes(&top).unwrap() >= 8192);
            remove_tree(&top).unwrap();
        });
    }
}
