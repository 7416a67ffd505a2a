//! Download of a runner archive, as a stream that resumes after a broken connection.

use std::io::{self, Read};
use std::thread;
use std::time::Instant;

use oci_hooks_image::{Digest, HashAlgorithm, Hasher, RateMeter, SlowTransfer};

use super::error::RunnerError;
use super::runners::RunnerDownloadOptions;
use crate::bootstrap::RunnerArchive;
use crate::http::{HttpBody, HttpClient, shorten_url};

/// Number of bytes received without an error after which earlier errors no longer count.
const FORGIVEN_BYTES: u64 = 4 << 20;

/// Download of a runner archive, as a stream.
///
/// `read` returns errors without details, which [`finish`](Self::finish) returns.
pub struct RunnerDownload<'a> {
    tool: &'a RunnerArchive,
    http: &'a HttpClient,
    options: &'a RunnerDownloadOptions,
    expected: Option<&'a Digest>,
    began: Instant,
    connection: Option<DownloadConnection>,
    total: Option<u64>,
    received: u64,
    hasher: Hasher,
    failures: u32,
    received_at_failure: u64,
    state: DownloadState,
}

/// Body of a response, and its speed.
struct DownloadConnection {
    body: HttpBody,
    meter: RateMeter,
}

enum DownloadState {
    Open,
    Ended,
    Failed(RunnerError),
}

impl<'a> RunnerDownload<'a> {
    pub(super) fn new(
        tool: &'a RunnerArchive,
        expected: Option<&'a Digest>,
        http: &'a HttpClient,
        options: &'a RunnerDownloadOptions,
    ) -> Self {
        RunnerDownload {
            tool,
            http,
            options,
            expected,
            began: Instant::now(),
            connection: None,
            total: None,
            received: 0,
            hasher: Hasher::new(HashAlgorithm::Sha256),
            failures: 0,
            received_at_failure: 0,
            state: DownloadState::Open,
        }
    }

    /// Returns the URL without credentials and query.
    pub fn url(&self) -> String {
        shorten_url(&self.tool.download_url)
    }

    /// Reads the rest, and checks the digest.
    pub fn finish(mut self) -> Result<(), RunnerError> {
        // `self.state` has the error.
        let _ = io::copy(&mut self, &mut io::sink());
        let url = self.url();
        if let DownloadState::Failed(error) = self.state {
            return Err(error);
        }
        let actual = self.hasher.finish();
        if let Some(expected) = self.expected
            && *expected != actual
        {
            let [expected, actual] = [expected, &actual].map(|digest| digest.hex().to_owned());
            return Err(RunnerError::Digest { url, expected, actual });
        }
        Ok(())
    }

    fn read_some(&mut self, buffer: &mut [u8]) -> Result<usize, RunnerError> {
        loop {
            if self.began.elapsed() > self.options.timeout {
                let (url, bytes, timeout) = (self.url(), self.received, self.options.timeout);
                return Err(RunnerError::TooSlow { url, bytes, timeout });
            }
            let error = match self.step(buffer) {
                Ok(count) => return Ok(count),
                Err(error) if is_transient(&error) => error,
                Err(error) => return Err(error),
            };
            self.connection = None;
            if self.received - self.received_at_failure >= FORGIVEN_BYTES {
                self.failures = 0;
            }
            self.received_at_failure = self.received;
            self.failures += 1;
            if self.failures >= self.options.retry.attempts {
                return Err(error);
            }
            thread::sleep(self.options.retry.pause);
        }
    }

    /// Reads once, after connecting if necessary.
    fn step(&mut self, buffer: &mut [u8]) -> Result<usize, RunnerError> {
        if self.connection.is_none() {
            self.connection = Some(self.connect()?);
        }
        let DownloadConnection { body, meter } =
            self.connection.as_mut().expect("it was just made");
        // Only the time of reading counts, not that of processing the data.
        let start = Instant::now();
        let count = match body.reader.read(buffer) {
            Ok(count) => {
                let came = meter.add(count as u64, start.elapsed());
                came.map_err(|came| self.pace_error(came))?;
                count
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return self.step(buffer),
            Err(error) => return Err(self.download_error(error)),
        };
        if count == 0 {
            if self.total.is_some_and(|total| total != self.received) {
                return Err(self.download_error(io::ErrorKind::UnexpectedEof.into()));
            }
            self.state = DownloadState::Ended;
        }
        self.received += count as u64;
        self.check_size(Some(self.received))?;
        self.hasher.update(&buffer[..count]);
        Ok(count)
    }

    /// Opens the archive at the current offset.
    fn connect(&mut self) -> Result<DownloadConnection, RunnerError> {
        let token = self.tool.token.as_ref().map(|token| token.reveal());
        let url = &self.tool.download_url;
        let mut body = self.http.open(url, token, self.received).map_err(RunnerError::Http)?;
        self.check_size(body.total)?;
        if self.received > 0 && body.total != self.total {
            let other = "the file has changed on the server";
            return Err(self.download_error(io::Error::new(io::ErrorKind::InvalidData, other)));
        }
        self.total = body.total;
        // A server without support for ranges sends the first bytes again.
        let again = self.received.saturating_sub(body.start);
        let passed = io::copy(&mut body.reader.by_ref().take(again), &mut io::sink());
        if passed.map_err(|error| self.download_error(error))? < again {
            return Err(self.download_error(io::ErrorKind::UnexpectedEof.into()));
        }
        Ok(DownloadConnection { body, meter: RateMeter::new(self.options.pace) })
    }

    fn check_size(&self, bytes: Option<u64>) -> Result<(), RunnerError> {
        let limit_bytes = self.options.archive_bytes;
        match bytes {
            Some(bytes) if bytes > limit_bytes => {
                Err(RunnerError::TooLarge { url: self.url(), limit_bytes })
            }
            _ => Ok(()),
        }
    }

    fn pace_error(&self, came: SlowTransfer) -> RunnerError {
        RunnerError::Pace {
            url: self.url(),
            bytes: came.bytes,
            time: came.time,
            bytes_per_second: self.options.pace.bytes_per_second,
        }
    }

    fn download_error(&self, source: io::Error) -> RunnerError {
        RunnerError::Broken { url: self.url(), bytes: self.received, source }
    }
}

impl Read for RunnerDownload<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.state {
            DownloadState::Open => {}
            DownloadState::Ended => return Ok(0),
            DownloadState::Failed(_) => return Err(io::ErrorKind::Other.into()),
        }
        self.read_some(buffer).map_err(|error| {
            self.connection = None;
            self.state = DownloadState::Failed(error);
            io::ErrorKind::Other.into()
        })
    }
}

fn is_transient(error: &RunnerError) -> bool {
    match error {
        RunnerError::Http(error) => error.is_transient(),
        RunnerError::Pace { .. } => true,
        RunnerError::Broken { source, .. } => source.kind() != io::ErrorKind::InvalidData,
        _ => false,
    }
}
