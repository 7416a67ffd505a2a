//! Images from files: layouts, directories of `docker save`, and archives.
//!
//! The first byte selects the format; in directories, files refer to each other in the syntax of `linked`.

#![no_main]

use std::fs;
use std::path::Path;

use libfuzzer_sys::fuzz_target;
use oci_hooks_image::{Digest, ImageReference, Platform};

#[path = "parts/archive.rs"]
mod archive;
#[path = "parts/linked.rs"]
mod linked;
#[path = "parts/scratch.rs"]
mod scratch;

use scratch::Scratch;

fuzz_target!(|input: &[u8]| {
    let Some((&kind, rest)) = input.split_first() else { return };
    let scratch = Scratch::new();
    let path = match kind % 3 {
        0 => layout(&scratch, rest),
        1 => write_saved_image(&scratch, rest),
        _ => {
            let mut archive = rest.to_vec();
            archive::correct_checksums(&mut archive);
            scratch.write("image", &archive)
        }
    };
    import(&scratch, &path);
    scratch.check();
});

/// Writes an index, and the blobs that it refers to by digest.
fn layout(scratch: &Scratch, input: &[u8]) -> std::path::PathBuf {
    let mut parts = linked::split_linked(input, |part| part).into_iter();
    scratch.write("image/index.json", &parts.next().unwrap_or_default());
    for part in parts {
        scratch.write(Path::new("image/blobs/sha256").join(Digest::of(&part).hex()), &part);
    }
    scratch.path("image")
}

/// Writes a manifest, a configuration and two layers.
fn write_saved_image(scratch: &Scratch, input: &[u8]) -> std::path::PathBuf {
    let parts = linked::split_linked(input, |part| part);
    for (name, part) in ["manifest.json", "config.json", "a.tar", "b.tar"].iter().zip(&parts) {
        scratch.write(Path::new("image").join(name), part);
    }
    scratch.path("image")
}

fn import(scratch: &Scratch, path: &Path) {
    let store = scratch.store();
    let reference: ImageReference = "example.com/image:1".parse().unwrap();
    let layers = || fs::read_dir(scratch.path("store/layers")).unwrap().count();
    match store.import(path, &reference) {
        Err(error) => {
            drop(error.to_string());
            assert!(store.images().unwrap().is_empty());
        }
        Ok(image) => {
            let found = [Platform::host(), image.platform.clone()];
            let found = found.iter().find_map(|platform| store.find(&reference, platform).unwrap());
            assert_eq!(found.as_ref(), Some(&image));
            assert!(image.layers.iter().all(|layer| layer.is_dir()));
            assert!(image.layers.len() <= image.diff_ids.len() && layers() <= image.diff_ids.len());
            drop((image, found));
            assert_eq!(store.remove(&reference).unwrap().len(), 1);
            assert_eq!(layers(), 0);
        }
    }
}
