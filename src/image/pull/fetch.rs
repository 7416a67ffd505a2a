//! What the registry has of an image, into the store.

use std::collections::HashSet;
use std::io::{self, Read};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::request::{PullError, PullRequest};
use crate::image::config::Configuration;
use crate::image::digest::Digest;
use crate::image::layer::Blob;
use crate::image::manifest::{Descriptor, Document, Manifest, ManifestError};
use crate::image::pace::Pace;
use crate::image::progress::ProgressEvent;
use crate::image::registry::{RegistryClient, Repository};
use crate::image::store::{Image, LayerRequest, LockedLayer, NewImage, Served, Standing, Store};

/// More than any configuration has; it is held in memory.
pub const MAX_CONFIGURATION_BYTES: u64 = 4 << 20;

/// How often those who show a pull can say that it still goes on.
const TICK: Duration = Duration::from_secs(1);

/// A layer to fetch.
struct Work<'a> {
    blob: &'a Descriptor,
    diff_id: &'a Digest,
}

/// Fetches what is missing of an image; all of it may be there already, as `stored` shows.
pub fn fetch(
    store: &Store,
    client: &RegistryClient,
    repository: &Repository<'_>,
    request: &PullRequest<'_>,
    stored: Option<Image>,
) -> Result<Image, PullError> {
    let (digest, manifest) = match resolve(repository, request, stored)? {
        Found::Stored(image) => return Ok(*image),
        Found::Manifest(digest, manifest) => (digest, manifest),
    };
    repository.hurry(false);
    let bytes = repository.blob(&manifest.config, MAX_CONFIGURATION_BYTES)?;
    let configuration = Configuration::parse(&bytes)?;
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
        .map(|(blob, diff_id)| Work { blob, diff_id })
        .filter(|work| seen.insert(work.diff_id))
        .collect();
    // The longest first: otherwise it may be the only one left at the end.
    work.sort_by_key(|work| std::cmp::Reverse(work.blob.size));
    let layers =
        Layers { store, repository, request, pace: client.pace(), stop: AtomicBool::new(false) };
    side_by_side(&work, client, request, &layers.stop, |work| layers.unpack(work))?;

    let image = store.commit_image(&NewImage {
        reference: request.reference,
        platform: request.platform,
        digest: &digest,
        id: &manifest.config.digest,
        configuration: &bytes,
        access: repository.used_login().map(|login| login.fingerprint()).as_deref(),
    })?;
    Ok(image.held_by(reservation))
}

/// What is behind a name.
enum Found {
    /// The image that is in the store.
    Stored(Box<Image>),
    /// Another one, with the digest of its manifest.
    Manifest(Digest, Box<Manifest>),
}

/// Finds out what is behind the name, for the platform.
fn resolve(
    repository: &Repository<'_>,
    request: &PullRequest<'_>,
    stored: Option<Image>,
) -> Result<Found, PullError> {
    let mut found = repository.document(request.reference.target())?;
    // If it became private, or public, the store is told so by storing it again.
    let is_private = repository.used_login().is_some();
    let mut stored = stored.filter(|image| image.access.is_some() == is_private);
    let mut is_stored = |digest: &Digest| stored.take_if(|image| image.digest == *digest);
    if let Some(image) = is_stored(&found.digest) {
        return Ok(Found::Stored(Box::new(image)));
    }
    if let Document::Index(index) = &found.document {
        let descriptor = index.choose(request.platform)?;
        if let Some(image) = is_stored(&descriptor.digest) {
            return Ok(Found::Stored(Box::new(image)));
        }
        found = repository.document_of(descriptor)?;
    }
    Ok(Found::Manifest(found.digest, manifest_of(found.document)?))
}

/// Returns the manifest of an image that a document is.
pub fn manifest_of(document: Document) -> Result<Box<Manifest>, PullError> {
    match document {
        Document::Manifest(manifest) => {
            manifest.check_image()?;
            Ok(manifest)
        }
        Document::Index(_) => Err(ManifestError::NestedIndex.into()),
    }
}

/// Checks that a manifest and a configuration belong together and are for the platform.
pub fn check(
    request: &PullRequest<'_>,
    manifest: &Manifest,
    configuration: &Configuration,
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

/// Where the layers of an image come from, and where they go.
struct Layers<'a> {
    store: &'a Store,
    repository: &'a Repository<'a>,
    request: &'a PullRequest<'a>,
    pace: Pace,
    /// Whether one of them could not be unpacked, so that the others need not be.
    stop: AtomicBool,
}

/// Calls a function with each of some layers, several at once, and sets `stop` at the first failure, which ends all.
pub fn side_by_side<W: Sync>(
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
                // After it: those that are stopped have nothing to say.
                stop.store(true, Ordering::Relaxed);
            }
        }
    };
    // Dropped when the work is done, which the other end notices.
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

impl Layers<'_> {
    fn unpack(&self, work: &Work<'_>) -> Result<(), PullError> {
        let Work { blob, diff_id } = *work;
        let (digest, progress) = (&blob.digest, self.request.progress);
        let source = format!("{}/{}", self.repository.registry(), self.repository.name());
        let wanted = LayerRequest { diff_id, blob: Some(digest), source: &source, pace: self.pace };
        let locked = self.store.lock_layer(&wanted)?;
        if matches!(locked, LockedLayer::Present(_)) && self.is_given(work)? {
            progress.event(ProgressEvent::LayerCached { digest, bytes: blob.size });
            return Ok(());
        }
        progress.event(ProgressEvent::LayerStarted { digest, bytes: blob.size });
        let mut reader = self.repository.blob_reader(blob);
        let input = Stoppable { reader: &mut reader, stop: &self.stop };
        let input = Blob { reader: input, digest: Some(digest), size: blob.size };
        match locked {
            LockedLayer::Present(_) => {
                self.store.prove(input, diff_id)?;
                if reader.is_of_repository() {
                    self.store.note_served(diff_id, &self.served(digest))?;
                }
            }
            LockedLayer::Missing(lock) => {
                let filled = self.store.fill(lock, input, diff_id)?;
                let served = reader.is_of_repository().then(|| self.served(digest));
                self.store.finish(filled, served.as_ref())?;
            }
        }
        progress.event(ProgressEvent::LayerDone { digest });
        Ok(())
    }

    /// Returns whether a layer that is in the store may become part of the image: whether the
    /// registry gives it to who wants the image, as a blob that holds it.
    fn is_given(&self, work: &Work<'_>) -> Result<bool, PullError> {
        let Work { blob, diff_id } = *work;
        match self.store.standing(diff_id, &self.served(&blob.digest))? {
            Standing::Given => Ok(true),
            Standing::Askable if self.repository.has_blob(blob)? => {
                // It may have wanted a login only now.
                self.store.note_served(diff_id, &self.served(&blob.digest))?;
                Ok(true)
            }
            Standing::Askable | Standing::Unknown => Ok(false),
        }
    }

    fn served<'b>(&'b self, blob: &'b Digest) -> Served<'b> {
        Served {
            blob,
            registry: self.repository.registry(),
            repository: self.repository.name(),
            login: self.repository.used_login(),
        }
    }
}

/// A reader that fails as soon as the others need not go on.
pub struct Stoppable<'a, R> {
    pub reader: R,
    pub stop: &'a AtomicBool,
}

impl<R: Read> Read for Stoppable<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(io::Error::other("another layer could not be unpacked"));
        }
        self.reader.read(buffer)
    }
}
