//! Layers above those of an image, and reading layers without a mount.

use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use oci_hooks_engine::rootfs::{self, LayerStack};
use oci_hooks_files::beneath::ConfinedRoot;
use oci_hooks_testsupport::program;
use rustix::fs::{CWD, FileType, Mode, OFlags, XattrFlags, fstat, mknodat, setxattr};

use crate::container::setup::{spec, with_each_engine};

#[test]
fn additional_layers_are_above_the_image() {
    with_each_engine(|engine, image| {
        let dir = program::temporary_directory();
        let layers: Vec<_> = ["one", "two"].map(|name| dir.path().join(name)).into();
        for layer in &layers {
            fs::create_dir_all(layer.join("etc")).unwrap();
            fs::write(layer.join("etc/added"), layer.file_name().unwrap().as_encoded_bytes())
                .unwrap();
        }
        let mut spec = spec(image, "test $(cat /etc/added) = two && echo mine > /etc/added");
        spec.layers.clone_from(&layers);
        let prepared = engine.prepare(spec).unwrap();
        assert!(prepared.rootfs.path.join("bin/busybox").exists());
        let status = prepared.run(|_| ()).unwrap().status;
        assert!(status.success(), "{status}");
        assert_eq!(fs::read_to_string(layers[1].join("etc/added")).unwrap(), "two");
    });
}

/// Pseudo-random numbers, the same in each run.
struct Numbers(u64);

impl Numbers {
    fn next_below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        usize::try_from(self.0 >> 33).unwrap() % limit
    }
}

const NAMES: [&str; 3] = ["a", "b", "c"];
const TARGETS: [&str; 8] = ["/a", "b", "../c", "/a/b", "../../b/c", "a/../b", "/none", "."];

/// Fills a directory of a layer; most names are in several layers.
fn fill(dir: &Path, depth: usize, numbers: &mut Numbers) {
    for name in NAMES {
        let path = dir.join(name);
        match numbers.next_below(9) {
            0 | 1 => fs::write(&path, path.to_str().unwrap()).unwrap(),
            2 => symlink(TARGETS[numbers.next_below(TARGETS.len())], &path).unwrap(),
            3 => mknodat(CWD, &path, FileType::CharacterDevice, Mode::empty(), 0).unwrap(),
            kind @ 4..=7 if depth < 3 => {
                fs::create_dir(&path).unwrap();
                if kind == 4 {
                    setxattr(&path, "trusted.overlay.opaque", b"y", XattrFlags::empty()).unwrap();
                }
                fill(&path, depth + 1, numbers);
            }
            _ => {}
        }
    }
}

/// Returns all paths of up to this many names.
fn paths(length: usize) -> Vec<PathBuf> {
    let mut all = Vec::new();
    let mut last = vec![PathBuf::from("/")];
    for _ in 0..length {
        let names = || NAMES.iter().chain(&[".."]);
        last = last.iter().flat_map(|path| names().map(|name| path.join(name))).collect();
        all.extend_from_slice(&last);
    }
    all
}

#[test]
fn unmounted_layers_are_read_like_by_the_kernel() {
    program::require_root();
    let paths = paths(4);
    let mut found = 0;
    for seed in 0..24 {
        let dir = program::temporary_directory();
        let mut numbers = Numbers(seed);
        let layers: Vec<_> = (0..4).map(|at| dir.path().join(at.to_string())).collect();
        for layer in &layers {
            fs::create_dir(layer).unwrap();
            fill(layer, 0, &mut numbers);
        }
        let container = dir.path().join("container");
        fs::create_dir(&container).unwrap();
        let mounted = rootfs::mount(&rootfs::RootfsRequest::new(&layers, &container)).unwrap();
        assert_eq!(mounted.backing, rootfs::RootfsBacking::Overlay);
        let root = ConfinedRoot::new(&mounted.path).unwrap();
        let stack = LayerStack::new(&layers);
        for path in &paths {
            let real = root.open_as_root(path, OFlags::PATH, Mode::empty()).ok();
            let real = real.map(|file| FileType::from_raw_mode(fstat(&file).unwrap().st_mode));
            let seen = stack.find(path).unwrap();
            assert_eq!(seen.as_ref().map(|seen| seen.kind), real, "{seed}: {path:?}");
            found += usize::from(seen.is_some());
            if real == Some(FileType::RegularFile) {
                let file = root.open_as_root(path, OFlags::RDONLY, Mode::empty()).unwrap();
                let mut content = Vec::new();
                File::from(file).read_to_end(&mut content).unwrap();
                assert_eq!(stack.read(path, 1000).unwrap(), Some(content), "{seed}: {path:?}");
                // The reported path has no symlinks, so the kernel finds the file there.
                root.open(&seen.unwrap().path, OFlags::RDONLY, Mode::empty()).unwrap();
            }
        }
        drop(root);
        rootfs::unmount(&container).unwrap();
    }
    assert!(found > 1000, "{found}");
}
