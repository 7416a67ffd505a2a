//! A directory in memory for one input, with a file beside it that must not be touched.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use oci_hooks_image::{ImageStore, LayerLimits, StoreOptions};

pub struct Scratch {
    dir: tempfile::TempDir,
}

impl Scratch {
    pub fn new() -> Self {
        let scratch = Scratch { dir: tempfile::tempdir_in("/dev/shm").unwrap() };
        // At a path that inputs can name.
        scratch.write("outside/file", b"untouched");
        scratch
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Returns a store with small limits.
    pub fn store(&self) -> ImageStore {
        let limits = LayerLimits { bytes: 1 << 20, ratio: 200, entries: 200, depth: 16 };
        let (root, run) = (self.path("store"), self.path("run"));
        let mut options = StoreOptions::new(root, run);
        options.limits = limits;
        ImageStore::open(options).unwrap()
    }

    /// Writes a file, and the directories above it.
    pub fn write(&self, name: impl AsRef<Path>, content: &[u8]) -> PathBuf {
        let path = self.dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    /// Checks that nothing is outside of the expected directories.
    pub fn check(&self) {
        let outside = self.path("outside");
        let file = outside.join("file");
        assert_eq!(fs::read(&file).unwrap(), b"untouched");
        let (file, dir) = (fs::symlink_metadata(&file).unwrap(), fs::metadata(&outside).unwrap());
        let mine = fs::metadata("/proc/self").unwrap().uid();
        assert_eq!((file.uid(), file.mode() & 0o7111, file.nlink()), (mine, 0, 1));
        assert_eq!((dir.uid(), dir.mode() & 0o7000), (mine, 0));
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
        let allowed = ["outside", "store", "run", "tree", "image"];
        for entry in fs::read_dir(self.dir.path()).unwrap() {
            let name = entry.unwrap().file_name();
            assert!(allowed.iter().any(|allowed| name == *allowed), "{name:?} is outside");
        }
    }
}
