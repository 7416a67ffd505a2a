//! Pulls images: resolves a reference, and streams the missing layers from the registry into the store.

use tracing::info_span;

use self::fetch::MAX_CONFIGURATION_BYTES;
use super::config::ImageConfiguration;
use super::digest::Digest;
use super::manifest::{ManifestDocument, ManifestError};
use super::platform::Platform;
use super::progress::ProgressEvent;
use super::reference::ImageReference;
use super::registry::{RegistryClient, RegistryError, RegistryRepository};
use super::store::{Image, ImageStore};

mod fetch;
mod request;

pub use request::{PullError, PullPolicy, PullRequest};

/// Pulls an image into the store, where it stays while the returned value exists.
///
/// A private image in the store is returned only if the registry grants these credentials access to
/// it. If the registry is not asked, with [`PullPolicy::Never`], or does not answer, they must be
/// the credentials that the image was pulled with.
///
/// A layer stored for another image is used only if the registry has served its blob, or confirms
/// that it does; otherwise it is fetched again.
pub fn pull(
    store: &ImageStore,
    client: &RegistryClient,
    request: &PullRequest<'_>,
) -> Result<Image, PullError> {
    pull_by_policy(store, client, request).map_err(|error| {
        let hint = error.registry_error().and_then(client.options().hint);
        match hint {
            Some(hint) => PullError::Hinted { error: Box::new(error), hint },
            None => error,
        }
    })
}

fn pull_by_policy(
    store: &ImageStore,
    client: &RegistryClient,
    request: &PullRequest<'_>,
) -> Result<Image, PullError> {
    let reference = request.reference;
    let _span = info_span!("pull", image = %reference).entered();
    let stored = store.hold(reference, request.platform)?;
    if let Some(image) = &stored
        && may_fall_back_to_stored(request.policy, image)
        && let Some(since) = store.silence(reference.registry())
        && was_pulled_with_login(request, image.access.as_deref())?
    {
        let error =
            PullError::RecentlyUnreachable { registry: reference.registry().to_owned(), since };
        request.progress.event(ProgressEvent::Outdated { reference, error: &error });
        return Ok(image.clone());
    }
    let open = || client.repository(reference, request.credentials, request.progress);
    match (request.policy, stored) {
        (PullPolicy::Missing | PullPolicy::Never, Some(image)) if image.access.is_none() => {
            Ok(image)
        }
        (PullPolicy::Never, Some(image)) => {
            if was_pulled_with_login(request, image.access.as_deref())? {
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
            repository.set_has_fallback(true);
            match can_read(&repository, &image.digest) {
                Ok(true) => Ok(image),
                Ok(false) => {
                    repository.set_has_fallback(false);
                    fetch::fetch(store, client, &repository, request, None)
                }
                Err(error) => fall_back_to_stored(store, request, image, error.into()),
            }
        }
        (PullPolicy::Newer, Some(image)) => {
            let repository = open()?;
            // Until the image is known to have changed.
            repository.set_has_fallback(true);
            let fetched = fetch::fetch(store, client, &repository, request, Some(image.clone()));
            fetched.or_else(|error| fall_back_to_stored(store, request, image, error))
        }
        (PullPolicy::Always, stored) => fetch::fetch(store, client, &open()?, request, stored),
        (PullPolicy::Missing | PullPolicy::Newer, None) => {
            fetch::fetch(store, client, &open()?, request, None)
        }
    }
}

/// Returns the stored image if the registry fails temporarily and these credentials may have the
/// image.
fn fall_back_to_stored(
    store: &ImageStore,
    request: &PullRequest<'_>,
    image: Image,
    error: PullError,
) -> Result<Image, PullError> {
    if !error.is_transient() || !was_pulled_with_login(request, image.access.as_deref())? {
        return Err(error);
    }
    let reference = request.reference;
    if error.is_unresponsive() {
        store.note_unreachable(reference.registry());
    }
    request.progress.event(ProgressEvent::Outdated { reference, error: &error });
    Ok(image)
}

/// Returns whether a pull asks the registry about a stored image, and uses the image if the registry
/// does not answer.
fn may_fall_back_to_stored(policy: PullPolicy, image: &Image) -> bool {
    match policy {
        PullPolicy::Newer => true,
        PullPolicy::Missing => image.access.is_some(),
        PullPolicy::Always | PullPolicy::Never => false,
    }
}

/// Returns whether an image is public, or was pulled with these credentials.
fn was_pulled_with_login(
    request: &PullRequest<'_>,
    access: Option<&str>,
) -> Result<bool, RegistryError> {
    let Some(print) = access else { return Ok(true) };
    let reference = request.reference;
    let login = request.credentials.find(reference.registry(), reference.repository())?;
    Ok(login.is_some_and(|login| login.has_fingerprint(print)))
}

/// Returns whether the registry grants these credentials access to an image; false if it no longer
/// has this digest, but perhaps another image of the same name.
fn can_read(repository: &RegistryRepository<'_>, digest: &Digest) -> Result<bool, RegistryError> {
    match repository.digest_of(digest.as_str()) {
        Ok(_) => Ok(true),
        Err(RegistryError::NotFound { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns the configuration of an image in `repository` for a platform. Stores nothing.
///
/// A registry that does not answer is asked once.
///
/// # Errors
///
/// Fails if the registry does not serve the image, or has none for the platform.
pub fn configuration(
    repository: &RegistryRepository<'_>,
    reference: &ImageReference,
    platform: &Platform,
) -> Result<ImageConfiguration, PullError> {
    repository.set_has_fallback(true);
    let mut found = repository.document(reference.target())?;
    if let ManifestDocument::Index(index) = &found.document {
        found = repository.document_of(index.choose(platform)?)?;
    }
    let ManifestDocument::Manifest(manifest) = found.document else {
        return Err(ManifestError::NestedIndex.into());
    };
    let bytes = repository.blob(&manifest.config, MAX_CONFIGURATION_BYTES)?;
    Ok(ImageConfiguration::parse(&bytes)?)
}
