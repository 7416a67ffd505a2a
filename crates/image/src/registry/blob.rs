//! Streams blobs, and resumes them after broken connections. Readers check the digest.

use std::fmt;
use std::io::{self, Read};

use super::client::{OpenedBlob, RegistryRepository};
use super::endpoint::explain_io;
use super::error::RegistryError;
use crate::{Descriptor, ProgressEvent};

/// After this many bytes without a failure, the count of failures is reset.
const FORGIVEN_BYTES: u64 = 4 << 20;

/// Stream of a blob.
///
/// A broken connection is replaced and the download resumed, unnoticed by the reader. A stream of
/// the wrong size ends with an error. The digest is not checked here: the store checks it for blobs
/// of every origin.
pub struct BlobReader<'a> {
    repository: &'a RegistryRepository<'a>,
    descriptor: &'a Descriptor,
    connection: Option<BlobConnection>,
    received: u64,
    failures: u32,
    received_at_failure: u64,
    has_foreign_part: bool,
    state: BlobState,
}

struct BlobConnection {
    body: Box<dyn Read + Send>,
    server: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum BlobState {
    Open,
    Ended,
    Failed,
}

impl RegistryRepository<'_> {
    /// Returns a blob as a stream. The first read sends the request.
    pub fn blob_reader<'b>(&'b self, descriptor: &'b Descriptor) -> BlobReader<'b> {
        BlobReader::new(self, descriptor)
    }
}

impl<'a> BlobReader<'a> {
    fn new(repository: &'a RegistryRepository<'a>, descriptor: &'a Descriptor) -> Self {
        BlobReader {
            repository,
            descriptor,
            connection: None,
            received: 0,
            failures: 0,
            received_at_failure: 0,
            has_foreign_part: false,
            state: BlobState::Open,
        }
    }

    /// Returns whether all bytes came from the repository or its mirrors.
    pub(crate) fn is_of_repository(&self) -> bool {
        !self.has_foreign_part
    }

    fn read_some(&mut self, buffer: &mut [u8]) -> Result<usize, RegistryError> {
        loop {
            let error = match self.connection.as_mut() {
                None => match self.connect() {
                    Ok(connection) => {
                        self.connection = Some(connection);
                        continue;
                    }
                    Err(error) => error,
                },
                Some(connection) => match connection.body.read(buffer) {
                    Ok(0) if self.received == self.descriptor.size => {
                        self.state = BlobState::Ended;
                        self.connection = None;
                        return Ok(0);
                    }
                    Ok(0) => explain_io(
                        self.repository.registry(),
                        connection.server.clone(),
                        io::Error::new(
                            io::ErrorKind::UnexpectedEof,
                            "the server closed the connection before the end",
                        ),
                    ),
                    Ok(count) => return self.take(&buffer[..count]),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(error) => {
                        explain_io(self.repository.registry(), connection.server.clone(), error)
                    }
                },
            };
            self.connection = None;
            if self.received - self.received_at_failure >= FORGIVEN_BYTES {
                self.failures = 0;
            }
            self.received_at_failure = self.received;
            self.failures += 1;
            if self.failures > 1 {
                self.repository.leave_mirrors();
            }
            self.repository.wait(error, self.failures)?;
        }
    }

    /// Opens the blob at the offset where the connection broke.
    fn connect(&mut self) -> Result<BlobConnection, RegistryError> {
        let start = self.received;
        let OpenedBlob { answer, is_foreign } = self.repository.open(self.descriptor, start)?;
        self.has_foreign_part |= is_foreign;
        let server = answer.origin.server();
        let response = answer.response;
        let range = response.headers().get("content-range").and_then(|value| value.to_str().ok());
        let begins_at = match (response.status().as_u16(), range) {
            (206, Some(range)) => {
                let first = range.strip_prefix("bytes ").and_then(|range| range.split('-').next());
                first.and_then(|first| first.parse().ok())
            }
            (206, None) => None,
            _ => Some(0),
        };
        // `ureq` does not tell a length of zero from a missing one.
        let left = response.headers().get("content-length").and_then(|value| value.to_str().ok());
        let left = left.and_then(|value| value.parse().ok());
        if let (Some(begin), Some(left)) = (begins_at, left)
            && u64::checked_add(begin, left) != Some(self.descriptor.size)
        {
            return Err(self.size_error(&server, begin.saturating_add(left)));
        }
        let body = response.into_body().into_reader();
        let body = self.repository.budget().watch(server.clone(), body);
        let mut body: Box<dyn Read + Send> = Box::new(body);
        match begins_at {
            Some(begin) if begin == start => {}
            // Not every server supports ranges. Bytes that were returned before are skipped.
            Some(0) => {
                let skipped = io::copy(&mut body.by_ref().take(start), &mut io::sink());
                skipped.map_err(|error| {
                    explain_io(self.repository.registry(), server.clone(), error)
                })?;
            }
            _ => {
                let message = "the response has another range of the blob than requested";
                let source = io::Error::new(io::ErrorKind::InvalidData, message);
                return Err(RegistryError::Protocol { server, source });
            }
        }
        Ok(BlobConnection { body, server })
    }

    fn take(&mut self, bytes: &[u8]) -> Result<usize, RegistryError> {
        self.received += bytes.len() as u64;
        if self.received > self.descriptor.size {
            return Err(self.size_error(&self.server(), self.received));
        }
        let event = ProgressEvent::LayerBytes {
            digest: &self.descriptor.digest,
            bytes: bytes.len() as u64,
        };
        self.repository.progress().event(event);
        Ok(bytes.len())
    }

    fn server(&self) -> String {
        let server = self.connection.as_ref().map(|connection| connection.server.as_str());
        server.unwrap_or(self.repository.registry()).to_owned()
    }

    fn size_error(&self, server: &str, found: u64) -> RegistryError {
        RegistryError::Size {
            server: server.to_owned(),
            digest: self.descriptor.digest.clone(),
            expected: self.descriptor.size,
            found,
        }
    }
}

impl Read for BlobReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        match self.state {
            BlobState::Ended => Ok(0),
            BlobState::Failed => Err(io::Error::other("an earlier read of the blob failed")),
            BlobState::Open => self.read_some(buffer).map_err(|error| {
                self.state = BlobState::Failed;
                self.connection = None;
                io::Error::other(error)
            }),
        }
    }
}

impl fmt::Debug for BlobReader<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlobReader")
            .field("digest", &self.descriptor.digest)
            .field("received", &self.received)
            .finish_non_exhaustive()
    }
}
