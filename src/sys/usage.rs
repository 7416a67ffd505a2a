//! How much of the disk a tree takes that others have shaped.

use std::ops::ControlFlow;
use std::path::Path;

use rustix::fd::AsFd as _;
use rustix::fs::{AtFlags, CWD, FileType, Mode, openat, statat};
use rustix::io::Errno;

use super::beneath::open_strictly;
use super::descent::{Buffer, DIRECTORY, Descent, Names, list, look};
use super::fs::{PathContext as _, PathError};

/// What the kernel counts blocks in, whatever those of the file system are.
const BLOCK_BYTES: u64 = 512;

/// How many bytes of names of a directory may wait to be gone into.
const MAX_WAITING_BYTES: usize = 16 << 10;

struct Level {
    /// Directories in it that are still to be gone into.
    waiting: Names,
    /// Where to read on, if there is more.
    position: Option<u64>,
}

impl Default for Level {
    fn default() -> Self {
        Level { waiting: Names::default(), position: Some(0) }
    }
}

/// Returns about how many bytes of the disk a directory takes with all in it. A file with several names is
/// counted by each; what is mounted there, what is gone and what may not be looked into is not counted.
pub fn disk_bytes(path: &Path) -> Result<u64, PathError> {
    let top = openat(CWD, path, DIRECTORY, Mode::empty()).at("open", path)?;
    let mut bytes = BLOCK_BYTES * look(top.as_fd()).at("look at", path)?.stx_blocks;
    let mut descent = Descent::new(top.as_fd(), Level::default()).at("look at", path)?;
    let mut buffer = Buffer::new();
    loop {
        let (here, level) = descent.here();
        if let Some(name) = level.waiting.pop() {
            let opened = open_strictly(here, name.as_c_str(), DIRECTORY, Mode::empty());
            let found = opened.and_then(|directory| Ok((look(directory.as_fd())?, directory)));
            if let Ok((found, directory)) = found {
                bytes += BLOCK_BYTES * found.stx_blocks;
                descent.enter(directory, &found, Level::default());
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
                // Whoever moves directories meanwhile gets a number that is too small.
                Ok(None) | Err(Errno::STALE) => return Ok(bytes),
                Err(error) => return Err(PathError::new("look at", path, error)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rustix::fd::OwnedFd;
    use rustix::fs::mkdirat;

    use super::super::removal::remove_tree;
    use super::super::tests::with_few_descriptors;
    use super::*;

    #[test]
    fn what_is_written_is_counted_and_holes_are_not() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        fs::create_dir_all(dir.path().join("a/b")).unwrap();
        fs::write(dir.path().join("a/b/full"), vec![1; 1 << 20]).unwrap();
        fs::write(dir.path().join("full"), vec![1; 1 << 20]).unwrap();
        fs::File::create(dir.path().join("a/hole")).unwrap().set_len(1 << 40).unwrap();
        let bytes = disk_bytes(dir.path()).unwrap();
        assert!((2 << 20..3 << 20).contains(&bytes), "{bytes}");
    }

    #[test]
    fn depth_takes_few_descriptors() {
        let test = "sys::usage::tests::depth_takes_few_descriptors";
        with_few_descriptors(test, || {
            let dir = tempfile::tempdir_in("/dev/shm").unwrap();
            let top = dir.path().join("top");
            fs::create_dir(&top).unwrap();
            let mut here = OwnedFd::from(fs::File::open(&top).unwrap());
            for _ in 0..100_000 {
                mkdirat(&here, "d", Mode::RWXU).unwrap();
                here = openat(&here, "d", DIRECTORY, Mode::empty()).unwrap();
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
