//! Pushing blobs, manifests and tags to a repository.

use std::collections::BTreeSet;
use std::io::{self, Read};

use serde::Deserialize;
use ureq::http::Uri;

use super::client::{RegistryClient, RegistryRepository};
use super::endpoint::{RegistryRequest, RegistryResponse, UploadContent, UploadMethod};
use super::error::RegistryError;
use super::source::RepositoryAccess;
use crate::credentials::Credentials;
use crate::digest::Hasher;
use crate::{Descriptor, Digest, ImageReference, ProgressEvent, PullProgress};

const TAGS_PER_PAGE: u32 = 1000;

/// Maximum number of pages of tags to request for one repository.
const MAX_TAG_PAGES: usize = 100;

/// Size limit of a page of tags.
const MAX_TAGS_BYTES: u64 = 4 << 20;

/// Repository that images are pushed to.
#[derive(Debug)]
pub struct PushDestination<'a> {
    repository: RegistryRepository<'a>,
}

/// Result of pushing a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushOutcome {
    /// The repository already had the blob.
    Present,
    Uploaded,
}

/// Errors of pushing to a registry.
#[derive(Debug, thiserror::Error)]
pub enum PushError {
    /// The registry failed or denied the push.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// The content could not be read, or does not match its descriptor.
    #[error("cannot read the blob {digest}")]
    Content { digest: Digest, source: io::Error },
}

/// Page of a repository's tags.
#[derive(Deserialize)]
struct TagPage {
    #[serde(default)]
    tags: Option<Vec<String>>,
}

impl RegistryClient {
    /// Returns the repository of an image to push to, without mirrors. Sends no requests, but calls
    /// credential helpers.
    pub fn destination<'a>(
        &self,
        reference: &ImageReference,
        credentials: &Credentials,
        progress: &'a dyn PullProgress,
    ) -> Result<PushDestination<'a>, RegistryError> {
        let repository =
            self.open(reference, Vec::new(), RepositoryAccess::Push, credentials, progress)?;
        Ok(PushDestination { repository })
    }
}

impl<'a> PushDestination<'a> {
    /// Returns the digest of a tag, or `None` if there is no such tag.
    pub fn tag_digest(&self, tag: &str) -> Result<Option<Digest>, RegistryError> {
        match self.repository.digest_of(tag) {
            Ok(Some(digest)) => Ok(Some(digest)),
            // The registry may omit the digest in the header.
            Ok(None) => Ok(Some(self.repository.document(tag)?.digest)),
            Err(RegistryError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the tags of the repository, or an empty set if it does not exist yet.
    pub fn tags(&self) -> Result<BTreeSet<String>, RegistryError> {
        let mut tags = BTreeSet::new();
        let mut query = format!("n={TAGS_PER_PAGE}");
        for _ in 0..MAX_TAG_PAGES {
            let path = format!("tags/list?{query}");
            let page = self.repository.ask(|source| {
                let answer = source.get(&path, RegistryRequest::default())?;
                let next = next_page(&answer);
                let server = answer.origin.server();
                let bytes = self.repository.read(answer, "the list of tags", MAX_TAGS_BYTES)?;
                let page: TagPage = serde_json::from_slice(&bytes)
                    .map_err(|source| RegistryError::Protocol { server, source: source.into() })?;
                Ok((page.tags.unwrap_or_default(), next))
            });
            let (page, next) = match page {
                Err(RegistryError::NotFound { .. }) => return Ok(tags),
                page => page?,
            };
            tags.extend(page);
            match next.filter(|next| *next != query) {
                Some(next) => query = next,
                None => return Ok(tags),
            }
        }
        let (server, what) = (self.repository.registry().to_owned(), "the list of tags".to_owned());
        Err(RegistryError::TooLarge { server, what, limit: MAX_TAGS_BYTES })
    }

    /// Pushes a blob unless the repository has it.
    ///
    /// `open` opens the content, once for each attempt. Content that does not match its descriptor
    /// is never sent completely.
    pub fn push_blob<R: Read>(
        &self,
        blob: &Descriptor,
        mut open: impl FnMut() -> io::Result<R>,
    ) -> Result<PushOutcome, PushError> {
        if self.repository.has_blob(blob)? {
            return Ok(PushOutcome::Present);
        }
        let content = |source| PushError::Content { digest: blob.digest.clone(), source };
        let mut failures = 0;
        loop {
            let mut reader = VerifiedContent::new(open().map_err(content)?, blob, &self.repository);
            let result = self.upload(blob, &mut reader);
            if let Some(source) = reader.failure {
                return Err(content(source));
            }
            match result {
                Ok(()) => return Ok(PushOutcome::Uploaded),
                Err(error) => {
                    failures += 1;
                    self.repository.wait(error, failures)?;
                }
            }
        }
    }

    /// Pushes a manifest or an index under a tag or its own digest.
    pub fn push_document(
        &self,
        target: &str,
        media_type: &str,
        bytes: &[u8],
    ) -> Result<(), RegistryError> {
        let path = format!("manifests/{target}");
        self.repository.ask(|source| {
            let uri = source.uri(&path)?;
            let answer = source.send_authorized(|authorization| {
                let size = bytes.len() as u64;
                let content = UploadContent { media_type, size, reader: &mut &*bytes };
                source.endpoint.transmit(UploadMethod::Put, &uri, content, authorization)
            })?;
            match answer.response.status().as_u16() {
                200..=202 => Ok(()),
                _ => Err(source.failure(answer, &path)),
            }
        })
    }

    /// Starts an upload and sends the content in one request, which registries without chunked
    /// uploads support too.
    fn upload(&self, blob: &Descriptor, reader: &mut dyn Read) -> Result<(), RegistryError> {
        let source = self.repository.registry_source();
        let path = "blobs/uploads/";
        let uri = source.uri(path)?;
        let answer = source.send_authorized(|authorization| {
            let media_type = "application/octet-stream";
            let content = UploadContent { media_type, size: 0, reader: &mut io::empty() };
            source.endpoint.transmit(UploadMethod::Post, &uri, content, authorization)
        })?;
        if answer.response.status() != 202 {
            return Err(source.failure(answer, path));
        }
        let location = source.endpoint.location(&uri, &answer)?;
        let is_own = crate::http::HttpOrigin::of(&location).as_ref() == Some(&answer.origin);
        let target = with_digest(&location, &blob.digest);
        let target: Uri = target.parse().map_err(|error| RegistryError::Protocol {
            server: answer.origin.server(),
            source: io::Error::other(error),
        })?;
        // The authorization just negotiated, since the content cannot be sent twice. Other servers
        // get none.
        let authorization = source.current_authorization().filter(|_| is_own);
        let media_type = "application/octet-stream";
        let content = UploadContent { media_type, size: blob.size, reader };
        let method = UploadMethod::Put;
        let answer =
            source.endpoint.transmit(method, &target, content, authorization.as_deref())?;
        match answer.response.status().as_u16() {
            200..=204 => Ok(()),
            _ => Err(source.failure(answer, &format!("blobs/{}", blob.digest))),
        }
    }
}

/// Returns the query of the next page, if any.
fn next_page(answer: &RegistryResponse) -> Option<String> {
    let links = answer.response.headers().get_all("link").iter();
    links.filter_map(|value| value.to_str().ok()).find_map(next_query)
}

/// Returns the query of the URL with `rel="next"` in a `Link`.
fn next_query(link: &str) -> Option<String> {
    let (address, parameters) = link.strip_prefix('<')?.split_once('>')?;
    let is_next = parameters.split(';').any(|p| matches!(p.trim(), "rel=\"next\"" | "rel=next"));
    let (_, query) = address.split_once('?')?;
    is_next.then(|| query.to_owned())
}

/// Returns the URL that completes an upload.
fn with_digest(location: &Uri, digest: &Digest) -> String {
    let separator = if location.query().is_some() { '&' } else { '?' };
    format!("{location}{separator}digest={digest}")
}

/// Content that is counted and hashed while it is read. If it does not match its descriptor,
/// reading its last part fails, so that the upload is never complete.
struct VerifiedContent<'a, R> {
    reader: R,
    blob: &'a Descriptor,
    repository: &'a RegistryRepository<'a>,
    left: u64,
    hasher: Option<Hasher>,
    failure: Option<io::Error>,
}

impl<'a, R: Read> VerifiedContent<'a, R> {
    fn new(reader: R, blob: &'a Descriptor, repository: &'a RegistryRepository<'a>) -> Self {
        let hasher = Some(Hasher::new(blob.digest.algorithm()));
        VerifiedContent { reader, blob, repository, left: blob.size, hasher, failure: None }
    }

    fn read_checked(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let wanted = usize::try_from(self.left).map_or(buffer.len(), |left| left.min(buffer.len()));
        let count = loop {
            match self.reader.read(&mut buffer[..wanted]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => break other?,
            }
        };
        if count == 0 && wanted > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= count as u64;
        let Some(mut hasher) = self.hasher.take() else { return Ok(count) };
        hasher.update(&buffer[..count]);
        if self.left > 0 {
            self.hasher = Some(hasher);
        } else if hasher.finish() != self.blob.digest {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "digest mismatch"));
        }
        Ok(count)
    }
}

impl<R: Read> Read for VerifiedContent<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() || self.left == 0 && self.hasher.is_none() {
            return Ok(0);
        }
        match self.read_checked(buffer) {
            Ok(count) => {
                let (digest, bytes) = (&self.blob.digest, count as u64);
                self.repository.progress().event(ProgressEvent::LayerBytes { digest, bytes });
                Ok(count)
            }
            Err(error) => {
                let kind = error.kind();
                self.failure = Some(error);
                Err(kind.into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_page_of_tags_is_parsed() {
        for (link, query) in [
            ("</v2/a/tags/list?last=b&n=10>; rel=\"next\"", Some("last=b&n=10")),
            ("<https://r.example/v2/a/tags/list?n=1>; title=x; rel=next", Some("n=1")),
            ("</v2/a/tags/list?n=1>; rel=\"prev\"", None),
            ("</v2/a/tags/list>; rel=\"next\"", None),
            ("/v2/a/tags/list?n=1", None),
        ] {
            assert_eq!(next_query(link).as_deref(), query, "{link}");
        }
    }

    #[test]
    fn upload_is_completed_at_its_location() {
        let digest = Digest::of(b"x");
        for (location, separator) in [("http://r/v2/a/1", '?'), ("http://r/v2/a/1?state=z", '&')] {
            let finished = with_digest(&location.parse().unwrap(), &digest);
            assert_eq!(finished, format!("{location}{separator}digest={digest}"));
        }
    }
}
