//! What an image is pulled with, and why it is not.

use serde::{Deserialize, Serialize};

use crate::image::config::ConfigurationError;
use crate::image::credentials::{Credentials, HelperError};
use crate::image::layer::UnpackError;
use crate::image::manifest::ManifestError;
use crate::image::platform::Platform;
use crate::image::progress::Progress;
use crate::image::reference::Reference;
use crate::image::registry::{OpenError, RegistryError};
use crate::image::store::StoreError;
use crate::sys::fs::PathError;

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
    pub(super) fn is_transient(&self) -> bool {
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
