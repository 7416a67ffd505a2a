//! What an image is run with, without any of its layers.

use super::PullError;
use super::fetch::MAX_CONFIGURATION_BYTES;
use crate::image::config::Configuration;
use crate::image::manifest::{Document, ManifestError};
use crate::image::platform::Platform;
use crate::image::reference::Reference;
use crate::image::registry::Repository;

/// Returns the configuration of an image, which `repository` has, for a platform. Nothing is stored.
///
/// A registry that does not answer is asked twice at most.
///
/// # Errors
///
/// Fails if the registry does not give it, or there is none for the platform.
pub fn configuration(
    repository: &Repository<'_>,
    reference: &Reference,
    platform: &Platform,
) -> Result<Configuration, PullError> {
    repository.hurry(true);
    let mut found = repository.document(reference.target())?;
    if let Document::Index(index) = &found.document {
        found = repository.document_of(index.choose(platform)?)?;
    }
    let Document::Manifest(manifest) = found.document else {
        return Err(ManifestError::NestedIndex.into());
    };
    let bytes = repository.blob(&manifest.config, MAX_CONFIGURATION_BYTES)?;
    Ok(Configuration::parse(&bytes)?)
}
