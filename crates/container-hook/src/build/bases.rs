//! Base images of a Dockerfile, and images it copies from. They are pulled like images of containers, through the
//! host's network and with its logins. buildah, which has neither, gets their layers as a read-only store in the
//! format of `containers-storage` (`additionalimagestores` in containers-storage.conf(5)).

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use oci_hooks_files::error::chain;
use oci_hooks_files::fs::{PathContext as _, PathError};
use oci_hooks_host::privilege::Privilege;
use oci_hooks_host::tree::{self, CopyPurpose};
use oci_hooks_image::{Credentials, Digest, Image, ImageReference, Platform, PullRequest};
use oci_spec::image::MediaType;
use serde_json::{Value, json};

use crate::backend::EngineBackend;
use crate::fetch;

/// Maximum number of images of a Dockerfile that are pulled.
const MAX_IMAGES: usize = 16;

/// Creation time of images and layers, which the format requires.
const CREATED: &str = "1970-01-01T00:00:00Z";

/// The images that a Dockerfile names.
#[derive(Default)]
pub struct BaseImages {
    pub images: Vec<Image>,
    /// Set if an image cannot be pulled. The build fails only if it needs the image.
    pub has_missing_images: bool,
}

/// A layer to mount in buildah's read-only store.
pub struct LayerMount {
    pub layer: PathBuf,
    /// Target, beneath the store.
    pub target: PathBuf,
}

/// The layers and images added so far to the store of base images, which is read-only for buildah.
#[derive(Default)]
struct StoreIndex {
    /// If set, layers are copied instead of mounted.
    copies: bool,
    /// Layers by their ids.
    layers: BTreeMap<String, StoreLayer>,
    /// Records of the images, by their ids.
    images: BTreeMap<String, Value>,
    mounts: Vec<LayerMount>,
}

/// A layer of the store, shared by all images with the same layers up to it.
struct StoreLayer {
    record: Value,
    /// Names of this layer and of all lower ones, topmost first, joined with `:`.
    chain: String,
    has_files: bool,
}

impl BaseImages {
    /// Pulls images; logs the errors.
    pub fn pull(
        backend: &EngineBackend<'_>,
        credentials: &Credentials,
        images: &[ImageReference],
    ) -> Self {
        let log = backend.context.log;
        let (platform, policy) = (Platform::host(), backend.settings.pull);
        let mut bases = BaseImages::default();
        for reference in images.iter().take(MAX_IMAGES) {
            let request =
                PullRequest { reference, platform: &platform, credentials, policy, progress: log };
            match fetch::pull_named(backend, &request) {
                Ok(image) => bases.images.push(image),
                Err(error) => {
                    log.line(&format!("{}: {}", reference.familiar_name(), chain(&error)));
                    bases.has_missing_images = true;
                }
            }
        }
        bases
    }

    /// Writes a read-only store of the images to a directory, and returns the layers to mount there.
    ///
    /// Copies the files if buildah is in the user namespace of this process, where it could remount the
    /// layers writable.
    pub(super) fn write_store(
        &self,
        directory: &Path,
        privilege: Privilege,
    ) -> Result<Vec<LayerMount>, PathError> {
        let mut index = StoreIndex { copies: privilege.has_own_users(), ..StoreIndex::default() };
        for image in &self.images {
            let layer = index.add_layers(image, directory)?;
            index.add_image(image, &layer, directory)?;
        }
        let layers = index.layers.into_values().map(|layer| layer.record).collect();
        let images = index.images.into_values().collect();
        for (name, records) in [("layers", layers), ("images", images)] {
            let directory = directory.join(format!("overlay-{name}"));
            write(&directory.join(format!("{name}.json")), &Value::Array(records).to_string())?;
            write(&directory.join(format!("{name}.lock")), "")?;
        }
        Ok(index.mounts)
    }

    /// Writes empty blobs of the base layers to an OCI layout, so that buildah does not write these layers.
    pub(super) fn write_blobs(&self, layout: &Path) -> Result<(), PathError> {
        let diff_ids = self.images.iter().flat_map(|image| &image.diff_ids);
        diff_ids.into_iter().try_for_each(|id| write(&layout.join(id.blob_name()), ""))
    }
}

impl StoreIndex {
    /// Adds the layers of an image; returns the id of the topmost one.
    fn add_layers(&mut self, image: &Image, directory: &Path) -> Result<String, PathError> {
        let opaque = image.diff_ids.len() - image.layers.len();
        let (mut id, mut lower) = (String::new(), String::new());
        for (at, diff_id) in image.diff_ids.iter().enumerate() {
            let parent = id;
            // The id that containers-storage computes; buildah copies layers with other ids.
            id = match parent.is_empty() {
                true => diff_id.hex().to_owned(),
                false => {
                    Digest::of(format!("{parent}+{}", diff_id.hex()).as_bytes()).hex().to_owned()
                }
            };
            if !self.layers.contains_key(&id) {
                let layer = self.new_layer([&id, &parent], diff_id, &lower, directory)?;
                self.layers.insert(id.clone(), layer);
            }
            let stored = self.layers.get_mut(&id).expect("it was added");
            lower.clone_from(&stored.chain);
            // Layers below an opaque one are empty, unless another image needs them.
            if at < opaque || std::mem::replace(&mut stored.has_files, true) {
                continue;
            }
            let layer = image.layers[at - opaque].clone();
            let target = Path::new("overlay").join(&id).join("diff");
            // An overlay accepts each directory once (`ELOOP`).
            if self.copies || image.diff_ids[..at].contains(diff_id) {
                tree::copy(&layer, &directory.join(target), CopyPurpose::Plain.into())?;
            } else {
                self.mounts.push(LayerMount { layer, target });
            }
        }
        Ok(id)
    }

    /// Writes the directory of a layer, without its files.
    fn new_layer(
        &self,
        [id, parent]: [&str; 2],
        diff_id: &Digest,
        lower: &str,
        directory: &Path,
    ) -> Result<StoreLayer, PathError> {
        // A short name, because mount(2) takes the names of all layers in 4096 bytes.
        let link = format!("l/{}", self.layers.len());
        let overlay = directory.join("overlay");
        let files = overlay.join(id);
        make(&files.join("diff"))?;
        make(&overlay.join("l"))?;
        let at_link = overlay.join(&link);
        symlink(format!("../{id}/diff"), &at_link).with_path("create", &at_link)?;
        write(&files.join("link"), &link["l/".len()..])?;
        let mut record = json!({
            "id": id, "created": CREATED, "diff-digest": diff_id.as_str(), "diff-size": 0,
        });
        let mut chain = link;
        if !parent.is_empty() {
            record["parent"] = json!(parent);
            write(&files.join("lower"), lower)?;
            chain = format!("{chain}:{lower}");
        }
        Ok(StoreLayer { record, chain, has_files: false })
    }

    /// Adds an image, or another name of an image added before.
    fn add_image(&mut self, image: &Image, layer: &str, directory: &Path) -> Result<(), PathError> {
        // Image ids have 64 hexadecimal digits, regardless of the digest's algorithm.
        let id = Digest::of(image.configuration.as_bytes());
        let id = id.hex();
        let digest = image.reference.digest().unwrap_or(&image.digest);
        let configuration = image.configuration.as_bytes();
        let layers = image.diff_ids.iter().map(|diff_id| {
            json!({"mediaType": MediaType::ImageLayer.to_string(), "digest": diff_id.as_str(), "size": 0})
        });
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MediaType::ImageManifest.to_string(),
            "config": {
                "mediaType": MediaType::ImageConfig.to_string(),
                "digest": image.id.as_str(),
                "size": configuration.len(),
            },
            "layers": layers.collect::<Vec<_>>(),
        });
        let manifest = manifest.to_string();
        // The digest by which a Dockerfile names the image; it may be that of an index.
        let named = format!("manifest-{digest}");
        let files = directory.join("overlay-images").join(id);
        for (key, content) in [
            ("manifest", manifest.as_str()),
            (&named, &manifest),
            (image.id.as_str(), &image.configuration),
        ] {
            write(&files.join(file_name(key)), content)?;
        }
        let own = Digest::of(manifest.as_bytes());
        let record = self.images.entry(id.to_owned()).or_insert_with(|| {
            json!({
                "id": id, "digest": own.as_str(), "names": [], "layer": layer, "metadata": "{}",
                "big-data-names": ["manifest", image.id.as_str()],
                "big-data-sizes": {"manifest": manifest.len(), image.id.as_str(): configuration.len()},
                "big-data-digests": {"manifest": own.as_str(), image.id.as_str(): image.id.as_str()},
                "created": CREATED,
            })
        });
        let names = record["names"].as_array_mut().expect("it was made as one");
        names.push(json!(name(&image.reference)));
        record["big-data-names"].as_array_mut().expect("it was made as one").push(json!(named));
        record["big-data-sizes"][&named] = json!(manifest.len());
        record["big-data-digests"][&named] = json!(digest.as_str());
        Ok(())
    }
}

/// Returns the name under which buildah finds the image. If the Dockerfile gives a digest, buildah searches
/// by the digest in images of the same repository.
fn name(image: &ImageReference) -> String {
    match image.digest() {
        None => image.to_string(),
        Some(digest) => {
            let (registry, repository) = (image.registry(), image.repository());
            format!("{registry}/{repository}:digest-{}", &digest.hex()[..32])
        }
    }
}

/// Returns the file name for a key of an image, such as `manifest`, encoded as in
/// containers-storage.
fn file_name(key: &str) -> String {
    let is_plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'.';
    if key.bytes().all(is_plain) { key.to_owned() } else { format!("={}", STANDARD.encode(key)) }
}

fn make(directory: &Path) -> Result<(), PathError> {
    fs::create_dir_all(directory).with_path("create the directory", directory)
}

fn write(path: &Path, content: &str) -> Result<(), PathError> {
    make(path.parent().expect("it is in a directory"))?;
    fs::write(path, content).with_path("write", path)
}
