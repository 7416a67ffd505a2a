//! The download of a runner's archive, as a stream that survives a broken connection.

use std::fmt;
use std::io::{self, Read};
use std::thread;
use std::time::{Duration, Instant};

use super::error::RunnerError;
use super::runners::RunnerOptions;
use crate::garm::bootstrap::Tool;
use crate::garm::http::{Body, Http, shown};
use crate::image::{Algorithm, Digest, Hasher, Meter, TooSlow};
use crate::sys::error::chain;

/// After this much came without trouble, earlier trouble is forgotten.
const FORGIVEN_BYTES: u64 = 4 << 20;

/// Something that happens while a runner is made a layer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum DownloadEvent {
    /// A server begins to send it.
    Started {
        /// Where, without what may be secret.
        url: String,
        /// How much it is, if the server says so.
        bytes: Option<u64>,
    },
    /// Something failed and is tried again.
    Retry {
        /// What failed, with its causes.
        error: String,
        bytes: u64,
    },
    /// All of it came and is what it should be.
    Done { bytes: u64, time: Duration },
}

/// Called with each event of a download.
pub type Listener<'a> = &'a (dyn Fn(DownloadEvent) + Sync);

/// An archive as a stream.
///
/// Whoever reads gets errors without content: [`finish`](Self::finish) returns what they are.
pub struct Download<'a> {
    tool: &'a Tool,
    http: &'a Http,
    options: &'a RunnerOptions,
    listener: Listener<'a>,
    expected: Option<&'a Digest>,
    began: Instant,
    connection: Option<Connection>,
    total: Option<u64>,
    received: u64,
    hasher: Hasher,
    failures: u32,
    received_at_failure: u64,
    state: State,
}

/// What a server sends, and how fast.
struct Connection {
    body: Body,
    meter: Meter,
}

enum State {
    Open,
    Ended,
    Failed(RunnerError),
}

impl<'a> Download<'a> {
    pub(super) fn new(
        tool: &'a Tool,
        expected: Option<&'a Digest>,
        http: &'a Http,
        options: &'a RunnerOptions,
        listener: Listener<'a>,
    ) -> Self {
        Download {
            tool,
            http,
            options,
            listener,
            expected,
            began: Instant::now(),
            connection: None,
            total: None,
            received: 0,
            hasher: Hasher::new(Algorithm::Sha256),
            failures: 0,
            received_at_failure: 0,
            state: State::Open,
        }
    }

    /// Returns the address, without what may be secret.
    pub fn url(&self) -> String {
        shown(&self.tool.download_url)
    }

    /// Reads what nobody wanted, and checks the whole.
    pub fn finish(mut self) -> Result<(), RunnerError> {
        // The error is in the state.
        let _ = io::copy(&mut self, &mut io::sink());
        let url = self.url();
        if let State::Failed(error) = self.state {
            return Err(error);
        }
        let actual = self.hasher.finish();
        if let Some(expected) = self.expected
            && *expected != actual
        {
            let [expected, actual] = [expected, &actual].map(|digest| digest.hex().to_owned());
            return Err(RunnerError::Digest { url, expected, actual });
        }
        let (bytes, time) = (self.received, self.began.elapsed());
        (self.listener)(DownloadEvent::Done { bytes, time });
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
            (self.listener)(DownloadEvent::Retry { error: chain(&error), bytes: self.received });
            thread::sleep(self.options.retry.pause);
        }
    }

    /// Reads a piece, after a connection was made if there is none.
    fn step(&mut self, buffer: &mut [u8]) -> Result<usize, RunnerError> {
        if self.connection.is_none() {
            self.connection = Some(self.connect()?);
        }
        let Connection { body, meter } = self.connection.as_mut().expect("it was just made");
        // Only what the server takes counts, not what is done with the data in between.
        let start = Instant::now();
        let count = match body.reader.read(buffer) {
            Ok(count) => {
                let came = meter.add(count as u64, start.elapsed());
                came.map_err(|came| self.too_slow(came))?;
                count
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return self.step(buffer),
            Err(error) => return Err(self.broken(error)),
        };
        if count == 0 {
            if self.total.is_some_and(|total| total != self.received) {
                return Err(self.broken(io::ErrorKind::UnexpectedEof.into()));
            }
            self.state = State::Ended;
        }
        self.received += count as u64;
        self.check_size(Some(self.received))?;
        self.hasher.update(&buffer[..count]);
        Ok(count)
    }

    /// Opens the archive where it broke off.
    fn connect(&mut self) -> Result<Connection, RunnerError> {
        let token = self.tool.token.as_ref().map(|token| token.reveal());
        let url = &self.tool.download_url;
        let mut body = self.http.open(url, token, self.received).map_err(RunnerError::Http)?;
        self.check_size(body.total)?;
        if self.received > 0 && body.total != self.total {
            let other = "it is another file now than at first";
            return Err(self.broken(io::Error::new(io::ErrorKind::InvalidData, other)));
        }
        self.total = body.total;
        if self.received == 0 {
            let bytes = body.total;
            (self.listener)(DownloadEvent::Started { url: self.url(), bytes });
        }
        // A server that cannot begin in the middle sends again what was there already.
        let again = self.received.saturating_sub(body.start);
        let passed = io::copy(&mut body.reader.by_ref().take(again), &mut io::sink());
        if passed.map_err(|error| self.broken(error))? < again {
            return Err(self.broken(io::ErrorKind::UnexpectedEof.into()));
        }
        Ok(Connection { body, meter: Meter::new(self.options.pace) })
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

    fn too_slow(&self, came: TooSlow) -> RunnerError {
        RunnerError::Pace {
            url: self.url(),
            bytes: came.bytes,
            time: came.time,
            bytes_per_second: self.options.pace.bytes_per_second,
        }
    }

    fn broken(&self, source: io::Error) -> RunnerError {
        RunnerError::Broken { url: self.url(), bytes: self.received, source }
    }
}

impl Read for Download<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.state {
            State::Open => {}
            State::Ended => return Ok(0),
            State::Failed(_) => return Err(io::ErrorKind::Other.into()),
        }
        self.read_some(buffer).map_err(|error| {
            self.connection = None;
            self.state = State::Failed(error);
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

impl fmt::Display for DownloadEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DownloadEvent::Started { url, bytes: Some(bytes) } => {
                write!(f, "downloading the runner from {url}: {bytes} bytes")
            }
            DownloadEvent::Started { url, bytes: None } => {
                write!(f, "downloading the runner from {url}")
            }
            DownloadEvent::Retry { error, .. } => write!(f, "trying again: {error}"),
            DownloadEvent::Done { bytes, time } => {
                let seconds = time.as_secs_f32();
                write!(f, "downloaded the runner: {bytes} bytes in {seconds:.1} s")
            }
        }
    }
}
