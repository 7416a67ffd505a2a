//! Progress events of pulls.

use std::time::Duration;

use oci_hooks_files::error::chain;

use super::digest::Digest;
use super::reference::ImageReference;
use super::registry::RegistryError;

/// Receiver of progress events.
///
/// Several threads call it, many times a second for the bytes of a layer: it must return quickly.
pub trait PullProgress: Sync {
    fn event(&self, event: ProgressEvent<'_>);
}

/// Event during a pull.
#[derive(Clone, Copy, Debug)]
pub enum ProgressEvent<'a> {
    /// The registry has sent the manifest and the configuration.
    Resolved {
        reference: &'a ImageReference,
        digest: &'a Digest,
        layers: usize,
        /// Compressed size of all layers.
        bytes: u64,
    },
    /// The layer is already in the store.
    LayerCached {
        /// The digest of the blob.
        digest: &'a Digest,
        bytes: u64,
    },
    /// Download and unpacking of a layer begin.
    LayerStarted {
        /// The digest of the blob.
        digest: &'a Digest,
        bytes: u64,
    },
    /// Bytes of a layer arrived.
    LayerBytes {
        /// The digest of the blob.
        digest: &'a Digest,
        /// Number of bytes since the last event.
        bytes: u64,
    },
    LayerDone {
        /// The digest of the blob.
        digest: &'a Digest,
    },
    /// Sent every second, even without progress: a server may be slow, or another process may have
    /// locked the layer.
    Waiting,
    /// A request failed and is retried.
    Retry { error: &'a RegistryError, delay: Duration },
    /// The registry cannot serve the image now; the stored one, which may be older, is used.
    Outdated { reference: &'a ImageReference, error: &'a (dyn std::error::Error + 'static) },
}

impl ProgressEvent<'_> {
    /// Returns the warning for [`ProgressEvent::Outdated`].
    pub fn outdated_warning(&self) -> Option<String> {
        let ProgressEvent::Outdated { reference, error } = self else { return None };
        Some(format!(
            "using {} from the store, which may be older than the registry's: {}",
            reference.familiar_name(),
            chain(*error)
        ))
    }
}

/// Discards progress events.
#[derive(Clone, Copy, Debug, Default)]
pub struct SilentProgress;

impl PullProgress for SilentProgress {
    fn event(&self, _: ProgressEvent<'_>) {}
}
