//! Sets directories aside that cannot be removed: moves them to a trash directory, so that their
//! paths are free again. The cause may be a disk error or a leftover mount.
//!
//! Each root directory, such as that of an image store, has its own trash directory; the `prune`
//! commands retry the removal of its entries.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use oci_hooks_files::fs::{PathError, entries_in, make_private, random_u64};
use tracing::debug;

use super::removal::remove_tree;
use super::usage::disk_bytes;

/// A directory for files that cannot be removed.
///
/// Clones share the list of directories that were set aside.
#[derive(Clone, Debug)]
pub struct Trash {
    dir: PathBuf,
    set_aside: Arc<Mutex<Vec<TrashedDirectory>>>,
}

/// A directory that could not be removed, and its new path.
#[derive(Debug, thiserror::Error)]
#[error(
    "set aside as {}, because not all of it can be removed; a later cleanup tries again", path.display()
)]
pub struct TrashedDirectory {
    pub path: PathBuf,
    /// The error of the removal, with the original path.
    pub source: PathError,
}

/// The result of emptying the trash.
#[derive(Debug, Default)]
pub struct TrashReport {
    pub removed: usize,
    /// Errors of entries that could not be removed.
    pub left: Vec<PathError>,
}

/// Maximum number of attempts to set a directory aside while other processes remove the empty trash.
const ROUNDS: usize = 100;

impl Trash {
    /// Returns the trash below a root. The trash directory is created on first use.
    pub fn of(root: &Path) -> Self {
        Trash { dir: root.join("trash"), set_aside: Arc::default() }
    }

    /// Returns the trash below another root. Both trashes share the list of directories that were
    /// set aside.
    pub fn with_root(&self, root: &Path) -> Self {
        Trash { dir: root.join("trash"), set_aside: Arc::clone(&self.set_aside) }
    }

    /// Removes a directory with its content, or sets the rest of it aside. Afterwards the path does not exist;
    /// not an error if it never did.
    ///
    /// The directory has to be on the same file system as the trash.
    ///
    /// # Errors
    ///
    /// Fails if the directory can neither be removed nor moved.
    pub fn remove(&self, path: &Path) -> Result<(), PathError> {
        let Err(source) = remove_tree(path) else { return Ok(()) };
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let aside = self.dir.join(format!("{:016x}-{name}", random_u64()));
        debug!(path = %path.display(), to = %aside.display(), %source, "set aside");
        for _ in 0..ROUNDS {
            make_private(&self.dir)?;
            match fs::rename(path, &aside) {
                Ok(()) => {
                    self.lock_set_aside().push(TrashedDirectory { path: aside, source });
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    if fs::symlink_metadata(path).is_err() {
                        return Ok(());
                    }
                    // Another process has removed the empty trash meanwhile.
                }
                // The error of the removal is more helpful than that of the move.
                Err(_) => return Err(source),
            }
        }
        Err(source)
    }

    /// Returns the directories that were set aside since the last call.
    pub fn take_set_aside(&self) -> Vec<TrashedDirectory> {
        std::mem::take(&mut self.lock_set_aside())
    }

    /// Returns the paths of all entries in the trash, also of entries that other processes moved
    /// there.
    pub fn contents(&self) -> Result<Vec<PathBuf>, PathError> {
        Ok(entries_in(&self.dir)?.iter().map(fs::DirEntry::path).collect())
    }

    /// Returns the approximate disk usage of the trash.
    pub fn disk_bytes(&self) -> Result<u64, PathError> {
        self.contents()?.iter().map(|path| disk_bytes(path)).sum()
    }

    /// Retries the removal of all entries.
    pub fn remove_entries(&self) -> Result<TrashReport, PathError> {
        let mut emptied = TrashReport::default();
        for path in self.contents()? {
            match remove_tree(&path) {
                Ok(()) => emptied.removed += 1,
                Err(error) => emptied.left.push(error),
            }
        }
        if emptied.left.is_empty() {
            // Fails if another process set a directory aside meanwhile.
            let _ = fs::remove_dir(&self.dir);
        }
        Ok(emptied)
    }

    fn lock_set_aside(&self) -> std::sync::MutexGuard<'_, Vec<TrashedDirectory>> {
        self.set_aside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;
    use std::process::Command;

    use rustix::mount::MountFlags;
    use rustix::process::geteuid;

    use super::*;
    use crate::mount::run_in_new_namespace;
    use crate::{loop_device, mount};

    #[test]
    fn removable_files_leave_no_trash() {
        let dir = tempfile::tempdir().unwrap();
        let trash = Trash::of(dir.path());
        let tree = dir.path().join("tree");
        fs::create_dir_all(tree.join("a/b")).unwrap();
        trash.remove(&tree).unwrap();
        trash.remove(&tree).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(trash.take_set_aside().is_empty());
        assert_eq!(trash.remove_entries().unwrap().removed, 0);
    }

    /// Runs a program of e2fsprogs, and returns its output.
    fn run(program: &str, args: &[&str], image: &Path) -> String {
        let output = Command::new(program).args(args).arg(image).output();
        let output = output.unwrap_or_else(|error| panic!("{program} of e2fsprogs: {error}"));
        assert!(output.status.success(), "{program}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// A block of a directory is lost, as on a failing disk.
    #[test]
    fn unreadable_directory_is_set_aside_and_the_rest_removed() {
        if !geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let (image, root) = (dir.path().join("image"), dir.path().join("root"));
        fs::File::create(&image).unwrap().set_len(32 << 20).unwrap();
        run("mkfs.ext4", &["-q", "-F", "-b", "4096", "-O", "^has_journal"], &image);
        fs::create_dir(&root).unwrap();
        let (tree, trash) = (root.join("tree"), Trash::of(&root));
        let mount = || {
            let flags = MountFlags::empty();
            loop_device::mount_file(&image, &root, c"ext4", flags, c"errors=continue")
        };
        run_in_new_namespace(|| {
            mount()?;
            for name in ["a", "lost", "z"] {
                fs::create_dir_all(tree.join(name).join("dir")).unwrap();
                fs::write(tree.join(name).join("file"), "x").unwrap();
            }
            mount::unmount(&root)?;
            let blocks = run("debugfs", &["-R", "blocks /tree/lost"], &image);
            let block: u64 = blocks.trim().parse().unwrap();
            let disk = fs::File::options().write(true).open(&image).unwrap();
            disk.write_all_at(&[0; 4096], block * 4096).unwrap();
            mount()?;
            trash.remove(&tree)?;
            let [aside] = trash.take_set_aside().try_into().unwrap();
            let left: Vec<_> = fs::read_dir(&aside.path).unwrap().flatten().collect();
            assert_eq!(left.iter().map(fs::DirEntry::file_name).collect::<Vec<_>>(), ["lost"]);
            // The next directory has the same name.
            fs::create_dir_all(tree.join("lost")).unwrap();
            trash.remove(&tree)?;
            assert!(!tree.exists() && trash.take_set_aside().is_empty());
            assert_eq!(trash.remove_entries()?.left.len(), 1);
            mount::unmount(&root)
        })
        .unwrap();
    }

    #[test]
    fn unremovable_files_are_set_aside_until_removable() {
        if !geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let trash = Trash::of(dir.path());
        let tree = dir.path().join("tree");
        fs::create_dir_all(tree.join("a/b")).unwrap();
        fs::write(tree.join("file"), "").unwrap();
        run_in_new_namespace(|| {
            mount::mount_tmpfs(&tree.join("a/b"), 0o700, None)?;
            trash.with_root(dir.path()).remove(&tree)?;
            assert!(!tree.exists());
            let [aside] = trash.take_set_aside().try_into().unwrap();
            assert_eq!(aside.source.path, tree.join("a/b"));
            assert!(aside.path.join("a/b").is_dir() && !aside.path.join("file").exists());
            assert!(trash.take_set_aside().is_empty());
            let emptied = trash.remove_entries()?;
            assert_eq!(
                (emptied.removed, emptied.left[0].path.clone()),
                (0, aside.path.join("a/b"))
            );
            mount::unmount(&aside.path.join("a/b"))?;
            assert_eq!(trash.remove_entries()?.removed, 1);
            Ok::<_, PathError>(())
        })
        .unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
