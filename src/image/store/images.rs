//! Images: the records that say of which layers they are.

use std::fs::{self, File, FileTimes};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::error::StoreError;
use super::layers::Layer;
use super::leases::Reservation;
use super::open::{Store, names, read_record, remove_file, write_record};
use crate::image::layer::Blob;
use crate::image::{Configuration, Digest, ImageConfig, Platform, Reference, RootFs};
use crate::sys::fs::PathContext as _;

/// An image in the store, ready to run.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Image {
    /// The name it was asked for by.
    pub reference: Reference,
    /// The digest of its manifest.
    pub digest: Digest,
    /// The digest of its configuration.
    pub id: Digest,
    /// What it is built for.
    pub platform: Platform,
    /// What a container of it runs with.
    pub config: ImageConfig,
    /// The directories of its layers, bottom to top, from the last one that hides all below it.
    pub layers: Vec<PathBuf>,
    /// The diff IDs of its layers, bottom to top.
    pub diff_ids: Vec<Digest>,
    /// The fingerprint of the login that it was pulled with; none if anybody may have it.
    pub access: Option<String>,
    /// What keeps its layers, if anything does.
    pub(super) held: Held,
}

/// What keeps the layers of an image while the value that stands for it is there.
#[derive(Clone, Debug, Default)]
pub struct Held {
    _reservation: Option<Arc<Reservation>>,
}

impl PartialEq for Held {
    /// The image is the same, kept or not.
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// An image whose layers are in the store, and which is to get a name there.
#[derive(Clone, Copy, Debug)]
pub struct NewImage<'a> {
    pub reference: &'a Reference,
    /// The platform it was asked for, and will be.
    pub platform: &'a Platform,
    /// The digest of its manifest.
    pub digest: &'a Digest,
    /// The digest of its configuration, from the manifest.
    pub id: &'a Digest,
    pub configuration: &'a [u8],
    /// The fingerprint of the login that it was pulled with; none if anybody may have it.
    pub access: Option<&'a str>,
}

/// One line of a list of images.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Summary {
    pub reference: Reference,
    /// The platform it was asked for.
    pub platform: Platform,
    /// The digest of the manifest.
    pub digest: Digest,
    /// The digest of the configuration.
    pub id: Digest,
    /// About how much of the disk its layers take, those shared with other images too.
    pub size_bytes: u64,
    /// When it was pulled, or used last.
    pub used: SystemTime,
}

/// What an image's record says.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    reference: String,
    platform: Platform,
    digest: Digest,
    id: Digest,
    /// The document as it is: its digest is the ID.
    configuration: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    access: Option<String>,
}

/// An image's record and what can be said of it without its layers.
pub struct Named {
    pub path: PathBuf,
    pub diff_ids: Vec<Digest>,
    pub summary: Summary,
}

impl Store {
    /// Returns an image if all of it is there.
    ///
    /// Only what is leased is sure to stay.
    pub fn find(
        &self,
        reference: &Reference,
        platform: &Platform,
    ) -> Result<Option<Image>, StoreError> {
        let path = self.image_path(reference, platform);
        let record = match read_record::<Record>(&path) {
            // It is pulled again, whatever is in its place.
            Err(error) if error.is_unreadable() => return Ok(None),
            record => record?,
        };
        let Some(record) = record else { return Ok(None) };
        let configuration = Configuration::parse(record.configuration.as_bytes())?;
        let mut layers = Vec::new();
        for diff_id in &configuration.rootfs.diff_ids {
            let Some(layer) = self.layer(diff_id)? else { return Ok(None) };
            layers.push(layer);
        }
        Ok(Some(image(reference, record, configuration, layers)))
    }

    /// Returns an image if all of it is there, and keeps its layers as long as the value or a copy of
    /// it is there. Whoever leases it before that can count on it.
    pub fn hold(
        &self,
        reference: &Reference,
        platform: &Platform,
    ) -> Result<Option<Image>, StoreError> {
        let Some(image) = self.find(reference, platform)? else { return Ok(None) };
        let reservation = Arc::new(self.reserve(&image.diff_ids)?);
        // What was removed before it was reserved is gone.
        let found = self.find(reference, platform)?;
        Ok(found
            .filter(|found| found.diff_ids == image.diff_ids)
            .map(|found| found.held_by(reservation)))
    }

    /// Gives an image its name, or a name another image. All layers must be there.
    pub fn commit_image(&self, new: &NewImage<'_>) -> Result<Image, StoreError> {
        if !new.id.is_of(new.configuration) {
            return Err(StoreError::ConfigurationDigest { expected: new.id.clone() });
        }
        let configuration = Configuration::parse(new.configuration)?;
        let record = Record {
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

    /// Makes an image of one layer, which is an archive that is not compressed. Nobody finds it in the store: its layer
    /// stays while the value is there, and for those who lease it.
    pub fn unnamed_image(
        &self,
        reference: &Reference,
        configuration: &Configuration,
        layer: &[u8],
    ) -> Result<Image, StoreError> {
        let diff_id = Digest::of(layer);
        let reservation = Arc::new(self.reserve(std::slice::from_ref(&diff_id))?);
        let blob = Blob { reader: layer, digest: None, size: layer.len() as u64 };
        let layer = self.unpack_blob(blob, &diff_id)?;
        let rootfs = RootFs { diff_ids: vec![diff_id] };
        let configuration = Configuration { rootfs, ..configuration.clone() };
        let text = serde_json::to_string(&configuration).expect("strings can be written");
        let id = Digest::of(text.as_bytes());
        let record = Record {
            reference: reference.to_string(),
            platform: configuration.platform.clone(),
            digest: id.clone(),
            id,
            configuration: text,
            access: None,
        };
        Ok(image(reference, record, configuration, vec![layer]).held_by(reservation))
    }

    /// Removes the layers that no image needs, nor anybody who leased them.
    pub fn remove_unneeded_layers(&self) -> Result<(), StoreError> {
        let excluded = self.exclude()?;
        self.remove_unneeded(excluded)?;
        Ok(())
    }

    /// Returns all images, by name.
    pub fn images(&self) -> Result<Vec<Summary>, StoreError> {
        let mut images: Vec<_> = self.named()?.into_iter().map(|named| named.summary).collect();
        images.sort_by_key(|image| (image.reference.to_string(), image.platform.to_string()));
        Ok(images)
    }

    /// Takes a name away, for all platforms, and removes the layers that nobody else needs.
    /// Returns the images that had it.
    pub fn remove(&self, reference: &Reference) -> Result<Vec<Summary>, StoreError> {
        let mut removed = Vec::new();
        let excluded = self.exclude()?;
        for named in self.named()? {
            if named.summary.reference == *reference {
                remove_file(&named.path)?;
                removed.push(named.summary);
            }
        }
        self.remove_unneeded(excluded)?;
        Ok(removed)
    }

    /// Returns all images whose records can be read.
    pub(super) fn named(&self) -> Result<Vec<Named>, StoreError> {
        let images = self.images_dir();
        let mut all = Vec::new();
        for name in names(&images)?.into_iter().filter(|name| name.ends_with(".json")) {
            let path = images.join(name);
            let Ok(Some(record)) = read_record::<Record>(&path) else { continue };
            let Ok(reference) = record.reference.parse() else { continue };
            let Ok(configuration) = Configuration::parse(record.configuration.as_bytes()) else {
                continue;
            };
            let used = match fs::metadata(&path).and_then(|metadata| metadata.modified()) {
                // Removed meanwhile.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                result => result.at("read", &path)?,
            };
            let diff_ids = configuration.rootfs.diff_ids;
            let mut size_bytes = 0;
            for diff_id in &diff_ids {
                size_bytes += self.readable_layer(diff_id)?.map_or(0, |layer| layer.size_bytes);
            }
            let summary = Summary {
                reference,
                platform: record.platform,
                digest: record.digest,
                id: record.id,
                size_bytes,
                used,
            };
            all.push(Named { path, diff_ids, summary });
        }
        Ok(all)
    }

    /// Returns why images have no readable record that a newer version of this program wrote: nobody else
    /// can tell which layers they need.
    pub(super) fn newer_images(&self) -> Result<Vec<StoreError>, StoreError> {
        let images = self.images_dir();
        let paths = names(&images)?.into_iter().filter(|name| name.ends_with(".json"));
        let read = |name: String| read_record::<Record>(&images.join(name)).err();
        Ok(paths.filter_map(read).filter(StoreError::is_newer).collect())
    }

    /// Notes that an image is used now.
    pub(super) fn touch(&self, image: &Image) -> Result<(), StoreError> {
        for named in self.named()? {
            if named.summary.reference == image.reference && named.summary.id == image.id {
                let file = File::options().write(true).open(&named.path).at("open", &named.path)?;
                let now = FileTimes::new().set_modified(SystemTime::now());
                file.set_times(now).at("set the time of", &named.path)?;
            }
        }
        Ok(())
    }

    pub(super) fn all_layers(
        &self,
        reference: &Reference,
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

    fn image_path(&self, reference: &Reference, platform: &Platform) -> PathBuf {
        let key = Digest::of(format!("{reference} {platform}").as_bytes());
        self.images_dir().join(format!("{}.json", key.hex()))
    }
}

impl Image {
    /// Has a reservation of its layers live as long as the image.
    pub(in crate::image) fn held_by(self, reservation: Arc<Reservation>) -> Self {
        Image { held: Held { _reservation: Some(reservation) }, ..self }
    }
}

fn image(
    reference: &Reference,
    record: Record,
    configuration: Configuration,
    layers: Vec<Layer>,
) -> Image {
    // Overlayfs does not look for the mark on the root directory itself.
    let lowest = layers.iter().rposition(|layer| layer.is_opaque).unwrap_or(0);
    Image {
        reference: reference.clone(),
        digest: record.digest,
        id: record.id,
        platform: configuration.platform,
        config: configuration.config,
        layers: layers.into_iter().skip(lowest).map(|layer| layer.path).collect(),
        diff_ids: configuration.rootfs.diff_ids,
        access: record.access,
        held: Held::default(),
    }
}
