//! Pulling: from a name to an image in the store.

mod configuration;
mod download;
mod fetch;

use serde::{Deserialize, Serialize};
use tracing::info_span;

use super::config::ConfigurationError;
use super::credentials::{Credentials, HelperError};
use super::digest::Digest;
use super::layer::UnpackError;
use super::manifest::ManifestError;
use super::platform::Platform;
use super::progress::{Progress, ProgressEvent};
use super::reference::Reference;
use super::registry::{OpenError, RegistryClient, RegistryError, Repository};
use super::store::{Image, Store, StoreError};
use crate::sys::fs::PathError;

pub use configuration::configuration;
pub use download::{Downloaded, download};

/// When the registry is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PullPolicy {
    /// Each time. Layers that are in the store are not fetched again.
    Always,
    /// If the image is not in the store.
    Missing,
    /// Each time; if the registry does not answer, or cannot send all of a newer image, the image in
    /// the store will do.
    #[default]
    Newer,
    Never,
}

/// An image that is wanted.
#[derive(Clone, Copy)]
pub struct PullRequest<'a> {
    pub reference: &'a Reference,
    /// What it will run on.
    pub platform: &'a Platform,
    /// Who wants it. Somebody else's credentials that it was pulled with before do not count.
    pub credentials: &'a Credentials,
    /// When the registry is asked.
    pub policy: PullPolicy,
    pub progress: &'a dyn Progress,
}

/// Why there is no image.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PullError {
    /// The registry does not give it.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// A credential helper gave no answer.
    #[error(transparent)]
    Helper(#[from] HelperError),
    /// The store cannot take it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// It cannot be written to a directory.
    #[error(transparent)]
    Path(#[from] PathError),
    /// What the registry gives is not an image for this platform.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// Its configuration cannot be read.
    #[error(transparent)]
    Configuration(#[from] ConfigurationError),
    /// It is not in the store, and must not be pulled.
    #[error("{} not found in the store, and the pull policy is never", reference.familiar())]
    NotStored { reference: Box<Reference> },
    /// It is in the store, for others.
    #[error(
        "{} is in the store, but was pulled with other credentials, and the pull policy is never: use \
         another policy", reference.familiar()
    )]
    Private { reference: Box<Reference> },
    /// It is for another platform.
    #[error("{} is for {found}, not for {wanted}", reference.familiar())]
    Platform {
        reference: Box<Reference>,
        /// The platform that it is for.
        found: Box<Platform>,
        /// The platform that it was wanted for.
        wanted: Box<Platform>,
    },
    /// Manifest and configuration contradict each other.
    #[error("{} has {layers} layers, but its configuration has {diff_ids}", reference.familiar())]
    Layers {
        reference: Box<Reference>,
        /// How many layers the manifest has.
        layers: usize,
        /// How many the configuration has.
        diff_ids: usize,
    },
}

impl PullError {
    /// Returns whether the registry may well give the image later.
    fn is_transient(&self) -> bool {
        let error = match self {
            PullError::Registry(error) => Some(error),
            // In the middle of a layer, which is read as a stream.
            PullError::Store(StoreError::Unpack { source: UnpackError::Read(error), .. }) => {
                error.get_ref().and_then(|error| error.downcast_ref())
            }
            _ => None,
        };
        error.is_some_and(RegistryError::is_transient)
    }
}

impl From<OpenError> for PullError {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Registry(error) => PullError::Registry(error),
            OpenError::Helper(error) => PullError::Helper(error),
        }
    }
}

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
