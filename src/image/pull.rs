//! Pulling: from a name to an image in the store.

use tracing::info_span;

use self::fetch::MAX_CONFIGURATION_BYTES;
use super::config::Configuration;
use super::credentials::HelperError;
use super::digest::Digest;
use super::manifest::{Document, ManifestError};
use super::platform::Platform;
use super::progress::ProgressEvent;
use super::reference::Reference;
use super::registry::{RegistryClient, RegistryError, Repository};
use super::store::{Image, Store};

mod download;
mod fetch;
mod request;

pub use download::{Downloaded, download};
pub use request::{PullError, PullPolicy, PullRequest};

/// Returns an image that is in the store afterwards, whole, and stays there while the value is there.
///
/// An image that only known users may have is never given out on the word of the store: the
/// registry is asked whether it gives it to these credentials. Where nobody is asked, with
/// [`PullPolicy::Never`], or nobody answers, they must be those that it was pulled with.
///
/// Nor is a layer that is in the store for another image: the registry must have given its blob, or
/// say that it does, or it is fetched again.
pub fn pull(
    store: &Store,
    client: &RegistryClient,
    request: &PullRequest<'_>,
) -> Result<Image, PullError> {
    let reference = request.reference;
    let _span = info_span!("pull", image = %reference).entered();
    let stored = store.hold(reference, request.platform)?;
    let open = || client.repository(reference, request.credentials, request.progress);
    match (request.policy, stored) {
        (PullPolicy::Missing | PullPolicy::Never, Some(image)) if image.access.is_none() => {
            Ok(image)
        }
        (PullPolicy::Never, Some(image)) => {
            if is_theirs(request, image.access.as_deref())? {
                Ok(image)
            } else {
                Err(PullError::Private { reference: Box::new(reference.clone()) })
            }
        }
        (PullPolicy::Never, None) => {
            Err(PullError::NotStored { reference: Box::new(reference.clone()) })
        }
        (PullPolicy::Missing, Some(image)) => {
            let repository = open()?;
            repository.hurry(true);
            match may_read(&repository, &image.digest) {
                Ok(true) => Ok(image),
                Ok(false) => {
                    repository.hurry(false);
                    fetch::fetch(store, client, &repository, request, None)
                }
                Err(error) => stored_instead(request, image, error.into()),
            }
        }
        (PullPolicy::Newer, Some(image)) => {
            let repository = open()?;
            // Until it is known that there is another one.
            repository.hurry(true);
            let fetched = fetch::fetch(store, client, &repository, request, Some(image.clone()));
            fetched.or_else(|error| stored_instead(request, image, error))
        }
        (PullPolicy::Always, stored) => fetch::fetch(store, client, &open()?, request, stored),
        (PullPolicy::Missing | PullPolicy::Newer, None) => {
            fetch::fetch(store, client, &open()?, request, None)
        }
    }
}

/// Returns the image in the store if its registry cannot give one now, and these credentials may have
/// it.
fn stored_instead(
    request: &PullRequest<'_>,
    image: Image,
    error: PullError,
) -> Result<Image, PullError> {
    if !error.is_transient() || !is_theirs(request, image.access.as_deref())? {
        return Err(error);
    }
    let reference = request.reference;
    request.progress.event(ProgressEvent::Outdated { reference, error: &error });
    Ok(image)
}

/// Returns whether an image is everybody's, or was pulled with these credentials.
fn is_theirs(request: &PullRequest<'_>, access: Option<&str>) -> Result<bool, HelperError> {
    let Some(print) = access else { return Ok(true) };
    let reference = request.reference;
    let login = request.credentials.find(reference.registry(), reference.repository())?;
    Ok(login.is_some_and(|login| login.has_fingerprint(print)))
}

/// Asks whether an image is given to these credentials; false if the registry no longer has it,
/// but perhaps another one of the same name.
fn may_read(repository: &Repository<'_>, digest: &Digest) -> Result<bool, RegistryError> {
    match repository.digest_of(digest.as_str()) {
        Ok(_) => Ok(true),
        Err(RegistryError::NotFound { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

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
