//! What cannot be removed is set aside, so that it is in nobody's way: a file that the disk cannot read
//! any more, a mount that somebody left.
//!
//! It is moved, as a whole, to a directory of the same root, from where it is removed when that can be
//! done.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tracing::debug;

use super::fs::{PathContext as _, PathError, random_u64};
use super::removal::remove_tree;
use super::usage::disk_bytes;

/// A directory for what cannot be removed.
///
/// Clones tell of the same problems.
#[derive(Clone, Debug)]
pub struct Trash {
    dir: PathBuf,
    set_aside: Arc<Mutex<Vec<SetAside>>>,
}

/// Something that could not be removed, and where it is now.
#[derive(Debug, thiserror::Error)]
#[error("set aside as {} until it can be removed, which prune tries again", path.display())]
pub struct SetAside {
    pub path: PathBuf,
    /// What of it could not be removed where it was, and why.
    pub source: PathError,
}

/// What became of what was set aside.
#[derive(Debug, Default)]
pub struct Emptied {
    /// How many could be removed.
    pub removed: usize,
    /// Why the others could not.
    pub left: Vec<PathError>,
}

impl Trash {
    /// Returns the trash below a root, of which nothing is made yet.
    pub fn of(root: &Path) -> Self {
        Trash { dir: root.join("trash"), set_aside: Arc::default() }
    }

    /// Returns the one below another root, which tells of the same problems.
    pub fn also_of(&self, root: &Path) -> Self {
        Trash { dir: root.join("trash"), set_aside: Arc::clone(&self.set_aside) }
    }

    /// Removes a directory with all in it, or sets aside what is left of it. Either way nothing is there
    /// any more; that there was nothing is fine.
    ///
    /// It has to be on the file system of the trash.
    ///
    /// # Errors
    ///
    /// Fails if it can neither be removed nor moved.
    pub fn remove(&self, path: &Path) -> Result<(), PathError> {
        let Err(source) = remove_tree(path) else { return Ok(()) };
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let aside = self.dir.join(format!("{:016x}-{name}", random_u64()));
        DirBuilder::new().recursive(true).mode(0o700).create(&self.dir).at("make", &self.dir)?;
        debug!(path = %path.display(), to = %aside.display(), %source, "set aside");
        match fs::rename(path, &aside) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            // Why it cannot be removed says more than why it cannot be moved.
            Err(_) => return Err(source),
        }
        self.all_set_aside().push(SetAside { path: aside, source });
        Ok(())
    }

    /// Returns what has been set aside since it was asked for last.
    pub fn take_set_aside(&self) -> Vec<SetAside> {
        std::mem::take(&mut self.all_set_aside())
    }

    /// Returns what is in it, of whatever process.
    pub fn contents(&self) -> Result<Vec<PathBuf>, PathError> {
        match fs::read_dir(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            entries => Ok(entries.at("list", &self.dir)?.flatten().map(|e| e.path()).collect()),
        }
    }

    /// Returns about how much of the disk it takes.
    pub fn disk_bytes(&self) -> Result<u64, PathError> {
        self.contents()?.iter().map(|path| disk_bytes(path)).sum()
    }

    /// Tries again to remove all that is in it.
    pub fn empty(&self) -> Result<Emptied, PathError> {
        let mut emptied = Emptied::default();
        for path in self.contents()? {
            match remove_tree(&path) {
                Ok(()) => emptied.removed += 1,
                Err(error) => emptied.left.push(error),
            }
        }
        if emptied.left.is_empty() {
            // Another process may set something aside meanwhile.
            let _ = fs::remove_dir(&self.dir);
        }
        Ok(emptied)
    }

    fn all_set_aside(&self) -> std::sync::MutexGuard<'_, Vec<SetAside>> {
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
    use crate::sys::mount::within_new;
    use crate::sys::{loop_device, mount};

    #[test]
    fn what_can_be_removed_leaves_no_trash() {
        let dir = tempfile::tempdir().unwrap();
        let trash = Trash::of(dir.path());
        let tree = dir.path().join("tree");
        fs::create_dir_all(tree.join("a/b")).unwrap();
        trash.remove(&tree).unwrap();
        trash.remove(&tree).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(trash.take_set_aside().is_empty());
        assert_eq!(trash.empty().unwrap().removed, 0);
    }

    /// Runs a program of e2fsprogs, and returns what it prints.
    fn run(program: &str, args: &[&str], image: &Path) -> String {
        let output = Command::new(program).args(args).arg(image).output();
        let output = output.unwrap_or_else(|error| panic!("{program} of e2fsprogs: {error}"));
        assert!(output.status.success(), "{program}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// A block of a directory is lost, as when a disk goes bad.
    #[test]
    fn what_the_disk_has_lost_is_set_aside_and_all_else_goes() {
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
        within_new(|| {
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
            // The next one has the same name.
            fs::create_dir_all(tree.join("lost")).unwrap();
            trash.remove(&tree)?;
            assert!(!tree.exists() && trash.take_set_aside().is_empty());
            assert_eq!(trash.empty()?.left.len(), 1);
            mount::unmount(&root)
        })
        .unwrap();
    }

    #[test]
    fn what_cannot_be_removed_is_set_aside_until_it_can() {
        if !geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let trash = Trash::of(dir.path());
        let tree = dir.path().join("tree");
        fs::create_dir_all(tree.join("a/b")).unwrap();
        fs::write(tree.join("file"), "").unwrap();
        within_new(|| {
            mount::memory(&tree.join("a/b"), 0o700, None)?;
            trash.also_of(dir.path()).remove(&tree)?;
            assert!(!tree.exists());
            let [aside] = trash.take_set_aside().try_into().unwrap();
            assert_eq!(aside.source.path, tree.join("a/b"));
            assert!(aside.path.join("a/b").is_dir() && !aside.path.join("file").exists());
            assert!(trash.take_set_aside().is_empty());
            let emptied = trash.empty()?;
            assert_eq!(
                (emptied.removed, emptied.left[0].path.clone()),
                (0, aside.path.join("a/b"))
            );
            mount::unmount(&aside.path.join("a/b"))?;
            assert_eq!(trash.empty()?.removed, 1);
            Ok::<_, PathError>(())
        })
        .unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
