//! Archives from a registry or a download, unpacked as a layer or as plain files.

#![no_main]

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use libfuzzer_sys::fuzz_target;
use oci_hooks_host::privilege::Privilege;
use oci_hooks_image::{Descriptor, Digest, MediaType, UnpackTarget, unpack_archive};

#[path = "parts/archive.rs"]
mod archive;
#[path = "parts/scratch.rs"]
mod scratch;

use scratch::Scratch;

/// The owner of plain files.
const OWNER: (u32, u32) = (1234, 5678);

// The first byte selects the kind of archive; uncompressed archives get correct checksums.
fuzz_target!(|input: &[u8]| {
    let Some((&first, rest)) = input.split_first() else { return };
    let mut archive = rest.to_vec();
    archive::correct_checksums(&mut archive);
    let scratch = Scratch::new();
    if first % 2 == 0 {
        layer(&scratch, &archive);
    } else {
        plain(&scratch, &archive);
    }
    scratch.check();
});

fn layer(scratch: &Scratch, archive: &[u8]) {
    let store = scratch.store();
    let digest = Digest::of(archive);
    let blob = Descriptor::new(MediaType::ImageLayer, digest.clone(), archive.len() as u64);
    match store.unpack_layer(&blob, &digest, archive) {
        // A rejected layer leaves nothing behind.
        Err(error) => {
            drop(error.to_string());
            assert!(!store.has_layer(&digest).unwrap());
            assert_eq!(fs::read_dir(scratch.path("store/layers")).unwrap().count(), 0);
        }
        Ok(layer) => {
            assert!(layer.path.starts_with(scratch.path("store")) && layer.entries <= 200);
            assert!(fs::symlink_metadata(&layer.path).unwrap().is_dir());
            assert_eq!(store.layer(&digest).unwrap().as_ref(), Some(&layer));
            assert_eq!(store.unpack_layer(&blob, &digest, archive).unwrap(), layer);
        }
    }
}

fn plain(scratch: &Scratch, archive: &[u8]) {
    let tree = scratch.path("tree");
    let limits = scratch.store().options().limits;
    let target = UnpackTarget { tree: &tree, privilege: Privilege::Root.limit_to_own() };
    if let Ok(size_bytes) = unpack_archive(archive, OWNER, &limits, target) {
        assert!(size_bytes > 0);
        for entry in fs::read_dir(&tree).unwrap() {
            check_plain(&entry.unwrap().path());
        }
    }
}

/// Checks that there are only files, directories and links, all of one owner.
fn check_plain(path: &Path) {
    let metadata = fs::symlink_metadata(path).unwrap();
    assert_eq!((metadata.uid(), metadata.gid()), OWNER, "{path:?}");
    let kind = metadata.file_type();
    assert!(kind.is_file() || kind.is_dir() || kind.is_symlink(), "{path:?}");
    assert!(kind.is_symlink() || metadata.mode() & 0o7000 == 0, "{path:?}");
    if kind.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            check_plain(&entry.unwrap().path());
        }
    }
}
