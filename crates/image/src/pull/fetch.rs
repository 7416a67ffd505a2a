//! Fetches the configuration and the missing layers of an image, several layers at once.

use std::collections::HashSet;
use std::io::{self, Read};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::request::{PullError, PullRequest};
use crate::config::ImageConfiguration;
use crate::digest::Digest;
use crate::layer::LayerBlob;
use crate::manifest::{Descriptor, Manifest, ManifestDocument, ManifestError};
use crate::min_rate::MinRate;
use crate::progress::ProgressEvent;
use crate::registry::{RegistryClient, RegistryRepository};
use crate::store::{
    Image, ImageStore, LayerAccess, LayerRequest, LockedLayer, NewImage, ServedBlob,
};

/// Size limit of a configuration, which is held in memory.
pub const MAX_CONFIGURATION_BYTES: u64 = 4 << 20;

/// Interval of [`ProgressEvent::Waiting`].
const TICK: Duration = Duration::from_secs(1);

struct LayerTask<'a> {
    blob: &'a Descriptor,
    diff_id: &'a Digest,
}

/// Fetches the missing parts of an image, or returns `stored` if it is current.
pub fn fetch(
    store: &ImageStore,
    client: &RegistryClient,
    repository: &RegistryRepository<'_>,
    request: &PullRequest<'_>,
    stored: Option<Image>,
) -> Result<Image, PullError> {
    let (digest, manifest) = match resolve(repository, request, stored)? {
        ResolvedImage::Stored(image) => return Ok(*image),
        ResolvedImage::Manifest(digest, manifest) => (digest, manifest),
    };
    repository.set_has_fallback(false);
    let bytes = repository.blob(&manifest.config, MAX_CONFIGURATION_BYTES)?;
    let configuration = ImageConfiguration::parse(&bytes)?;
    check(request, &manifest, &configuration)?;
    let diff_ids = &configuration.rootfs.diff_ids;
    request.progress.event(ProgressEvent::Resolved {
        reference: request.reference,
        digest: &digest,
        layers: manifest.layers.len(),
        bytes: manifest.layers.iter().map(|layer| layer.size).fold(0, u64::saturating_add),
    });

    let reservation = Arc::new(store.reserve(diff_ids)?);
    let mut seen = HashSet::new();
    let layers = manifest.layers.iter().zip(diff_ids);
    let mut work: Vec<_> = layers
        .map(|(blob, diff_id)| LayerTask { blob, diff_id })
        .filter(|work| seen.insert(work.diff_id))
        .collect();
    // Largest first: otherwise it may be the only download left at the end.
    work.sort_by_key(|work| std::cmp::Reverse(work.blob.size));
    let layers = LayerFetcher {
        store,
        repository,
        request,
        min_rate: client.min_rate(),
        stop: AtomicBool::new(false),
    };
    run_in_parallel(&work, client, request, &layers.stop, |work| layers.unpack(work))?;

    let image = store.commit_image(&NewImage {
        reference: request.reference,
        platform: request.platform,
        digest: &digest,
        id: &manifest.config.digest,
        configuration: &bytes,
        access: repository.used_login().map(|login| login.fingerprint()).as_deref(),
    })?;
    Ok(image.with_reservation(reservation))
}

enum ResolvedImage {
    Stored(Box<Image>),
    /// An image that has to be fetched: the digest of its manifest, and the manifest.
    Manifest(Digest, Box<Manifest>),
}

/// Resolves the reference for the platform.
fn resolve(
    repository: &RegistryRepository<'_>,
    request: &PullRequest<'_>,
    stored: Option<Image>,
) -> Result<ResolvedImage, PullError> {
    let mut found = repository.document(request.reference.target())?;
    // An image that became private or public is stored again to update its access.
    let is_private = repository.used_login().is_some();
    let mut stored = stored.filter(|image| image.access.is_some() == is_private);
    let mut is_stored = |digest: &Digest| stored.take_if(|image| image.digest == *digest);
    if let Some(image) = is_stored(&found.digest) {
        return Ok(ResolvedImage::Stored(Box::new(image)));
    }
    if let ManifestDocument::Index(index) = &found.document {
        let descriptor = index.choose(request.platform)?;
        if let Some(image) = is_stored(&descriptor.digest) {
            return Ok(ResolvedImage::Stored(Box::new(image)));
        }
        found = repository.document_of(descriptor)?;
    }
    Ok(ResolvedImage::Manifest(found.digest, manifest_of(found.document)?))
}

/// Returns the document as the manifest of an image. Fails for an index, and for manifests of other artifacts.
pub fn manifest_of(document: ManifestDocument) -> Result<Box<Manifest>, PullError> {
    match document {
        ManifestDocument::Manifest(manifest) => {
            manifest.check_image()?;
            Ok(manifest)
        }
        ManifestDocument::Index(_) => Err(ManifestError::NestedIndex.into()),
    }
}

/// Checks that a manifest and a configuration match and are for the platform.
pub fn check(
    request: &PullRequest<'_>,
    manifest: &Manifest,
    configuration: &ImageConfiguration,
) -> Result<(), PullError> {
    let reference = || Box::new(request.reference.clone());
    let (layers, diff_ids) = (manifest.layers.len(), configuration.rootfs.diff_ids.len());
    if layers != diff_ids {
        return Err(PullError::Layers { reference: reference(), layers, diff_ids });
    }
    if request.platform.suitability(&configuration.platform).is_none() {
        return Err(PullError::Platform {
            reference: reference(),
            found: Box::new(configuration.platform.clone()),
            wanted: Box::new(request.platform.clone()),
        });
    }
    Ok(())
}

/// Source and destination of the layers of an image.
struct LayerFetcher<'a> {
    store: &'a ImageStore,
    repository: &'a RegistryRepository<'a>,
    request: &'a PullRequest<'a>,
    min_rate: MinRate,
    /// Set when a layer has failed, to stop the others.
    stop: AtomicBool,
}

/// Calls a function for each layer, several in parallel. The first failure sets `stop`, which stops
/// all.
pub fn run_in_parallel<W: Sync>(
    work: &[W],
    client: &RegistryClient,
    request: &PullRequest<'_>,
    stop: &AtomicBool,
    act: impl Fn(&W) -> Result<(), PullError> + Sync,
) -> Result<(), PullError> {
    let next = AtomicUsize::new(0);
    let failure = Mutex::new(None);
    let run = || {
        while !stop.load(Ordering::Relaxed) {
            let Some(work) = work.get(next.fetch_add(1, Ordering::Relaxed)) else { break };
            if let Err(error) = act(work) {
                let mut failure = failure.lock().unwrap_or_else(PoisonError::into_inner);
                failure.get_or_insert(error);
                // Set after the failure is recorded: errors of layers that stop are ignored.
                stop.store(true, Ordering::Relaxed);
            }
        }
    };
    // The ticker ends when all senders are dropped.
    let (done, is_done) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            while is_done.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                request.progress.event(ProgressEvent::Waiting);
            }
        });
        for _ in 1..client.layers_at_once().min(work.len()) {
            let (done, run) = (done.clone(), &run);
            scope.spawn(move || (run(), drop(done)));
        }
        run();
        drop(done);
    });
    failure.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

impl LayerFetcher<'_> {
    fn unpack(&self, work: &LayerTask<'_>) -> Result<(), PullError> {
        let LayerTask { blob, diff_id } = *work;
        let (digest, progress) = (&blob.digest, self.request.progress);
        let source = format!("{}/{}", self.repository.registry(), self.repository.name());
        let wanted =
            LayerRequest { diff_id, blob: Some(digest), source: &source, min_rate: self.min_rate };
        let locked = self.store.lock_layer(&wanted)?;
        if matches!(locked, LockedLayer::Present(_)) && self.may_use_stored(work)? {
            progress.event(ProgressEvent::LayerCached { digest, bytes: blob.size });
            return Ok(());
        }
        progress.event(ProgressEvent::LayerStarted { digest, bytes: blob.size });
        let mut reader = self.repository.blob_reader(blob);
        let input = StoppableReader { reader: &mut reader, stop: &self.stop };
        let input = LayerBlob { reader: input, digest: Some(digest), size: blob.size };
        match locked {
            LockedLayer::Present(_) => {
                self.store.verify_blob(input, diff_id)?;
                if reader.is_of_repository() {
                    self.store.note_served(diff_id, &self.served_blob(digest))?;
                }
            }
            LockedLayer::Missing(lock) => {
                let filled = self.store.fill(lock, input, diff_id)?;
                let served = reader.is_of_repository().then(|| self.served_blob(digest));
                self.store.publish(filled, served.as_ref())?;
            }
        }
        progress.event(ProgressEvent::LayerDone { digest });
        Ok(())
    }

    /// Returns whether a stored layer may be used for the image: the registry must serve a blob
    /// with its content to these credentials.
    fn may_use_stored(&self, work: &LayerTask<'_>) -> Result<bool, PullError> {
        let LayerTask { blob, diff_id } = *work;
        match self.store.layer_access(diff_id, &self.served_blob(&blob.digest))? {
            LayerAccess::Granted => Ok(true),
            LayerAccess::MustAsk if self.repository.has_blob(blob)? => {
                // The registry may have required a login only now.
                self.store.note_served(diff_id, &self.served_blob(&blob.digest))?;
                Ok(true)
            }
            LayerAccess::MustAsk | LayerAccess::Unproven => Ok(false),
        }
    }

    fn served_blob<'b>(&'b self, blob: &'b Digest) -> ServedBlob<'b> {
        ServedBlob {
            blob,
            registry: self.repository.registry(),
            repository: self.repository.name(),
            login: self.repository.used_login(),
        }
    }
}

/// Reader that fails once `stop` is set.
pub struct StoppableReader<'a, R> {
    pub reader: R,
    pub stop: &'a AtomicBool,
}

impl<R: Read> Read for StoppableReader<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(io::Error::other("another layer could not be unpacked"));
        }
        self.reader.read(buffer)
    }
}
