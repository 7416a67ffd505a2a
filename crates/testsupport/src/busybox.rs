//! An image in a store, added without a registry, for tests that run containers with the library.

use std::fs;

use oci_hooks_image::{Descriptor, Digest, Image, ImageStore, MediaType, NewImage, Platform};
use serde_json::json;

use crate::{program, rootfs};

/// Adds a busybox image to the store.
pub fn image(store: &ImageStore) -> Image {
    let archive = program::temporary_directory();
    let archive = archive.path().join("layer.tar");
    rootfs::write_tar(&archive);
    let bytes = fs::read(&archive).unwrap();
    let digest = Digest::of(&bytes);
    let size = bytes.len() as u64;
    let descriptor = Descriptor::new(MediaType::ImageLayer, digest.clone(), size);
    store.unpack_layer(&descriptor, &digest, bytes.as_slice()).unwrap();
    let configuration =
        json!({"os": "linux", "architecture": "", "rootfs": {"diff_ids": [digest.as_str()]}});
    let configuration = configuration.to_string();
    let new = NewImage {
        reference: &"busybox".parse().unwrap(),
        platform: &Platform::host(),
        digest: &Digest::of(b"manifest"),
        id: &Digest::of(configuration.as_bytes()),
        configuration: configuration.as_bytes(),
        access: None,
    };
    store.commit_image(&new).unwrap()
}
