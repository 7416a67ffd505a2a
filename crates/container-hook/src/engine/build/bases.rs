//! Base images of a Dockerfile, and images it copies from. They are downloaded like images of containers, through the
//! host's network and with its logins, and passed to buildah as files, because it has neither.

use std::path::{Path, PathBuf};

use oci_hooks_engine::container::{read_json_if_there, write_json};
use oci_hooks_files::error::chain;
use oci_hooks_files::fs::{PathError, make_private};
use oci_hooks_host::privilege::outside;
use oci_hooks_host::removal::remove_tree;
use oci_hooks_image::{
    Credentials, Digest, DownloadedImage, ImageReference, Platform, PullRequest, download,
};

use super::BuildError;
use crate::engine::backend::EngineBackend;
use crate::error::HookError;

/// Maximum number of images of a Dockerfile that are downloaded.
const MAX_IMAGES: usize = 16;

/// The images of a Dockerfile.
#[derive(Default)]
pub struct Bases {
    /// Images that are missing or outdated in buildah's store.
    pub new: Vec<BaseImage>,
    /// Set if an image cannot be downloaded. The build fails only if it needs the image.
    pub are_incomplete: bool,
}

/// An image for buildah's store.
pub struct BaseImage {
    image: ImageReference,
    downloaded: DownloadedImage,
    /// Name of its OCI layout, in the directory of all layouts.
    pub directory: String,
    /// Record of the image with this name in buildah's store.
    record: PathBuf,
}

/// Downloads images, each to its own directory.
pub fn download_all(
    backend: &EngineBackend<'_>,
    credentials: &Credentials,
    images: &[ImageReference],
    directories: &Path,
    records: &Path,
) -> Result<Bases, BuildError> {
    let log = backend.context.log;
    let (platform, policy) = (Platform::host(), backend.settings.pull);
    let mut bases = Bases::default();
    for image in images.iter().take(MAX_IMAGES) {
        let name = Digest::of(image.to_string().as_bytes());
        let record = records.join(format!("{}.json", name.hex()));
        // An unreadable record counts as missing.
        let known: Option<DownloadedImage> = read_json_if_there(&record).ok().flatten();
        let directory = bases.new.len().to_string();
        let path = directories.join(&directory);
        make_private(&path)?;
        let request = PullRequest {
            reference: image,
            platform: &platform,
            credentials,
            policy,
            progress: log,
        };
        match outside::run(|| download(backend.registries, &request, known.as_ref(), &path)) {
            Ok(Some(downloaded)) => {
                bases.new.push(BaseImage { image: image.clone(), downloaded, directory, record });
                continue;
            }
            Ok(None) => {}
            // buildah's store has the image, but these credentials do not permit it, or no longer do.
            Err(error) if known.is_some() => return Err(error.into()),
            Err(error) => {
                log.line(&format!("{}: {}", image.familiar_name(), chain(&error)));
                bases.are_incomplete = true;
            }
        }
        remove_tree(&path)?;
    }
    Ok(bases)
}

impl BaseImage {
    /// Returns the image id in buildah's store.
    pub(super) fn id(&self) -> &str {
        self.downloaded.id.hex()
    }

    /// Returns a name by which buildah finds the image for the Dockerfile. buildah finds images with a digest by the
    /// digest, if their repository matches.
    pub(super) fn name(&self) -> String {
        match self.image.digest() {
            None => self.image.to_string(),
            Some(digest) => {
                let (registry, repository) = (self.image.registry(), self.image.repository());
                format!("{registry}/{repository}:digest-{}", &digest.hex()[..32])
            }
        }
    }

    /// Removes the record of the image in buildah's store, which is about to change.
    pub(super) fn forget(&self) -> Result<(), PathError> {
        remove_tree(&self.record)
    }

    /// Records the image in buildah's store.
    pub(super) fn remember(&self) -> Result<(), HookError> {
        Ok(write_json(&self.record, &self.downloaded)?)
    }
}
