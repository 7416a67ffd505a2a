//! Pull requests and their errors.

use std::time::Duration;

use oci_hooks_files::error::chain;
use serde::{Deserialize, Serialize};

use crate::config::ConfigurationError;
use crate::credentials::Credentials;
use crate::layer::UnpackError;
use crate::manifest::ManifestError;
use crate::platform::Platform;
use crate::progress::PullProgress;
use crate::reference::ImageReference;
use crate::registry::RegistryError;
use crate::store::{SILENCE, StoreError};

/// Policy for asking the registry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PullPolicy {
    /// The registry is asked on each pull. Layers in the store are not fetched again.
    Always,
    /// The registry is asked if the image is not in the store, or was pulled with a login.
    Missing,
    /// The registry is asked on each pull; the stored image is used if the registry does not answer
    /// or cannot send all of a newer image.
    #[default]
    Newer,
    Never,
}

/// Image to pull.
#[derive(Clone, Copy)]
pub struct PullRequest<'a> {
    pub reference: &'a ImageReference,
    pub platform: &'a Platform,
    /// Credentials of the user who pulls. Those of earlier pulls by other users do not count.
    pub credentials: &'a Credentials,
    pub policy: PullPolicy,
    pub progress: &'a dyn PullProgress,
}

/// Errors of pulling an image.
#[derive(Debug, thiserror::Error)]
pub enum PullError {
    /// The registry failed or does not serve the image.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The registry's document is not an image for this platform.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// The configuration cannot be read.
    #[error(transparent)]
    Configuration(#[from] ConfigurationError),
    /// The image is not in the store, and must not be pulled.
    #[error(
        "{} not found in the store, and the pull policy is never: pull the image, or use another policy",
        reference.familiar_name()
    )]
    NotStored { reference: Box<ImageReference> },
    /// The registry could not be reached a moment ago.
    #[error(
        "{registry} could not be reached {} s ago, and is asked again only {} s after a failure", since.as_secs(),
        SILENCE.as_secs()
    )]
    RecentlyUnreachable { registry: String, since: Duration },
    /// The image is in the store, but was pulled with other credentials.
    #[error(
        "{} is in the store, but was pulled with other credentials, and the pull policy is never: use \
         another policy", reference.familiar_name()
    )]
    Private { reference: Box<ImageReference> },
    /// The image is for another platform.
    #[error(
        "image {} is for {found}, not for {wanted}: use one that is built for {wanted}",
        reference.familiar_name()
    )]
    Platform { reference: Box<ImageReference>, found: Box<Platform>, wanted: Box<Platform> },
    /// Manifest and configuration contradict each other.
    #[error(
        "image {}: the manifest lists {layers} layers, the configuration {diff_ids}: push the image again",
        reference.familiar_name()
    )]
    Layers {
        reference: Box<ImageReference>,
        /// Number of layers in the manifest.
        layers: usize,
        /// Number of layers in the configuration.
        diff_ids: usize,
    },
    /// Another error, which a setting of the program may prevent.
    #[error("{}; {hint}", chain(&**error))]
    Hinted { error: Box<PullError>, hint: &'static str },
}

impl PullError {
    /// Returns whether the registry did not answer. Returns false if mirrors failed before it.
    pub(super) fn is_unresponsive(&self) -> bool {
        matches!(self, PullError::Registry(error) if error.is_unresponsive())
    }

    /// Returns whether a later pull may succeed.
    pub(super) fn is_transient(&self) -> bool {
        self.registry_error().is_some_and(RegistryError::is_transient)
    }

    /// Returns the error of the registry, if it is one.
    pub(super) fn registry_error(&self) -> Option<&RegistryError> {
        match self {
            PullError::Registry(error) => Some(error),
            // Layers are read as a stream, so the registry's error is wrapped.
            PullError::Store(StoreError::Unpack { source: UnpackError::Read(error), .. }) => {
                error.get_ref().and_then(|error| error.downcast_ref())
            }
            _ => None,
        }
    }
}
