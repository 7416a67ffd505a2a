//! Finds, lists, commits and removes images: records of names, configurations and layers.

use std::fs::{self, File, FileTimes};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use oci_hooks_files::fs::{PathContext as _, remove_if_there};
use serde::{Deserialize, Serialize};

use super::error::StoreError;
use super::layers::Layer;
use super::leases::LayerReservation;
use super::open::{ImageStore, names, read_record, write_record};
use crate::layer::LayerBlob;
use crate::{Digest, ImageConfig, ImageConfiguration, ImageReference, Platform, RootFs};

/// An image in the store, ready to run.
#[derive(Clone, Debug, PartialEq)]
pub struct Image {
    /// Name by which it was looked up.
    pub reference: ImageReference,
    pub digest: Digest,
    pub id: Digest,
    /// Platform that it was built for.
    pub platform: Platform,
    /// The configuration as unchanged JSON, whose digest is the image ID.
    pub configuration: String,
    /// Defaults for containers of the image, from the configuration.
    pub config: ImageConfig,
    /// Directories of the layers, bottom to top, from the topmost opaque layer on.
    pub layers: Vec<PathBuf>,
    /// Highest user or group that a file in these layers belongs to.
    pub highest_owner: u32,
    /// Diff IDs of all layers, bottom to top.
    pub diff_ids: Vec<Digest>,
    /// Fingerprint of the login that it was pulled with; `None` if the image is public.
    pub access: Option<String>,
    /// Reservation of the layers, if any.
    pub(super) held: LayerHold,
}

/// Reservation that keeps the layers of an image while the value exists.
#[derive(Clone, Debug, Default)]
pub struct LayerHold {
    _reservation: Option<Arc<LayerReservation>>,
}

impl PartialEq for LayerHold {
    /// Reservations do not affect the equality of images.
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// Image whose layers are in the store, to be stored under a name.
#[derive(Clone, Copy, Debug)]
pub struct NewImage<'a> {
    pub reference: &'a ImageReference,
    /// Platform that was requested, and by which the image is found later.
    pub platform: &'a Platform,
    pub digest: &'a Digest,
    /// Digest of the configuration, from the manifest.
    pub id: &'a Digest,
    pub configuration: &'a [u8],
    /// Fingerprint of the login that it was pulled with; `None` if the image is public.
    pub access: Option<&'a str>,
}

/// Entry of a list of images.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageSummary {
    pub reference: ImageReference,
    pub platform: Platform,
    /// The digest of the manifest.
    pub digest: Digest,
    /// The digest of the configuration.
    pub id: Digest,
    /// Approximate disk usage of the layers, including those shared with other images.
    pub size_bytes: u64,
    /// Time of the pull, or of the last use.
    pub used: SystemTime,
}

/// Content of an image's record.
#[derive(Debug, Serialize, Deserialize)]
struct ImageRecord {
    reference: String,
    platform: Platform,
    digest: Digest,
    id: Digest,
    /// The configuration as unchanged JSON, whose digest is the image ID.
    configuration: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    access: Option<String>,
}

/// Path and summary of an image's record.
pub struct NamedImage {
    pub path: PathBuf,
    pub diff_ids: Vec<Digest>,
    pub summary: ImageSummary,
}

impl ImageStore {
    /// Returns an image if all its layers are in the store.
    ///
    /// Only leased layers are sure to stay.
    pub fn find(
        &self,
        reference: &ImageReference,
        platform: &Platform,
    ) -> Result<Option<Image>, StoreError> {
        let path = self.image_path(reference, platform);
        let record = match read_record::<ImageRecord>(&path) {
            // The image is pulled again, which replaces the record.
            Err(error) if error.is_unreadable() => return Ok(None),
            record => record?,
        };
        let Some(record) = record else { return Ok(None) };
        let configuration = ImageConfiguration::parse(record.configuration.as_bytes())?;
        let mut layers = Vec::new();
        for diff_id in &configuration.rootfs.diff_ids {
            let Some(layer) = self.layer(diff_id)? else { return Ok(None) };
            layers.push(layer);
        }
        Ok(Some(image(reference, record, configuration, layers)))
    }

    /// Returns an image if all its layers are in the store, and keeps them while the value or a
    /// clone of it exists. A lease taken in that time finds all layers.
    pub fn hold(
        &self,
        reference: &ImageReference,
        platform: &Platform,
    ) -> Result<Option<Image>, StoreError> {
        let Some(image) = self.find(reference, platform)? else { return Ok(None) };
        let reservation = Arc::new(self.reserve(&image.diff_ids)?);
        // Layers may have been removed before they were reserved.
        let found = self.find(reference, platform)?;
        Ok(found
            .filter(|found| found.diff_ids == image.diff_ids)
            .map(|found| found.with_reservation(reservation)))
    }

    /// Stores an image under its name, in place of any other image. All layers must be in the
    /// store.
    pub fn commit_image(&self, new: &NewImage<'_>) -> Result<Image, StoreError> {
        if !new.id.is_of(new.configuration) {
            return Err(StoreError::ConfigurationDigest { expected: new.id.clone() });
        }
        let configuration = ImageConfiguration::parse(new.configuration)?;
        let record = ImageRecord {
            reference: new.reference.to_string(),
            platform: new.platform.clone(),
            digest: new.digest.clone(),
            id: new.id.clone(),
            configuration: String::from_utf8_lossy(new.configuration).into_owned(),
            access: new.access.map(str::to_owned),
        };
        let _shared = self.share()?;
        let layers = self.all_layers(new.reference, &configuration.rootfs.diff_ids)?;
        write_record(&self.image_path(new.reference, new.platform), &record)?;
        Ok(image(new.reference, record, configuration, layers))
    }

    /// Creates an image of one layer, an uncompressed archive, without a name in the store. The
    /// layer stays while the value exists, and for leases of the image.
    pub fn create_unnamed_image(
        &self,
        reference: &ImageReference,
        configuration: &ImageConfiguration,
        layer: &[u8],
    ) -> Result<Image, StoreError> {
        let diff_id = Digest::of(layer);
        let reservation = Arc::new(self.reserve(std::slice::from_ref(&diff_id))?);
        let blob = LayerBlob { reader: layer, digest: None, size: layer.len() as u64 };
        let layer = self.unpack_blob(blob, &diff_id)?;
        let rootfs = RootFs { diff_ids: vec![diff_id] };
        let configuration = ImageConfiguration { rootfs, ..configuration.clone() };
        let text = serde_json::to_string(&configuration).expect("strings can be written");
        let id = Digest::of(text.as_bytes());
        let record = ImageRecord {
            reference: reference.to_string(),
            platform: configuration.platform.clone(),
            digest: id.clone(),
            id,
            configuration: text,
            access: None,
        };
        Ok(image(reference, record, configuration, vec![layer]).with_reservation(reservation))
    }

    /// Removes the layers that no image, lease or reservation needs.
    pub fn remove_unneeded_layers(&self) -> Result<(), StoreError> {
        let excluded = self.exclude()?;
        self.remove_unneeded(excluded)?;
        Ok(())
    }

    /// Returns all images, sorted by name.
    pub fn images(&self) -> Result<Vec<ImageSummary>, StoreError> {
        let mut images: Vec<_> =
            self.named_images()?.into_iter().map(|named| named.summary).collect();
        images.sort_by_key(|image| (image.reference.to_string(), image.platform.to_string()));
        Ok(images)
    }

    /// Removes a name, for all platforms, and the layers that are no longer needed. Returns the
    /// images that had the name.
    pub fn remove(&self, reference: &ImageReference) -> Result<Vec<ImageSummary>, StoreError> {
        let mut removed = Vec::new();
        let excluded = self.exclude()?;
        for named in self.named_images()? {
            if named.summary.reference == *reference {
                remove_if_there(&named.path)?;
                removed.push(named.summary);
            }
        }
        self.remove_unneeded(excluded)?;
        Ok(removed)
    }

    /// Returns all images with readable records.
    pub(super) fn named_images(&self) -> Result<Vec<NamedImage>, StoreError> {
        let images = self.images_dir();
        let mut all = Vec::new();
        for name in names(&images)?.into_iter().filter(|name| name.ends_with(".json")) {
            let path = images.join(name);
            let Ok(Some(record)) = read_record::<ImageRecord>(&path) else { continue };
            let Ok(reference) = record.reference.parse() else { continue };
            let Ok(configuration) = ImageConfiguration::parse(record.configuration.as_bytes())
            else {
                continue;
            };
            let used = match fs::metadata(&path).and_then(|metadata| metadata.modified()) {
                // Removed meanwhile.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                result => result.with_path("read", &path)?,
            };
            let diff_ids = configuration.rootfs.diff_ids;
            let mut size_bytes = 0;
            for diff_id in &diff_ids {
                size_bytes += self.readable_layer(diff_id)?.map_or(0, |layer| layer.size_bytes);
            }
            let summary = ImageSummary {
                reference,
                platform: record.platform,
                digest: record.digest,
                id: record.id,
                size_bytes,
                used,
            };
            all.push(NamedImage { path, diff_ids, summary });
        }
        Ok(all)
    }

    /// Returns the errors of image records that a newer version of this program wrote: the layers
    /// of these images are unknown.
    pub(super) fn newer_images(&self) -> Result<Vec<StoreError>, StoreError> {
        let images = self.images_dir();
        let paths = names(&images)?.into_iter().filter(|name| name.ends_with(".json"));
        let read = |name: String| read_record::<ImageRecord>(&images.join(name)).err();
        Ok(paths.filter_map(read).filter(StoreError::is_newer).collect())
    }

    /// Updates the time of an image's last use.
    pub(super) fn touch(&self, image: &Image) -> Result<(), StoreError> {
        for named in self.named_images()? {
            if named.summary.reference == image.reference && named.summary.id == image.id {
                let file =
                    File::options().write(true).open(&named.path).with_path("open", &named.path)?;
                let now = FileTimes::new().set_modified(SystemTime::now());
                file.set_times(now).with_path("set the time of", &named.path)?;
            }
        }
        Ok(())
    }

    pub(super) fn all_layers(
        &self,
        reference: &ImageReference,
        diff_ids: &[Digest],
    ) -> Result<Vec<Layer>, StoreError> {
        let layer = |diff_id: &Digest| {
            self.layer(diff_id)?.ok_or_else(|| StoreError::NoLayer {
                reference: Box::new(reference.clone()),
                diff_id: diff_id.clone(),
            })
        };
        diff_ids.iter().map(layer).collect()
    }

    fn image_path(&self, reference: &ImageReference, platform: &Platform) -> PathBuf {
        let key = Digest::of(format!("{reference} {platform}").as_bytes());
        self.images_dir().join(format!("{}.json", key.hex()))
    }
}

impl Image {
    /// Ties a reservation of the layers to the image.
    pub(crate) fn with_reservation(self, reservation: Arc<LayerReservation>) -> Self {
        Image { held: LayerHold { _reservation: Some(reservation) }, ..self }
    }
}

fn image(
    reference: &ImageReference,
    record: ImageRecord,
    configuration: ImageConfiguration,
    layers: Vec<Layer>,
) -> Image {
    // Overlayfs ignores the opaque attribute on the root directory of a layer.
    let lowest = layers.iter().rposition(|layer| layer.is_opaque).unwrap_or(0);
    Image {
        reference: reference.clone(),
        digest: record.digest,
        id: record.id,
        platform: configuration.platform,
        configuration: record.configuration,
        config: configuration.config,
        highest_owner: layers[lowest..]
            .iter()
            .map(|layer| layer.highest_owner)
            .max()
            .unwrap_or_default(),
        layers: layers.into_iter().skip(lowest).map(|layer| layer.path).collect(),
        diff_ids: configuration.rootfs.diff_ids,
        access: record.access,
        held: LayerHold::default(),
    }
}
