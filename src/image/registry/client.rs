//! The client, and a repository as it sees it.

use std::collections::HashMap;
use std::fmt;
use std::io::Read as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::budget::Budget;
use super::endpoint::{self, Answer, Endpoint, Request, Settings};
use super::error::RegistryError;
use super::options::ClientOptions;
use super::source::{Access, Source};
use crate::http::Origin;
use crate::image::credentials::{Credentials, HelperError, Login};
use crate::image::manifest::MAX_MANIFEST_BYTES;
use crate::image::{Descriptor, Digest, Document, Pace, Progress, ProgressEvent, Reference};

/// Reads from registries. One is enough for a program; it keeps connections open.
#[derive(Debug)]
pub struct RegistryClient {
    settings: Arc<Settings>,
    endpoints: Mutex<HashMap<String, Arc<Endpoint>>>,
}

/// A repository in a registry and its mirrors, read with certain credentials.
pub struct Repository<'a> {
    name: String,
    registry: String,
    /// Mirrors, and the registry itself at the end.
    sources: Vec<(Source, AtomicBool)>,
    settings: Arc<Settings>,
    budget: Arc<Budget>,
    /// Whether another try is worth less than to go on without.
    hurries: AtomicBool,
    progress: &'a dyn Progress,
}

/// A blob that begins to come.
pub struct Opened {
    pub answer: Answer,
    /// Whether it comes from where its descriptor says, not from the repository.
    pub is_foreign: bool,
}

/// A document that a registry sent, with the digest that it has.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Fetched {
    pub document: Document,
    pub digest: Digest,
    pub bytes: Vec<u8>,
}

/// Why a repository cannot be asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The registry cannot be one.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// The login could not be found out.
    #[error(transparent)]
    Helper(#[from] HelperError),
}

impl RegistryClient {
    /// Returns a client; files with certificates are read now.
    pub fn new(options: ClientOptions) -> Result<Self, RegistryError> {
        let settings = Arc::new(Settings::new(options)?);
        Ok(RegistryClient { settings, endpoints: Mutex::default() })
    }

    /// Returns the repository of an image. Nothing is asked yet, except credential helpers.
    pub fn repository<'a>(
        &self,
        reference: &Reference,
        credentials: &Credentials,
        progress: &'a dyn Progress,
    ) -> Result<Repository<'a>, OpenError> {
        let registry = reference.registry();
        let options = self.settings.options.registries.get(registry);
        let mut sources = Vec::new();
        for mirror in options.into_iter().flat_map(|options| &options.mirrors) {
            let (host, path) = mirror.split_once('/').unwrap_or((mirror, ""));
            let repository = format!("{path}/{}", reference.repository());
            let unusable = || RegistryError::Mirror { mirror: mirror.clone() };
            let endpoint = self.endpoint(host).ok_or_else(unusable)?;
            sources.push((endpoint, repository.trim_start_matches('/').to_owned()));
        }
        self.open(reference, sources, Access::Pull, credentials, progress)
    }

    /// Opens a repository with some mirrors.
    pub(super) fn open<'a>(
        &self,
        reference: &Reference,
        mut sources: Vec<(Arc<Endpoint>, String)>,
        access: Access,
        credentials: &Credentials,
        progress: &'a dyn Progress,
    ) -> Result<Repository<'a>, OpenError> {
        let registry = reference.registry();
        let endpoint = self.endpoint(registry).ok_or_else(|| RegistryError::NotFound {
            registry: registry.to_owned(),
            what: reference.repository().to_owned(),
        })?;
        sources.push((endpoint, reference.repository().to_owned()));
        let ClientOptions { pace, max_time, .. } = self.settings.options;
        let image = format!("{registry}/{}", reference.repository());
        let budget = Budget::new(image, pace, max_time);
        let sources = sources.into_iter().map(|(endpoint, repository)| {
            let login = credentials.find(&endpoint.name, &repository)?;
            let source = Source::new(endpoint, repository, login, access, Arc::clone(&budget));
            Ok((source, AtomicBool::new(false)))
        });
        Ok(Repository {
            name: reference.repository().to_owned(),
            registry: registry.to_owned(),
            sources: sources.collect::<Result<_, HelperError>>()?,
            settings: Arc::clone(&self.settings),
            budget,
            hurries: AtomicBool::new(false),
            progress,
        })
    }

    /// Returns what is configured of registries.
    pub fn options(&self) -> &ClientOptions {
        &self.settings.options
    }

    /// Returns whether plain HTTP will do for a registry, `HOST` or `HOST:PORT`, and any certificate.
    pub fn is_insecure(&self, registry: &str) -> bool {
        Origin::of_registry(registry, true).is_some_and(|origin| self.settings.is_insecure(&origin))
    }

    /// Returns how many layers are downloaded and unpacked at once.
    pub fn layers_at_once(&self) -> usize {
        self.settings.options.layers_at_once
    }

    /// Returns how fast a server must send.
    pub(in crate::image) fn pace(&self) -> Pace {
        self.settings.options.pace
    }

    fn endpoint(&self, name: &str) -> Option<Arc<Endpoint>> {
        let mut endpoints = self.endpoints.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(endpoint) = endpoints.get(name) {
            return Some(Arc::clone(endpoint));
        }
        let endpoint = Arc::new(Endpoint::new(&self.settings, name)?);
        endpoints.insert(name.to_owned(), Arc::clone(&endpoint));
        Some(endpoint)
    }
}

impl fmt::Debug for Repository<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Repository").field("sources", &self.sources).finish_non_exhaustive()
    }
}

impl<'a> Repository<'a> {
    /// Returns the login that had to be shown so far; none if all of it was public.
    pub fn used_login(&self) -> Option<&Login> {
        self.sources.iter().find_map(|(source, _)| source.used_login())
    }

    /// Says whether there is something to go on with if the registry does not answer: then it is asked
    /// twice at most.
    pub(in crate::image) fn hurry(&self, hurries: bool) {
        self.hurries.store(hurries, Ordering::Relaxed);
    }

    /// Fetches what a tag or a digest names.
    pub fn document(&self, target: &str) -> Result<Fetched, RegistryError> {
        let accept = Document::accepted_types();
        let path = format!("manifests/{target}");
        self.ask(|source| {
            let request = Request { accept: Some(&accept), ..Request::default() };
            let answer = source.get(&path, request)?;
            let server = answer.origin.server();
            let announced = content_type(&answer);
            let bytes = self.read(answer, target, MAX_MANIFEST_BYTES)?;
            let digest = check_digest(&server, target, &bytes)?;
            let document = Document::parse(&bytes, announced.as_deref())?;
            Ok(Fetched { document, digest, bytes })
        })
    }

    /// Fetches the document that a descriptor names.
    pub fn document_of(&self, descriptor: &Descriptor) -> Result<Fetched, RegistryError> {
        let fetched = self.document(descriptor.digest.as_str())?;
        self.check_size(descriptor, fetched.bytes.len() as u64)?;
        // The descriptor has a say too: an index must not pass for a manifest.
        Document::parse(&fetched.bytes, Some(descriptor.media_type.as_ref()))?;
        Ok(fetched)
    }

    /// Returns the digest of what a tag or digest names, and so whether it may be read at all.
    ///
    /// Registries need not say the digest.
    pub fn digest_of(&self, target: &str) -> Result<Option<Digest>, RegistryError> {
        let accept = Document::accepted_types();
        let path = format!("manifests/{target}");
        self.ask(|source| {
            let request = Request { head: true, accept: Some(&accept), ..Request::default() };
            let answer = source.get(&path, request)?;
            let header = answer.response.headers().get("docker-content-digest");
            Ok(header.and_then(|digest| digest.to_str().ok()?.parse().ok()))
        })
    }

    /// Fetches a small blob, such as an image configuration.
    pub fn blob(&self, descriptor: &Descriptor, limit: u64) -> Result<Vec<u8>, RegistryError> {
        let digest = &descriptor.digest;
        if descriptor.size > limit {
            return Err(self.too_large(digest.as_str(), limit));
        }
        self.ask(|source| {
            let answer = source.get(&format!("blobs/{digest}"), Request::default())?;
            let server = answer.origin.server();
            let bytes = self.read(answer, digest.as_str(), descriptor.size)?;
            self.check_size(descriptor, bytes.len() as u64)?;
            check_digest(&server, digest.as_str(), &bytes)?;
            Ok(bytes)
        })
    }

    /// Returns whether a blob would be given, without fetching it.
    pub(in crate::image) fn has_blob(&self, blob: &Descriptor) -> Result<bool, RegistryError> {
        let path = format!("blobs/{}", blob.digest);
        let asked =
            self.ask(|source| source.get(&path, Request { head: true, ..Request::default() }));
        match asked {
            // A length that is another one is that of another blob, or of a page that says so.
            Ok(answer) => Ok(content_length(&answer).is_none_or(|length| length == blob.size)),
            Err(error) if error.is_transient() => Err(error),
            // Not every registry answers such requests. Whoever tries to fetch it learns why not.
            Err(_) => Ok(false),
        }
    }

    /// Opens a blob at an offset, wherever it can be had.
    pub(super) fn open(&self, blob: &Descriptor, start: u64) -> Result<Opened, RegistryError> {
        let path = format!("blobs/{}", blob.digest);
        let request = Request { start, ..Request::default() };
        match self.ask_once(|source| source.get(&path, request)) {
            Err(RegistryError::NotFound { .. }) if !blob.urls.is_empty() => {
                Ok(Opened { answer: self.open_foreign(blob, request)?, is_foreign: true })
            }
            other => Ok(Opened { answer: other?, is_foreign: false }),
        }
    }

    /// Opens a foreign layer where its descriptor says. That is nobody whom a login is for.
    fn open_foreign(
        &self,
        blob: &Descriptor,
        request: Request<'_>,
    ) -> Result<Answer, RegistryError> {
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

    /// Returns the registry itself, without mirrors.
    pub(super) fn own(&self) -> &Source {
        &self.sources.last().expect("the registry itself is there").0
    }

    /// Asks the mirrors and then the registry, and each again if that may help.
    pub(super) fn ask<T>(
        &self,
        ask: impl Fn(&Source) -> Result<T, RegistryError>,
    ) -> Result<T, RegistryError> {
        let mut failures = 0;
        loop {
            match self.ask_once(&ask) {
                // Documents are small: a server that trickles one keeps a job waiting for each attempt.
                Err(error @ RegistryError::TooSlow { .. }) => return Err(error),
                Err(error) => {
                    failures += 1;
                    self.wait(error, failures)?;
                }
                done => return done,
            }
        }
    }

    /// Asks the mirrors and then the registry, each once.
    fn ask_once<T>(
        &self,
        ask: impl Fn(&Source) -> Result<T, RegistryError>,
    ) -> Result<T, RegistryError> {
        let (own, mirrors) = self.sources.split_last().expect("the registry itself is there");
        for (mirror, is_down) in mirrors {
            if is_down.load(Ordering::Relaxed) {
                continue;
            }
            match ask(mirror) {
                Err(RegistryError::Unreachable { .. } | RegistryError::Timeout { .. }) => {
                    is_down.store(true, Ordering::Relaxed);
                }
                // What a mirror does not have or give, the registry may.
                Err(_) => {}
                done => return done,
            }
        }
        ask(&own.0)
    }

    /// Leaves the mirrors out from now on: one of them answers, but with what cannot be read.
    pub(super) fn leave_mirrors(&self) {
        for (_, is_down) in self.sources.split_last().map_or(&[][..], |(_, mirrors)| mirrors) {
            is_down.store(true, Ordering::Relaxed);
        }
    }

    /// Waits before another attempt, or returns the error if there shall be none.
    pub(super) fn wait(&self, error: RegistryError, failures: u32) -> Result<(), RegistryError> {
        self.budget.check()?;
        let mut retry = self.settings.options.retry;
        if self.hurries.load(Ordering::Relaxed) {
            retry.attempts = retry.attempts.min(2);
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

    pub(super) fn progress(&self) -> &'a dyn Progress {
        self.progress
    }

    /// Returns the registry, as the image's name has it.
    pub(in crate::image) fn registry(&self) -> &str {
        &self.registry
    }

    /// Returns the name of the repository in the registry.
    pub(in crate::image) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    pub(super) fn read(
        &self,
        answer: Answer,
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
            return Err(self.too_large(what, limit));
        }
        Ok(bytes)
    }

    fn too_large(&self, what: &str, limit: u64) -> RegistryError {
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

fn content_type(answer: &Answer) -> Option<String> {
    Some(answer.response.headers().get("content-type")?.to_str().ok()?.to_owned())
}

fn content_length(answer: &Answer) -> Option<u64> {
    answer.response.headers().get("content-length")?.to_str().ok()?.parse().ok()
}

/// Returns the digest of some bytes, which must be the one they were asked for by.
fn check_digest(server: &str, target: &str, bytes: &[u8]) -> Result<Digest, RegistryError> {
    let Ok(expected) = target.parse::<Digest>() else { return Ok(Digest::of(bytes)) };
    if expected.is_of(bytes) {
        return Ok(expected);
    }
    let found = Digest::of(bytes);
    Err(RegistryError::Digest { server: server.to_owned(), expected, found })
}
