//! The frames between the first process of a job container and the host that starts steps, on a
//! stream socket.
//!
//! A frame is its kind (`u8`), the length of its payload (`u32`) and the payload. Numbers are
//! little-endian, a byte string is its length (`u32`) and its bytes, a list its length and its
//! items, an option `0`, or `1` and the value. A request has at most [`MAX_REQUEST_BYTES`], an
//! answer [`MAX_ANSWER_BYTES`]. Decoding trusts no input: a frame is decoded once its bytes have
//! arrived, and a frame that is too long, unknown, short, or has trailing bytes ends the
//! connection.
//!
//! | kind | from the first process | | kind | from the host |
//! |---|---|---|---|---|
//! | `01` | hello: oldest and newest supported version | | `81` | step: version, program and its settings |
//! | `02` | started: the program was executed | | `82` | signal: a number |
//! | `03` | exited: code | | `84` | terminal size: rows and columns |
//! | `04` | signalled: number | | | |
//! | `05` | failed: reason | | | |
//!
//! Through streams that cannot carry descriptors, the frames of [`journal`] start steps; the kinds
//! `90` to `9f` are those of [`files`].
//!
//! # A connection
//!
//! 1. The first process sends a hello, at the latest after [`DEAD_WITHIN_SECONDS`]: until then it waits for an
//!    earlier step that lost its host to die. The host needs a version that both ends support
//!    ([`Hello::common_version`]), or it does not use this socket.
//! 2. The host sends one step, and with its first byte [`STREAMS`] descriptors of pipes (`SCM_RIGHTS`): the
//!    read end of standard input, the write ends of output and errors, and the read ends of output
//!    and errors. The host reads the output; the first process does so once the host has closed the
//!    connection, so that remaining writers are neither blocked nor killed by `SIGPIPE`. With a terminal
//!    both streams of the program use the first of the two pipes.
//! 3. The answers are `failed`, or `started` and then `exited` or `signalled`. The last answer is sent when the
//!    program has ended, even if it left processes running; but after `SIGHUP`, `SIGINT`, `SIGQUIT` or
//!    `SIGTERM` from the host, only when no process of the step is left.
//! 4. A signal goes to every process of the step. A connection that the host closes before the last answer
//!    is `SIGKILL` for all; if it is closed later, remaining processes go on.

mod failure;
pub mod files;
pub mod journal;
mod values;

use std::fmt;

pub use failure::{FailureKind, StepFailure};
use journal::AttachRequest;
use values::{PayloadReader, PayloadWriter};

/// Supported versions of the protocol.
pub const VERSIONS: Hello = Hello { oldest: 1, newest: 1 };
/// The longest payload of a request.
pub const MAX_REQUEST_BYTES: usize = 16 << 20;
/// The longest payload of an answer.
pub const MAX_ANSWER_BYTES: usize = 16 << 10;
/// Number of descriptors sent with a step.
pub const STREAMS: usize = 5;
/// Timeout for a step that lost its host to die, before the next host gets a hello.
pub const DEAD_WITHIN_SECONDS: u64 = 25;

/// Size of a frame's kind and length.
const HEADER_BYTES: usize = 5;
/// Size above which an empty buffer is freed.
const KEPT_BYTES: usize = 256 << 10;
/// Limit of paths in the kernel, with the NUL.
pub(crate) const MAX_PATH_BYTES: usize = 4096;
const LAST_SIGNAL: i32 = 64;

/// First answer of the first process, with the oldest and the newest version that it supports.
/// Later versions may append fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    pub oldest: u16,
    pub newest: u16,
}

impl Hello {
    /// Returns the newest version that both ends support.
    #[must_use]
    pub fn common_version(self, other: Hello) -> Option<u16> {
        let newest = self.newest.min(other.newest);
        (newest >= self.oldest.max(other.oldest)).then_some(newest)
    }
}

/// Request of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepRequest {
    Step(Box<ContainerStep>),
    /// Sends a signal to every process of the step; `SIGKILL` until none is left.
    Signal(i32),
    /// Sets the size of the program's terminal to that of the host's, which has changed.
    Resize(TerminalSize),
    /// Requests the output and the end of a step that outlives the connection of its host. Part of
    /// the protocol in [`journal`].
    Attach(Box<AttachRequest>),
    /// The host has received all output before this offset, which need not be kept. Part of the protocol in
    /// [`journal`].
    Received(u64),
    /// The host is still connected. Part of the protocol in [`journal`].
    Alive,
}

/// Program and its settings. Settings that are left out are those of the first process, which are
/// the container's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerStep {
    /// Program, searched for in `PATH` if it has no slash, and its arguments.
    pub args: Vec<Vec<u8>>,
    /// Names and values, on top of the container's environment.
    pub env: Vec<(Vec<u8>, Vec<u8>)>,
    /// Directories to put before `PATH`, whether that comes from `env` or the container.
    pub prepend_path: Vec<Vec<u8>>,
    /// The working directory; empty for the container's.
    pub directory: Vec<u8>,
    pub user: Option<StepUser>,
    pub umask: Option<u32>,
    pub rlimits: Vec<ResourceLimit>,
    /// Size of the terminal, if the standard streams are one.
    pub terminal: Option<TerminalSize>,
}

/// User and groups of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepUser {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
}

/// A resource limit, by the kernel's number of the resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResourceLimit {
    pub resource: u32,
    pub soft: u64,
    pub hard: u64,
}

/// The size of a terminal in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TerminalSize {
    pub rows: u16,
    pub columns: u16,
}

/// Answer of the first process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepAnswer {
    Hello(Hello),
    Started,
    Exited(u8),
    Signalled(u8),
    Failed(StepFailure),
}

/// Errors of encoding and decoding frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// A payload is longer than allowed.
    TooLong {
        length: usize,
        max: usize,
    },
    UnknownKind(u8),
    /// The payload ends within a value.
    Short,
    /// The payload has bytes after its values.
    Trailing,
    Version(u16),
    /// A field has an invalid value; the text names the field.
    Invalid(&'static str),
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FrameError::TooLong { length, max } => {
                write!(f, "frame of {length} bytes: expected at most {max}")
            }
            FrameError::UnknownKind(kind) => write!(f, "unknown kind of frame {kind:#04x}"),
            FrameError::Short => f.write_str("frame ends within a value"),
            FrameError::Trailing => f.write_str("frame has bytes after its values"),
            FrameError::Version(version) => write!(
                f,
                "unknown protocol version {version}: expected {} to {}",
                VERSIONS.oldest, VERSIONS.newest
            ),
            FrameError::Invalid(what) => write!(f, "invalid {what}"),
        }
    }
}

impl std::error::Error for FrameError {}

/// Buffer of received bytes, which returns the frames in them.
#[derive(Debug)]
pub struct FrameBuffer {
    bytes: Vec<u8>,
    /// Number of bytes at the beginning of `bytes` whose frames were taken.
    taken: usize,
    max: usize,
}

impl FrameBuffer {
    /// Returns an empty buffer for frames whose payload has at most `max` bytes.
    #[must_use]
    pub const fn new(max: usize) -> Self {
        FrameBuffer { bytes: Vec::new(), taken: 0, max }
    }

    /// Changes the limit of payloads.
    pub fn set_max(&mut self, max: usize) {
        self.max = max;
        self.forget_taken();
        self.bytes.shrink_to_fit();
    }

    /// Appends received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.forget_taken();
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the number of received bytes whose frames were not taken.
    #[must_use]
    pub fn length(&self) -> usize {
        self.bytes.len() - self.taken
    }

    fn forget_taken(&mut self) {
        self.bytes.drain(..self.taken);
        self.taken = 0;
    }

    /// Takes the next frame, once it is complete: its kind and payload.
    pub fn take(&mut self) -> Result<Option<(u8, Vec<u8>)>, FrameError> {
        let left = &self.bytes[self.taken..];
        let Some((&[kind, a, b, c, d], rest)) = left.split_first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes([a, b, c, d]) as usize;
        if length > self.max {
            return Err(FrameError::TooLong { length, max: self.max });
        }
        let Some(payload) = rest.get(..length).map(<[u8]>::to_vec) else {
            return Ok(None);
        };
        self.taken += HEADER_BYTES + length;
        // A long frame contains secrets, and another does not follow soon.
        if self.taken == self.bytes.len() && self.taken > KEPT_BYTES {
            self.bytes = Vec::new();
            self.taken = 0;
        }
        Ok(Some((kind, payload)))
    }

    /// Takes and decodes the next frame, once it is complete.
    pub fn decode_next<T>(
        &mut self,
        decode: impl FnOnce(u8, &[u8]) -> Result<T, FrameError>,
    ) -> Result<Option<T>, FrameError> {
        self.take()?.map(|(kind, payload)| decode(kind, &payload)).transpose()
    }
}

impl StepRequest {
    /// Encodes a request; fails if a value does not fit a frame.
    pub fn encode(&self) -> Result<Vec<u8>, FrameError> {
        let mut out = PayloadWriter::default();
        let kind = match self {
            StepRequest::Step(step) => {
                step.check()?;
                step.write(&mut out);
                0x81
            }
            StepRequest::Signal(signal) => {
                out.0.extend(checked_signal(*signal)?.to_le_bytes());
                0x82
            }
            StepRequest::Resize(TerminalSize { rows, columns }) => {
                out.0.extend(rows.to_le_bytes());
                out.0.extend(columns.to_le_bytes());
                0x84
            }
            StepRequest::Attach(attach) => {
                attach.write(&mut out)?;
                0x85
            }
            StepRequest::Received(offset) => {
                out.0.extend(offset.to_le_bytes());
                0x89
            }
            StepRequest::Alive => 0x8a,
        };
        if out.0.len() > MAX_REQUEST_BYTES {
            return Err(FrameError::TooLong { length: out.0.len(), max: MAX_REQUEST_BYTES });
        }
        Ok(out.into_frame(kind))
    }

    /// Decodes a request from its kind and payload.
    pub fn decode(kind: u8, payload: &[u8]) -> Result<Self, FrameError> {
        let mut from = PayloadReader(payload);
        let request = match kind {
            0x81 => StepRequest::Step(Box::new(ContainerStep::read(&mut from)?)),
            0x82 => StepRequest::Signal(checked_signal(from.i32()?)?),
            0x84 => {
                let (rows, columns) = (from.u16()?, from.u16()?);
                StepRequest::Resize(TerminalSize { rows, columns })
            }
            0x85 => StepRequest::Attach(Box::new(AttachRequest::read(&mut from)?)),
            0x89 => StepRequest::Received(from.u64()?),
            0x8a => StepRequest::Alive,
            _ => return Err(FrameError::UnknownKind(kind)),
        };
        from.end()?;
        Ok(request)
    }
}

fn checked_signal(signal: i32) -> Result<i32, FrameError> {
    let is_signal = (1..=LAST_SIGNAL).contains(&signal);
    is_signal.then_some(signal).ok_or(FrameError::Invalid("signal"))
}

impl ContainerStep {
    /// Checks for values that the kernel or the rest of the program cannot handle.
    fn check(&self) -> Result<(), FrameError> {
        let texts = self.args.iter().chain(&self.prepend_path).chain([&self.directory]);
        let pairs = self.env.iter().flat_map(|(name, value)| [name, value]);
        if texts.chain(pairs).any(|text| text.contains(&0)) {
            return Err(FrameError::Invalid("string: expected no NUL byte"));
        }
        if self.args.first().is_none_or(Vec::is_empty) {
            return Err(FrameError::Invalid("program: it is empty; expected a name or path"));
        }
        if self.env.iter().any(|(name, _)| name.is_empty() || name.contains(&b'=')) {
            return Err(FrameError::Invalid(
                "name of a variable: expected no `=`, and at least one byte",
            ));
        }
        if self.directory.first().is_some_and(|first| *first != b'/') {
            return Err(FrameError::Invalid("directory: expected an absolute path"));
        }
        if self.umask.is_some_and(|umask| umask > 0o777) {
            return Err(FrameError::Invalid("umask: expected at most 0777"));
        }
        Ok(())
    }

    fn write(&self, out: &mut PayloadWriter) {
        out.0.extend(VERSIONS.newest.to_le_bytes());
        out.list(&self.args, |out, arg| out.bytes(arg));
        out.list(&self.env, |out, (name, value)| {
            out.bytes(name);
            out.bytes(value);
        });
        out.list(&self.prepend_path, |out, directory| out.bytes(directory));
        out.bytes(&self.directory);
        out.option(self.user.as_ref(), |out, ids| {
            out.u32(ids.uid);
            out.u32(ids.gid);
            out.list(&ids.groups, |out, group| out.u32(*group));
        });
        out.option(self.umask.as_ref(), |out, umask| out.u32(*umask));
        out.list(&self.rlimits, |out, limit| {
            out.u32(limit.resource);
            out.0.extend(limit.soft.to_le_bytes());
            out.0.extend(limit.hard.to_le_bytes());
        });
        out.option(self.terminal.as_ref(), |out, size| {
            out.0.extend(size.rows.to_le_bytes());
            out.0.extend(size.columns.to_le_bytes());
        });
    }

    fn read(from: &mut PayloadReader<'_>) -> Result<Self, FrameError> {
        let version = from.u16()?;
        if !(VERSIONS.oldest..=VERSIONS.newest).contains(&version) {
            return Err(FrameError::Version(version));
        }
        let step = ContainerStep {
            args: from.list(PayloadReader::bytes)?,
            env: from.list(|from| Ok((from.bytes()?, from.bytes()?)))?,
            prepend_path: from.list(PayloadReader::bytes)?,
            directory: from.bytes()?,
            user: from.option(|from| {
                Ok(StepUser {
                    uid: from.u32()?,
                    gid: from.u32()?,
                    groups: from.list(PayloadReader::u32)?,
                })
            })?,
            umask: from.option(PayloadReader::u32)?,
            rlimits: from.list(|from| {
                Ok(ResourceLimit { resource: from.u32()?, soft: from.u64()?, hard: from.u64()? })
            })?,
            terminal: from
                .option(|from| Ok(TerminalSize { rows: from.u16()?, columns: from.u16()? }))?,
        };
        step.check()?;
        Ok(step)
    }
}

impl StepAnswer {
    /// Encodes an answer. Parts of a failure that exceed the limits are left out.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = PayloadWriter::default();
        let kind = match self {
            StepAnswer::Hello(hello) => {
                out.0.extend(hello.oldest.to_le_bytes());
                out.0.extend(hello.newest.to_le_bytes());
                0x01
            }
            StepAnswer::Started => 0x02,
            StepAnswer::Exited(code) => {
                out.0.push(*code);
                0x03
            }
            StepAnswer::Signalled(signal) => {
                out.0.push(*signal);
                0x04
            }
            StepAnswer::Failed(failure) => {
                failure.write(&mut out);
                0x05
            }
        };
        out.into_frame(kind)
    }

    /// Decodes an answer from its kind and payload.
    pub fn decode(kind: u8, payload: &[u8]) -> Result<Self, FrameError> {
        let mut from = PayloadReader(payload);
        let answer = match kind {
            0x01 => {
                let hello = Hello { oldest: from.u16()?, newest: from.u16()? };
                return Ok(StepAnswer::Hello(hello));
            }
            0x02 => StepAnswer::Started,
            0x03 => StepAnswer::Exited(from.u8()?),
            0x04 => match from.u8()? {
                signal if (1..=LAST_SIGNAL).contains(&i32::from(signal)) => {
                    StepAnswer::Signalled(signal)
                }
                _ => return Err(FrameError::Invalid("signal")),
            },
            0x05 => StepAnswer::Failed(StepFailure::read(&mut from)?),
            _ => return Err(FrameError::UnknownKind(kind)),
        };
        from.end()?;
        Ok(answer)
    }
}

#[cfg(test)]
mod tests;
