//! Importing images from files: OCI layouts, as a directory or an archive, and what `docker save`
//! writes.

mod error;
mod files;

use std::collections::BTreeSet;
use std::io::Read as _;
use std::num::NonZero;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use oci_spec::image::{ANNOTATION_REF_NAME, MediaType};
use serde::Deserialize;

pub use error::ImportError;
pub use files::{FileReader, Files};

use super::layer::Blob;
use super::store::{Image, NewImage, Store};
use super::{
    Configuration, Descriptor, Digest, Document, Index, MAX_MANIFEST_BYTES, Platform, Reference,
};
use crate::sys::thread::{Beside, beside};

/// Indexes may name indexes, but not without end.
const MAX_INDEXES: usize = 4;

/// What Docker adds to the images of an OCI layout for the name, where `ANNOTATION_REF_NAME` has only
/// the tag.
const NAME_ANNOTATION: &str = "io.containerd.image.name";

/// One image in `manifest.json` of `docker save`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

/// A layer among the files: its name, and what the manifest says of it, if there is one.
struct LayerFile {
    name: String,
    descriptor: Option<Descriptor>,
}

/// An image among the files.
struct Found {
    digest: Digest,
    id: Digest,
    configuration: Vec<u8>,
    layers: Vec<LayerFile>,
}

impl Store {
    /// Imports an image from an OCI layout (a directory, or an archive of one) or from an archive
    /// that `docker save` wrote, and gives it a name. Archives may be compressed. The image stays in
    /// the store while the value is there.
    ///
    /// Of several images the one is taken that has the name, or that fits this machine.
    pub fn import(&self, path: &Path, reference: &Reference) -> Result<Image, ImportError> {
        let options = self.options();
        let files = Files::open(path, &options.root, options.limits.bytes)?;
        let host = Platform::host();
        let found = if files.has("index.json") {
            layout(&files, reference, &host)?
        } else if files.has("manifest.json") {
            saved(&files, reference)?
        } else {
            return Err(ImportError::Format { path: path.to_owned() });
        };
        let configuration = Configuration::parse(&found.configuration)?;
        let diff_ids = &configuration.rootfs.diff_ids;
        if diff_ids.len() != found.layers.len() {
            return Err(ImportError::LayerCount {
                files: found.layers.len(),
                diff_ids: diff_ids.len(),
            });
        }
        let reservation = Arc::new(self.reserve(diff_ids)?);
        self.unpack_files(&files, &found.layers, diff_ids)?;
        // Asked for by the host's platform, an image of it is found though it is more exact.
        let fits = host.suitability(&configuration.platform).is_some();
        let image = self.commit_image(&NewImage {
            reference,
            platform: if fits { &host } else { &configuration.platform },
            digest: &found.digest,
            id: &found.id,
            configuration: &found.configuration,
            access: None,
        })?;
        Ok(image.held_by(reservation))
    }

    /// Unpacks layers, several at once.
    fn unpack_files(
        &self,
        files: &Files,
        layers: &[LayerFile],
        diff_ids: &[Digest],
    ) -> Result<(), ImportError> {
        let next = AtomicUsize::new(0);
        let work = || {
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let (Some(layer), Some(diff_id)) = (layers.get(at), diff_ids.get(at)) else {
                    return Ok(());
                };
                let result = self.unpack_file(files, layer, diff_id);
                if result.is_err() {
                    next.store(layers.len(), Ordering::Relaxed);
                    return result;
                }
            }
        };
        let threads = thread::available_parallelism().map_or(1, NonZero::get).min(layers.len());
        thread::scope(|scope| {
            let workers: Vec<_> = (0..threads).map(|_| beside(scope, work)).collect();
            let results: Vec<_> = workers.into_iter().map(Beside::join).collect();
            results.into_iter().collect()
        })
    }

    fn unpack_file(
        &self,
        files: &Files,
        layer: &LayerFile,
        diff_id: &Digest,
    ) -> Result<(), ImportError> {
        let (reader, size) = files.open_file(&layer.name)?;
        let descriptor = layer.descriptor.as_ref();
        let digest = descriptor.map(|descriptor| &descriptor.digest);
        // The digest of the archive is checked anyway.
        let digest = digest.filter(|digest| *digest != diff_id);
        let size = descriptor.map_or(size, |descriptor| descriptor.size);
        self.unpack_blob(Blob { reader, digest, size }, diff_id)?;
        Ok(())
    }
}

/// Finds the image in an OCI layout.
fn layout(files: &Files, reference: &Reference, host: &Platform) -> Result<Found, ImportError> {
    let bytes = read(files, "index.json", MAX_MANIFEST_BYTES)?;
    let mut document = Document::parse(&bytes, Some(MediaType::ImageIndex.as_ref()))?;
    let mut digest = Digest::of(&bytes);
    for _ in 0..MAX_INDEXES {
        let index = match document {
            Document::Index(index) => named(index, reference)?,
            Document::Manifest(manifest) => {
                manifest.check_image()?;
                let configuration = blob(files, &manifest.config)?;
                let layers = manifest.layers.into_iter().map(|descriptor| LayerFile {
                    name: descriptor.digest.blob_name(),
                    descriptor: Some(descriptor),
                });
                let (id, layers) = (manifest.config.digest, layers.collect());
                return Ok(Found { digest, id, configuration, layers });
            }
        };
        let chosen = index.choose(host)?;
        let bytes = blob(files, chosen)?;
        document = Document::parse(&bytes, Some(chosen.media_type.as_ref()))?;
        digest = chosen.digest.clone();
    }
    Err(ImportError::Indexes)
}

/// Keeps those of an index's images that have the name, if any has it, or else those that have its
/// tag.
fn named(mut index: Index, reference: &Reference) -> Result<Index, ImportError> {
    let full = [reference.to_string(), reference.familiar()];
    let is_named = |descriptor: &Descriptor| names(descriptor).any(|name| full.contains(name));
    let is_tagged = |descriptor: &Descriptor| {
        names(descriptor).any(|name| reference.tag() == Some(name.as_str()))
    };
    if index.manifests.iter().any(is_named) {
        index.manifests.retain(is_named);
    } else if index.manifests.iter().any(is_tagged) {
        index.manifests.retain(is_tagged);
    }
    // Neither name nor platform tells which of them is meant.
    let has_no_platform = |descriptor: &Descriptor| descriptor.platform.is_none();
    if index.manifests.len() != 1 && index.manifests.iter().all(has_no_platform) {
        let available = index.manifests.iter().flat_map(names).cloned().collect();
        return Err(ImportError::Several { available });
    }
    Ok(index)
}

fn names(descriptor: &Descriptor) -> impl Iterator<Item = &String> {
    [NAME_ANNOTATION, ANNOTATION_REF_NAME]
        .into_iter()
        .filter_map(|annotation| descriptor.annotations.get(annotation))
}

/// Finds the image in what `docker save` wrote.
fn saved(files: &Files, reference: &Reference) -> Result<Found, ImportError> {
    let bytes = read(files, "manifest.json", MAX_MANIFEST_BYTES)?;
    let mut images: Vec<Saved> = serde_json::from_slice(&bytes).map_err(ImportError::Saved)?;
    let tags = |image: &Saved| -> BTreeSet<String> {
        let tags = image.repo_tags.iter().flatten();
        tags.filter_map(|tag| tag.parse().ok()).map(|tag: Reference| tag.to_string()).collect()
    };
    if images.len() != 1 {
        let available = images.iter().flat_map(tags).collect();
        images.retain(|image| tags(image).contains(&reference.to_string()));
        if images.len() != 1 {
            return Err(ImportError::Several { available });
        }
    }
    let image = images.remove(0);
    let configuration = read(files, &image.config, MAX_MANIFEST_BYTES)?;
    let id = Digest::of(&configuration);
    let layers = image.layers.into_iter().map(|name| LayerFile { name, descriptor: None });
    // There is no manifest that had a digest.
    Ok(Found { digest: id.clone(), id, configuration, layers: layers.collect() })
}

/// Reads a document that the layout has by its digest.
fn blob(files: &Files, descriptor: &Descriptor) -> Result<Vec<u8>, ImportError> {
    let name = descriptor.digest.blob_name();
    let bytes = read(files, &name, MAX_MANIFEST_BYTES)?;
    if bytes.len() as u64 != descriptor.size || !descriptor.digest.is_of(&bytes) {
        return Err(ImportError::Digest { name });
    }
    Ok(bytes)
}

fn read(files: &Files, name: &str, max_bytes: u64) -> Result<Vec<u8>, ImportError> {
    let (reader, _) = files.open_file(name)?;
    let mut bytes = Vec::new();
    let result = reader.take(max_bytes + 1).read_to_end(&mut bytes);
    result.map_err(|source| ImportError::Read { name: name.to_owned(), source })?;
    if bytes.len() as u64 > max_bytes {
        return Err(ImportError::TooLarge { name: name.to_owned() });
    }
    Ok(bytes)
}
