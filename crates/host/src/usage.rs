//! Measures the disk usage of untrusted directory trees, for lists and for the pruning of images and volumes.

use std::ffi::CStr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use oci_hooks_files::descent::DIRECTORY;
use oci_hooks_files::fs::{PathContext as _, PathError};
use rustix::fs::{AtFlags, CWD, FileType, Mode, Statx, openat, statat};

use super::walk::{AccessDeniedAction, EntryAction, TreeVisitor, WalkTrace, walk};

/// Unit of `st_blocks`, regardless of the block size of the file system.
const BLOCK_BYTES: u64 = 512;

#[derive(Default)]
struct BlockCounter {
    blocks: u64,
}

impl TreeVisitor for BlockCounter {
    fn directory(&mut self, _: &OwnedFd, found: &Statx, _: &CStr, _: &mut WalkTrace<'_>) {
        self.blocks += found.stx_blocks;
    }

    fn entry(&mut self, here: BorrowedFd<'_>, name: &CStr, _: &mut WalkTrace<'_>) -> EntryAction {
        match statat(here, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) if FileType::from_raw_mode(found.st_mode).is_dir() => EntryAction::Enter,
            Ok(found) => {
                self.blocks += u64::try_from(found.st_blocks).unwrap_or_default();
                EntryAction::Nothing
            }
            Err(_) => EntryAction::Nothing,
        }
    }

    fn handle_access_denied(&mut self, _: BorrowedFd<'_>, _: &CStr) -> AccessDeniedAction {
        AccessDeniedAction::Skip
    }
}

/// Returns the approximate disk usage of a directory with its content, in bytes. A file counts once for each hard
/// link, or more often if directories are moved meanwhile; mounts, removed files and unreadable directories are not
/// counted.
pub fn disk_bytes(path: &Path) -> Result<u64, PathError> {
    let directory = openat(CWD, path, DIRECTORY, Mode::empty()).with_path("open", path)?;
    let mut counter = BlockCounter::default();
    walk(directory.as_fd(), path, &mut counter)?;
    Ok(BLOCK_BYTES * counter.blocks)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use oci_hooks_testsupport::descriptors::with_few_descriptors;
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
