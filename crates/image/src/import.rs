//! Import of images from files: OCI layouts (directory or archive) and `docker save` archives.

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
pub use files::{FileReader, ImageFiles};
use oci_hooks_host::thread::{ConcurrentWork, spawn_or_call};

use super::layer::LayerBlob;
use super::store::{Image, ImageStore, NewImage};
use super::{
    Descriptor, Digest, ImageConfiguration, ImageReference, MAX_MANIFEST_BYTES, ManifestDocument,
    ManifestIndex, Platform,
};

const MAX_INDEXES: usize = 4;

/// Annotation with the full image name in Docker's OCI layouts, where `ANNOTATION_REF_NAME` has
/// only the tag.
const NAME_ANNOTATION: &str = "io.containerd.image.name";

/// One image in `manifest.json` of `docker save`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct SavedImage {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

/// File of a layer, with its descriptor if there is a manifest.
struct LayerFile {
    name: String,
    descriptor: Option<Descriptor>,
}

struct LocatedImage {
    digest: Digest,
    id: Digest,
    configuration: Vec<u8>,
    layers: Vec<LayerFile>,
}

impl ImageStore {
    /// Imports an image from an OCI layout (directory or archive) or a `docker save` archive, and
    /// names it `reference`. Archives may be compressed. The image stays in the store while the
    /// returned value exists.
    ///
    /// Of several images, the one with the name is imported, or else the one for this machine's
    /// platform.
    pub fn import(&self, path: &Path, reference: &ImageReference) -> Result<Image, ImportError> {
        self.import_onto(path, reference, &[])
    }

    /// Imports an image as [`import`](Self::import) does, but skips layers that also belong to one
    /// of the images `bases`, which the store already has.
    pub fn import_onto(
        &self,
        path: &Path,
        reference: &ImageReference,
        bases: &[Image],
    ) -> Result<Image, ImportError> {
        let options = self.options();
        let files = ImageFiles::open(path, &options.root, options.limits.bytes)?;
        let host = Platform::host();
        let found = if files.has("index.json") {
            layout(&files, reference, &host)?
        } else if files.has("manifest.json") {
            find_saved(&files, reference)?
        } else {
            return Err(ImportError::Format { path: path.to_owned() });
        };
        let configuration = ImageConfiguration::parse(&found.configuration)?;
        let diff_ids = &configuration.rootfs.diff_ids;
        if diff_ids.len() != found.layers.len() {
            return Err(ImportError::LayerCount {
                files: found.layers.len(),
                diff_ids: diff_ids.len(),
            });
        }
        let reservation = Arc::new(self.reserve(diff_ids)?);
        let stored: BTreeSet<_> = bases.iter().flat_map(|base| &base.diff_ids).collect();
        let layers = found.layers.iter().zip(diff_ids);
        let layers: Vec<_> = layers.filter(|(_, diff_id)| !stored.contains(diff_id)).collect();
        self.unpack_files(&files, &layers)?;
        // Stored under the host's platform, a lookup finds the image even if its own is more
        // specific.
        let fits = host.suitability(&configuration.platform).is_some();
        let image = self.commit_image(&NewImage {
            reference,
            platform: if fits { &host } else { &configuration.platform },
            digest: &found.digest,
            id: &found.id,
            configuration: &found.configuration,
            access: None,
        })?;
        Ok(image.with_reservation(reservation))
    }

    fn unpack_files(
        &self,
        files: &ImageFiles,
        layers: &[(&LayerFile, &Digest)],
    ) -> Result<(), ImportError> {
        let next = AtomicUsize::new(0);
        let work = || {
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some((layer, diff_id)) = layers.get(at) else { return Ok(()) };
                let result = self.unpack_file(files, layer, diff_id);
                if result.is_err() {
                    next.store(layers.len(), Ordering::Relaxed);
                    return result;
                }
            }
        };
        let threads = thread::available_parallelism().map_or(1, NonZero::get).min(layers.len());
        thread::scope(|scope| {
            let workers: Vec<_> = (0..threads).map(|_| spawn_or_call(scope, work)).collect();
            let results: Vec<_> = workers.into_iter().map(ConcurrentWork::join).collect();
            results.into_iter().collect()
        })
    }

    fn unpack_file(
        &self,
        files: &ImageFiles,
        layer: &LayerFile,
        diff_id: &Digest,
    ) -> Result<(), ImportError> {
        let (reader, size) = files.open_file(&layer.name)?;
        let descriptor = layer.descriptor.as_ref();
        let digest = descriptor.map(|descriptor| &descriptor.digest);
        // The diff ID is checked anyway.
        let digest = digest.filter(|digest| *digest != diff_id);
        let size = descriptor.map_or(size, |descriptor| descriptor.size);
        self.unpack_blob(LayerBlob { reader, digest, size }, diff_id)?;
        Ok(())
    }
}

/// Finds the image in an OCI layout.
fn layout(
    files: &ImageFiles,
    reference: &ImageReference,
    host: &Platform,
) -> Result<LocatedImage, ImportError> {
    let bytes = read(files, "index.json", MAX_MANIFEST_BYTES)?;
    let mut document = ManifestDocument::parse(&bytes, Some(MediaType::ImageIndex.as_ref()))?;
    let mut digest = Digest::of(&bytes);
    for _ in 0..MAX_INDEXES {
        let index = match document {
            ManifestDocument::Index(index) => select_named(index, reference)?,
            ManifestDocument::Manifest(manifest) => {
                manifest.check_image()?;
                let configuration = blob(files, &manifest.config)?;
                let layers = manifest.layers.into_iter().map(|descriptor| LayerFile {
                    name: descriptor.digest.blob_name(),
                    descriptor: Some(descriptor),
                });
                let (id, layers) = (manifest.config.digest, layers.collect());
                return Ok(LocatedImage { digest, id, configuration, layers });
            }
        };
        let chosen = index.choose(host)?;
        let bytes = blob(files, chosen)?;
        document = ManifestDocument::parse(&bytes, Some(chosen.media_type.as_ref()))?;
        digest = chosen.digest.clone();
    }
    Err(ImportError::Indexes)
}

/// Keeps only the images with the full name; if there are none, those with the tag; if there are
/// none either, all. Fails if several images are left, or none, and no platform tells them apart.
fn select_named(
    mut index: ManifestIndex,
    reference: &ImageReference,
) -> Result<ManifestIndex, ImportError> {
    let full = [reference.to_string(), reference.familiar_name()];
    let is_named = |descriptor: &Descriptor| names(descriptor).any(|name| full.contains(name));
    let is_tagged = |descriptor: &Descriptor| {
        names(descriptor).any(|name| reference.tag() == Some(name.as_str()))
    };
    if index.manifests.iter().any(is_named) {
        index.manifests.retain(is_named);
    } else if index.manifests.iter().any(is_tagged) {
        index.manifests.retain(is_tagged);
    }
    // Neither name nor platform selects one of the images.
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

/// Finds the image in a `docker save` archive.
fn find_saved(files: &ImageFiles, reference: &ImageReference) -> Result<LocatedImage, ImportError> {
    let bytes = read(files, "manifest.json", MAX_MANIFEST_BYTES)?;
    let mut images: Vec<SavedImage> = serde_json::from_slice(&bytes).map_err(ImportError::Saved)?;
    let tags = |image: &SavedImage| -> BTreeSet<String> {
        let tags = image.repo_tags.iter().flatten();
        tags.filter_map(|tag| tag.parse().ok()).map(|tag: ImageReference| tag.to_string()).collect()
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
    // Without a manifest, the image ID stands for its digest.
    Ok(LocatedImage { digest: id.clone(), id, configuration, layers: layers.collect() })
}

/// Reads an index, a manifest or a configuration of the layout, and checks its size and digest.
fn blob(files: &ImageFiles, descriptor: &Descriptor) -> Result<Vec<u8>, ImportError> {
    let name = descriptor.digest.blob_name();
    let bytes = read(files, &name, MAX_MANIFEST_BYTES)?;
    if bytes.len() as u64 != descriptor.size || !descriptor.digest.is_of(&bytes) {
        return Err(ImportError::Digest { name });
    }
    Ok(bytes)
}

fn read(files: &ImageFiles, name: &str, max_bytes: u64) -> Result<Vec<u8>, ImportError> {
    let (reader, _) = files.open_file(name)?;
    let mut bytes = Vec::new();
    let result = reader.take(max_bytes + 1).read_to_end(&mut bytes);
    result.map_err(|source| ImportError::Read { name: name.to_owned(), source })?;
    if bytes.len() as u64 > max_bytes {
        return Err(ImportError::TooLarge { name: name.to_owned(), limit_bytes: max_bytes });
    }
    Ok(bytes)
}
