//! Images that a Dockerfile begins with or copies from. They are downloaded as images of containers are, in the host's
//! network and with its logins, and given to buildah as files: it has neither.

use std::path::{Path, PathBuf};

use super::BuildError;
use crate::container::{read_json_if_there, write_json};
use crate::container_hook::engine::backend::EngineBackend;
use crate::container_hook::error::HookError;
use crate::image::{Credentials, Digest, Downloaded, Platform, PullRequest, Reference, download};
use crate::sys::error::chain;
use crate::sys::fs::{PathError, make_private};
use crate::sys::privilege::outside;
use crate::sys::removal::remove_tree;

/// The most images of a Dockerfile that are downloaded.
const MAX_IMAGES: usize = 16;

/// The images of a Dockerfile.
#[derive(Default)]
pub struct Bases {
    /// Those that buildah's store lacks, or has older.
    pub new: Vec<Base>,
    /// Whether some cannot be had. Not every one is needed: the build says so if it is.
    pub are_incomplete: bool,
}

/// An image for buildah's store.
pub struct Base {
    image: Reference,
    downloaded: Downloaded,
    /// The name of its OCI layout, in the directory of all of them.
    pub directory: String,
    /// Where is recorded which image of this name is in buildah's store.
    record: PathBuf,
}

/// Downloads images to a directory each.
pub fn download_all(
    backend: &EngineBackend<'_>,
    credentials: &Credentials,
    images: &[Reference],
    directories: &Path,
    records: &Path,
) -> Result<Bases, BuildError> {
    let log = backend.context.log;
    let (platform, policy) = (Platform::host(), backend.settings.pull);
    let mut bases = Bases::default();
    for image in images.iter().take(MAX_IMAGES) {
        let name = Digest::of(image.to_string().as_bytes());
        let record = records.join(format!("{}.json", name.hex()));
        // One that cannot be read is as good as none.
        let known: Option<Downloaded> = read_json_if_there(&record).ok().flatten();
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
                bases.new.push(Base { image: image.clone(), downloaded, directory, record });
                continue;
            }
            Ok(None) => {}
            // buildah has one, which is not for these credentials, or not any more.
            Err(error) if known.is_some() => return Err(error.into()),
            Err(error) => {
                log.line(&format!("{}: {}", image.familiar(), chain(&error)));
                bases.are_incomplete = true;
            }
        }
        remove_tree(&path)?;
    }
    Ok(bases)
}

impl Base {
    /// Returns the id that buildah gives the image.
    pub(super) fn id(&self) -> &str {
        self.downloaded.id.hex()
    }

    /// Returns a name by which buildah finds the image that the Dockerfile names. One that is named by a digest is found
    /// by that, in its repository.
    pub(super) fn name(&self) -> String {
        match self.image.digest() {
            None => self.image.to_string(),
            Some(digest) => {
                let (registry, repository) = (self.image.registry(), self.image.repository());
                format!("{registry}/{repository}:digest-{}", &digest.hex()[..32])
            }
        }
    }

    /// Records that nothing is known of the image in buildah's store, which is about to change.
    pub(super) fn forget(&self) -> Result<(), PathError> {
        remove_tree(&self.record)
    }

    /// Records which image is in buildah's store.
    pub(super) fn remember(&self) -> Result<(), HookError> {
        Ok(write_json(&self.record, &self.downloaded)?)
    }
}
