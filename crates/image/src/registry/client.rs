//! The client, and the operations on one repository: manifests, blobs and tags.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io::Read as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::budget::Budget;
use super::endpoint::{self, ClientSettings, RegistryEndpoint, RegistryRequest, RegistryResponse};
use super::error::RegistryError;
use super::options::ClientOptions;
use super::source::{RepositoryAccess, RepositorySource};
use crate::credentials::{Credentials, HelperError, LoginMethod};
use crate::http::HttpOrigin;
use crate::manifest::MAX_MANIFEST_BYTES;
use crate::{
    Descriptor, Digest, ImageReference, ManifestDocument, MinRate, ProgressEvent, PullProgress,
};

/// Client of registries. One is enough for a program; it keeps connections open.
#[derive(Debug)]
pub struct RegistryClient {
    settings: Arc<ClientSettings>,
    endpoints: Mutex<HashMap<String, Arc<RegistryEndpoint>>>,
    connect_attempts: u32,
}

/// A repository in a registry and its mirrors, read with given credentials.
pub struct RegistryRepository<'a> {
    name: String,
    registry: String,
    /// Mirrors, with the registry itself last. The flag is set if a mirror is skipped from now on.
    sources: Vec<(RepositorySource, AtomicBool)>,
    settings: Arc<ClientSettings>,
    budget: Arc<Budget>,
    /// Set if the caller has a fallback, so that fewer retries are made.
    has_fallback: AtomicBool,
    /// Maximum number of attempts if no connection is accepted.
    connect_attempts: u32,
    progress: &'a dyn PullProgress,
}

/// Response to a request for a blob.
pub struct OpenedBlob {
    pub answer: RegistryResponse,
    /// Set if the response comes from a URL of the descriptor, not from the repository.
    pub is_foreign: bool,
}

/// Document from a registry, with its digest.
#[derive(Clone, Debug)]
pub struct FetchedDocument {
    pub document: ManifestDocument,
    pub digest: Digest,
    pub bytes: Vec<u8>,
}

impl RegistryClient {
    /// Returns a client. Files with certificates are read now.
    pub fn new(options: ClientOptions) -> Result<Self, RegistryError> {
        let settings = Arc::new(ClientSettings::new(options)?);
        Ok(RegistryClient { settings, endpoints: Mutex::default(), connect_attempts: u32::MAX })
    }

    /// Limits the attempts for a registry that accepts no connection, for callers that are themselves
    /// retried.
    #[must_use]
    pub fn with_connect_attempts(self, connect_attempts: u32) -> Self {
        RegistryClient { connect_attempts, ..self }
    }

    /// Returns the repository of an image. Sends no requests, but calls credential helpers.
    pub fn repository<'a>(
        &self,
        reference: &ImageReference,
        credentials: &Credentials,
        progress: &'a dyn PullProgress,
    ) -> Result<RegistryRepository<'a>, RegistryError> {
        let registry = reference.registry();
        let options = self.settings.registry_named(registry);
        let mut sources = Vec::new();
        for mirror in options.into_iter().flat_map(|options| &options.mirrors) {
            let (host, path) = mirror.split_once('/').unwrap_or((mirror, ""));
            let repository = format!("{path}/{}", reference.repository());
            let unusable = || RegistryError::Mirror { mirror: mirror.clone() };
            let endpoint = self.endpoint(host).ok_or_else(unusable)?;
            sources.push((endpoint, repository.trim_start_matches('/').to_owned()));
        }
        self.open(reference, sources, RepositoryAccess::Pull, credentials, progress)
    }

    /// Opens a repository. `sources` has its mirrors, each with the name of the repository there.
    pub(super) fn open<'a>(
        &self,
        reference: &ImageReference,
        mut sources: Vec<(Arc<RegistryEndpoint>, String)>,
        access: RepositoryAccess,
        credentials: &Credentials,
        progress: &'a dyn PullProgress,
    ) -> Result<RegistryRepository<'a>, RegistryError> {
        let registry = reference.registry();
        let endpoint = self.endpoint(registry).ok_or_else(|| RegistryError::NotFound {
            registry: registry.to_owned(),
            what: reference.repository().to_owned(),
        })?;
        sources.push((endpoint, reference.repository().to_owned()));
        let ClientOptions { min_rate, max_time, .. } = self.settings.options;
        let image = format!("{registry}/{}", reference.repository());
        let budget = Budget::new(image, min_rate, max_time);
        let sources = sources.into_iter().map(|(endpoint, repository)| {
            let login = credentials.find(&endpoint.name, &repository)?;
            let source =
                RepositorySource::new(endpoint, repository, login, access, Arc::clone(&budget));
            Ok((source, AtomicBool::new(false)))
        });
        Ok(RegistryRepository {
            name: reference.repository().to_owned(),
            registry: registry.to_owned(),
            sources: sources.collect::<Result<_, HelperError>>()?,
            settings: Arc::clone(&self.settings),
            budget,
            has_fallback: AtomicBool::new(false),
            connect_attempts: self.connect_attempts,
            progress,
        })
    }

    /// Returns the options of the client.
    pub fn options(&self) -> &ClientOptions {
        &self.settings.options
    }

    /// Returns whether a registry, `HOST` or `HOST:PORT`, may use plain HTTP or any certificate.
    pub fn is_insecure(&self, registry: &str) -> bool {
        HttpOrigin::of_registry(registry, true)
            .is_some_and(|origin| self.settings.is_insecure(&origin))
    }

    /// Returns whether a registry, `HOST` or `HOST:PORT`, is on this machine's loopback interface
    /// and has no options. Any local program that listens on the port first can pose as the
    /// registry.
    pub fn is_unnamed_on_loopback(&self, registry: &str) -> bool {
        self.settings.registry_named(registry).is_none()
            && HttpOrigin::of_registry(registry, true).is_some_and(|origin| origin.is_loopback())
    }

    /// Returns the number of layers that are downloaded and unpacked in parallel.
    pub fn layers_at_once(&self) -> usize {
        self.settings.options.layers_at_once
    }

    /// Returns the minimum rate of servers.
    pub(crate) fn min_rate(&self) -> MinRate {
        self.settings.options.min_rate
    }

    fn endpoint(&self, name: &str) -> Option<Arc<RegistryEndpoint>> {
        let mut endpoints = self.endpoints.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(endpoint) = endpoints.get(name) {
            return Some(Arc::clone(endpoint));
        }
        let endpoint = Arc::new(RegistryEndpoint::new(&self.settings, name)?);
        endpoints.insert(name.to_owned(), Arc::clone(&endpoint));
        Some(endpoint)
    }
}

impl fmt::Debug for RegistryRepository<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Repository").field("sources", &self.sources).finish_non_exhaustive()
    }
}

impl<'a> RegistryRepository<'a> {
    /// Returns the login that was required so far, or `None` if all requests were public.
    pub fn used_login(&self) -> Option<&LoginMethod> {
        self.sources.iter().find_map(|(source, _)| source.used_login())
    }

    /// Sets whether the caller has a fallback. If so, the registry is asked once if it does not
    /// answer, and twice if it fails otherwise.
    pub(crate) fn set_has_fallback(&self, has_fallback: bool) {
        self.has_fallback.store(has_fallback, Ordering::Relaxed);
    }

    /// Fetches the document of a tag or digest.
    pub fn document(&self, target: &str) -> Result<FetchedDocument, RegistryError> {
        let accept = ManifestDocument::accepted_types();
        let path = format!("manifests/{target}");
        self.ask(|source| {
            let request = RegistryRequest { accept: Some(&accept), ..RegistryRequest::default() };
            let answer = source.get(&path, request)?;
            let server = answer.origin.server();
            let announced = content_type(&answer);
            let bytes = self.read(answer, target, MAX_MANIFEST_BYTES)?;
            let digest = check_digest(&server, target, &bytes)?;
            let document = ManifestDocument::parse(&bytes, announced.as_deref())?;
            Ok(FetchedDocument { document, digest, bytes })
        })
    }

    /// Fetches the document of a descriptor.
    pub fn document_of(&self, descriptor: &Descriptor) -> Result<FetchedDocument, RegistryError> {
        let fetched = self.document(descriptor.digest.as_str())?;
        self.check_size(descriptor, fetched.bytes.len() as u64)?;
        // The descriptor's media type counts too: an index must not pass for a manifest.
        ManifestDocument::parse(&fetched.bytes, Some(descriptor.media_type.as_ref()))?;
        Ok(fetched)
    }

    /// Checks that the document of a tag or digest may be read, and returns its digest, or `None` if
    /// the registry omits it.
    pub fn digest_of(&self, target: &str) -> Result<Option<Digest>, RegistryError> {
        let accept = ManifestDocument::accepted_types();
        let path = format!("manifests/{target}");
        self.ask(|source| {
            let request =
                RegistryRequest { head: true, accept: Some(&accept), ..RegistryRequest::default() };
            let answer = source.get(&path, request)?;
            let header = answer.response.headers().get("docker-content-digest");
            Ok(header.and_then(|digest| digest.to_str().ok()?.parse().ok()))
        })
    }

    /// Fetches a small blob, such as an image configuration.
    pub fn blob(&self, descriptor: &Descriptor, limit: u64) -> Result<Vec<u8>, RegistryError> {
        let digest = &descriptor.digest;
        if descriptor.size > limit {
            return Err(self.too_large_error(digest.as_str(), limit));
        }
        self.ask(|source| {
            let answer = source.get(&format!("blobs/{digest}"), RegistryRequest::default())?;
            let server = answer.origin.server();
            let bytes = self.read(answer, digest.as_str(), descriptor.size)?;
            self.check_size(descriptor, bytes.len() as u64)?;
            check_digest(&server, digest.as_str(), &bytes)?;
            Ok(bytes)
        })
    }

    /// Returns whether the registry would serve a blob, without fetching it.
    pub(crate) fn has_blob(&self, blob: &Descriptor) -> Result<bool, RegistryError> {
        let path = format!("blobs/{}", blob.digest);
        let asked = self.ask(|source| {
            source.get(&path, RegistryRequest { head: true, ..RegistryRequest::default() })
        });
        match asked {
            // Another length is that of another blob, or of an error page.
            Ok(answer) => Ok(content_length(&answer).is_none_or(|length| length == blob.size)),
            Err(error) if error.is_transient() => Err(error),
            // Not every registry answers HEAD requests. Fetching the blob reports the error.
            Err(_) => Ok(false),
        }
    }

    /// Opens a blob at an offset, from the repository or its foreign URLs.
    pub(super) fn open(&self, blob: &Descriptor, start: u64) -> Result<OpenedBlob, RegistryError> {
        let path = format!("blobs/{}", blob.digest);
        let request = RegistryRequest { start, ..RegistryRequest::default() };
        let mut of_mirrors = BTreeMap::new();
        match self.ask_once(|source| source.get(&path, request), &mut of_mirrors) {
            Err(RegistryError::NotFound { .. }) if !blob.urls.is_empty() => {
                Ok(OpenedBlob { answer: self.open_foreign(blob, request)?, is_foreign: true })
            }
            other => {
                let answer = other.map_err(|error| error.after_mirrors(of_mirrors.values()))?;
                Ok(OpenedBlob { answer, is_foreign: false })
            }
        }
    }

    /// Opens a foreign layer at a URL of its descriptor, without credentials.
    fn open_foreign(
        &self,
        blob: &Descriptor,
        request: RegistryRequest<'_>,
    ) -> Result<RegistryResponse, RegistryError> {
        let not_there = || RegistryError::ForeignLayer {
            registry: self.registry.clone(),
            digest: blob.digest.clone(),
            urls: blob.urls.clone(),
        };
        if !self.settings.options.foreign_layers {
            return Err(not_there());
        }
        let mut result = Err(not_there());
        let Some((source, _)) = self.sources.last() else { return result };
        for url in &blob.urls {
            let Ok(uri) = url.parse() else { continue };
            result = source.endpoint.send(&uri, request).and_then(|answer| {
                match answer.response.status().as_u16() {
                    200 | 206 => Ok(answer),
                    status => Err(RegistryError::Status {
                        server: answer.origin.server(),
                        what: format!("foreign layer {}", blob.digest),
                        status,
                        retry_after: endpoint::retry_after(&answer.response),
                        message: endpoint::message(answer, &self.budget),
                    }),
                }
            });
            if result.is_ok() {
                break;
            }
        }
        result
    }

    /// Returns the registry itself, not a mirror.
    pub(super) fn registry_source(&self) -> &RepositorySource {
        &self.sources.last().expect("the registry itself is there").0
    }

    /// Asks the mirrors and then the registry, and retries transient failures.
    pub(super) fn ask<T>(
        &self,
        ask: impl Fn(&RepositorySource) -> Result<T, RegistryError>,
    ) -> Result<T, RegistryError> {
        let mut failures = 0;
        let mut of_mirrors = BTreeMap::new();
        loop {
            match self.ask_once(&ask, &mut of_mirrors) {
                // Documents are small: a server that trickles them would stall a job on each
                // attempt.
                Err(error @ RegistryError::TooSlow { .. }) => return Err(error),
                Err(error) => {
                    failures += 1;
                    let waited = self.wait(error, failures);
                    waited.map_err(|error| error.after_mirrors(of_mirrors.values()))?;
                }
                done => return done,
            }
        }
    }

    /// Asks the mirrors and then the registry, once each. Keeps the last error of each mirror.
    fn ask_once<T>(
        &self,
        ask: impl Fn(&RepositorySource) -> Result<T, RegistryError>,
        of_mirrors: &mut BTreeMap<usize, RegistryError>,
    ) -> Result<T, RegistryError> {
        let (own, mirrors) = self.sources.split_last().expect("the registry itself is there");
        for (at, (mirror, is_down)) in mirrors.iter().enumerate() {
            if is_down.load(Ordering::Relaxed) {
                continue;
            }
            // The registry may serve content that a mirror lacks or denies.
            match ask(mirror) {
                Err(error) => {
                    is_down.fetch_or(error.is_unreachable(), Ordering::Relaxed);
                    of_mirrors.insert(at, error);
                }
                done => return done,
            }
        }
        ask(&own.0)
    }

    /// Skips the mirrors from now on, because one of them sends unreadable blobs.
    pub(super) fn leave_mirrors(&self) {
        for (_, is_down) in self.sources.split_last().map_or(&[][..], |(_, mirrors)| mirrors) {
            is_down.store(true, Ordering::Relaxed);
        }
    }

    /// Waits before the next attempt, or returns the error if there is none.
    pub(super) fn wait(&self, error: RegistryError, failures: u32) -> Result<(), RegistryError> {
        self.budget.check()?;
        let mut retry = self.settings.options.retry;
        if self.has_fallback.load(Ordering::Relaxed) {
            retry.attempts = retry.attempts.min(if error.is_unresponsive() { 1 } else { 2 });
        }
        if error.is_connection_refused() {
            retry.attempts = retry.attempts.min(self.connect_attempts);
        }
        let asked = error.retry_after();
        match retry.delay_after(failures) {
            Some(delay) if error.is_transient() && asked <= retry.max_delay => {
                let delay = delay.max(asked);
                self.progress.event(ProgressEvent::Retry { error: &error, delay });
                std::thread::sleep(delay);
                Ok(())
            }
            _ => Err(error),
        }
    }

    pub(super) fn progress(&self) -> &'a dyn PullProgress {
        self.progress
    }

    /// Returns the registry's name in the reference.
    pub(crate) fn registry(&self) -> &str {
        &self.registry
    }

    /// Returns the name of the repository in the registry.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    pub(super) fn read(
        &self,
        answer: RegistryResponse,
        what: &str,
        limit: u64,
    ) -> Result<Vec<u8>, RegistryError> {
        let server = answer.origin.server();
        let mut bytes = Vec::new();
        let body = self.budget.watch(server.clone(), answer.response.into_body().into_reader());
        body.take(limit + 1)
            .read_to_end(&mut bytes)
            .map_err(|error| endpoint::explain_io(&self.registry, server, error))?;
        if bytes.len() as u64 > limit {
            return Err(self.too_large_error(what, limit));
        }
        Ok(bytes)
    }

    fn too_large_error(&self, what: &str, limit: u64) -> RegistryError {
        let what = format!("{what} of {}", self.name);
        RegistryError::TooLarge { server: self.registry.clone(), what, limit }
    }

    fn check_size(&self, descriptor: &Descriptor, found: u64) -> Result<(), RegistryError> {
        if found == descriptor.size {
            return Ok(());
        }
        Err(RegistryError::Size {
            server: self.registry.clone(),
            digest: descriptor.digest.clone(),
            expected: descriptor.size,
            found,
        })
    }
}

fn content_type(answer: &RegistryResponse) -> Option<String> {
    Some(answer.response.headers().get("content-type")?.to_str().ok()?.to_owned())
}

fn content_length(answer: &RegistryResponse) -> Option<u64> {
    answer.response.headers().get("content-length")?.to_str().ok()?.parse().ok()
}

/// Returns the digest of some bytes, which must match the target if that is a digest.
fn check_digest(server: &str, target: &str, bytes: &[u8]) -> Result<Digest, RegistryError> {
    let Ok(expected) = target.parse::<Digest>() else { return Ok(Digest::of(bytes)) };
    if expected.is_of(bytes) {
        return Ok(expected);
    }
    let found = Digest::of(bytes);
    Err(RegistryError::Digest { server: server.to_owned(), expected, found })
}
