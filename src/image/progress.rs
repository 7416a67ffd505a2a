//! What happens during a pull, for those who show it.

use std::time::Duration;

use super::digest::Digest;
use super::reference::Reference;
use super::registry::RegistryError;
use crate::sys::error::chain;

/// Hears what happens during a pull.
///
/// Several threads call it, for the bytes of a layer many times a second: it counts and returns.
pub trait Progress: Sync {
    /// Takes note of something that happened.
    fn event(&self, event: ProgressEvent<'_>);
}

/// Something that happened during a pull.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum ProgressEvent<'a> {
    /// The registry said what the image consists of.
    Resolved {
        reference: &'a Reference,
        /// The digest of its manifest.
        digest: &'a Digest,
        /// The number of its layers.
        layers: usize,
        /// The size of all of them, compressed.
        bytes: u64,
    },
    /// A layer is in the store already.
    LayerCached {
        /// The digest of the blob.
        digest: &'a Digest,
        bytes: u64,
    },
    /// A layer is downloaded and unpacked from now on.
    LayerStarted {
        /// The digest of the blob.
        digest: &'a Digest,
        bytes: u64,
    },
    /// Some bytes of a layer came.
    LayerBytes {
        /// The digest of the blob.
        digest: &'a Digest,
        /// How many since the last time.
        bytes: u64,
    },
    LayerDone {
        /// The digest of the blob.
        digest: &'a Digest,
    },
    /// A second has passed, perhaps without anything else: a server may be slow, or another process
    /// have the layer.
    Waiting,
    /// Something failed and is tried again.
    Retry {
        error: &'a RegistryError,
        /// How long we wait before.
        delay: Duration,
    },
    /// The registry cannot give the image now, and the one in the store, which may be older, is taken.
    Outdated {
        reference: &'a Reference,
        /// Why there is no newer one.
        error: &'a (dyn std::error::Error + 'static),
    },
}

impl ProgressEvent<'_> {
    /// Returns what people should know of an image that may be older than its registry's, if that is
    /// what happened.
    pub fn outdated(&self) -> Option<String> {
        let ProgressEvent::Outdated { reference, error } = self else { return None };
        Some(format!(
            "taking {} from the store, which may be older than the registry's: {}",
            reference.familiar(),
            chain(*error)
        ))
    }
}

/// Shows nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn event(&self, _: ProgressEvent<'_>) {}
}
