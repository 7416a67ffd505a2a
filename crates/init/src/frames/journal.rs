//! The frames of a step whose host may disconnect and return: output is kept until the host has
//! received it.
//!
//! They go through the stream of an exec to `call`, and on to the supervisor of the step. Kinds,
//! numbers and strings are as in [the other frames](super); an answer has at most
//! [`MAX_EVENT_BYTES`].
//!
//! | kind | to the host | | kind | from the host |
//! |---|---|---|---|---|
//! | `02` | started | | `82` | signal: a number |
//! | `03` | exited: offset, limits, code | | `85` | attach: id, offset, perhaps a step |
//! | `04` | signalled: offset, limits, number | | `89` | received: offset |
//! | `05` | failed: offset, limits, reason | | `8a` | alive |
//! | `06` | output: stream, offset, bytes | | | |
//! | `07` | heartbeat | | | |
//!
//! An offset counts the bytes of both streams, in the order in which they were read. The offset of
//! an end is that of the last byte: a host with fewer bytes lacks output. A host that attaches gets
//! `started` again, then the output from its offset on, then the end, each as it comes. A `received`
//! with an offset after the last byte acknowledges the end too, and nothing is kept any more. A step
//! with an id is started unless the id was used before, and never twice.

use super::values::{PayloadReader, PayloadWriter};
use super::{ContainerStep, FrameError, StepAnswer, StepFailure};

/// Longest payload of an answer; output is split.
pub const MAX_EVENT_BYTES: usize = 1 << 20;
/// Maximum output in one answer.
pub const MAX_OUTPUT_BYTES: usize = 64 << 10;
/// Number of received bytes after which a host has to send
/// [`StepRequest::Received`](super::StepRequest::Received).
pub const RECEIVED_BYTES: u64 = 16 << 10;
/// Offset by which a host acknowledges the end of a step.
pub const END_RECEIVED: u64 = u64::MAX;
/// Longest interval between two frames from the same end.
pub const HEARTBEAT_SECONDS: u64 = 5;

const MAX_ID_BYTES: usize = 64;
/// Size of kind, length, stream and offset before output.
const OUTPUT_HEADER_BYTES: usize = 14;

/// Name of one run of a step, and of a file: letters, digits, `-` and `_`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepId(String);

impl StepId {
    /// Returns the identifier with this text, or `None` if the text is empty, longer than 64 bytes,
    /// or has a character other than ASCII letters, digits, `-` and `_`.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        let fits = (1..=MAX_ID_BYTES).contains(&text.len()) && text.bytes().all(is_plain);
        fits.then(|| StepId(text.to_owned()))
    }

    /// Returns the identifier.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A stream of a step's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputStream {
    Output,
    Errors,
}

impl OutputStream {
    /// Both streams in the order of their numbers, from 0 on.
    pub const ALL: [OutputStream; 2] = [OutputStream::Output, OutputStream::Errors];
}

/// Request for the output and the end of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachRequest {
    pub id: StepId,
    /// Offset of the first output that the host lacks.
    pub from: u64,
    /// Step to start, unless its id was used before.
    pub step: Option<ContainerStep>,
}

/// Event of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepEvent {
    Started,
    /// The step has ended; `end` is `exited`, `signalled` or `failed`.
    Ended {
        /// Number of bytes that the step has written.
        offset: u64,
        limits: LimitEvents,
        end: StepAnswer,
    },
    Output {
        stream: OutputStream,
        /// Offset of the first byte of `bytes`.
        offset: u64,
        bytes: Vec<u8>,
    },
    Heartbeat,
}

/// Events of the container's limits while a step ran; zeros if the container does not show them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitEvents {
    /// Number of processes killed for lack of memory.
    pub memory_kills: u64,
    /// CPU time that processes used.
    pub cpu_usec: u64,
    /// Time for which the CPU limit kept processes from using a CPU, summed over the CPUs.
    pub throttled_usec: u64,
    /// Set if the root directory or the working directory has no room left.
    pub is_disk_full: bool,
}

impl LimitEvents {
    fn write(self, out: &mut PayloadWriter) {
        for count in [self.memory_kills, self.cpu_usec, self.throttled_usec] {
            out.0.extend(count.to_le_bytes());
        }
        out.0.push(u8::from(self.is_disk_full));
    }

    fn read(from: &mut PayloadReader<'_>) -> Result<Self, FrameError> {
        Ok(LimitEvents {
            memory_kills: from.u64()?,
            cpu_usec: from.u64()?,
            throttled_usec: from.u64()?,
            is_disk_full: from.u8()? != 0,
        })
    }
}

impl AttachRequest {
    pub(super) fn write(&self, out: &mut PayloadWriter) -> Result<(), FrameError> {
        out.bytes(self.id.0.as_bytes());
        out.0.extend(self.from.to_le_bytes());
        self.step.iter().try_for_each(ContainerStep::check)?;
        out.option(self.step.as_ref(), |out, step| step.write(out));
        Ok(())
    }

    pub(super) fn read(from: &mut PayloadReader<'_>) -> Result<Self, FrameError> {
        let id = from.bytes()?;
        let id = str::from_utf8(&id).ok().and_then(StepId::new).ok_or(FrameError::Invalid("id"))?;
        Ok(AttachRequest { id, from: from.u64()?, step: from.option(ContainerStep::read)? })
    }
}

impl StepEvent {
    /// Returns the end of a step that failed, or whose end is unknown, after so many bytes of output.
    #[must_use]
    pub fn failed(offset: u64, failure: StepFailure) -> Self {
        let (limits, end) = (LimitEvents::default(), StepAnswer::Failed(failure));
        StepEvent::Ended { offset, limits, end }
    }

    /// Encodes an event.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = PayloadWriter::default();
        let kind = match self {
            StepEvent::Started => 0x02,
            StepEvent::Ended { offset, limits, end } => {
                out.0.extend(offset.to_le_bytes());
                limits.write(&mut out);
                let answer = end.encode();
                let (kind, payload) = (answer[0], &answer[super::HEADER_BYTES..]);
                out.0.extend(payload);
                kind
            }
            StepEvent::Output { stream, offset, bytes } => {
                let mut frame = output_header(*stream, *offset, bytes.len()).to_vec();
                frame.extend(bytes);
                return frame;
            }
            StepEvent::Heartbeat => 0x07,
        };
        out.into_frame(kind)
    }

    /// Decodes an event from its kind and payload.
    pub fn decode(kind: u8, payload: &[u8]) -> Result<Self, FrameError> {
        let mut from = PayloadReader(payload);
        let event = match kind {
            0x02 => StepEvent::Started,
            0x03..=0x05 => {
                let (offset, limits) = (from.u64()?, LimitEvents::read(&mut from)?);
                let end = StepAnswer::decode(kind, from.0)?;
                return Ok(StepEvent::Ended { offset, limits, end });
            }
            0x06 => {
                let stream = OutputStream::ALL.get(usize::from(from.u8()?)).copied();
                let stream = stream.ok_or(FrameError::Invalid("stream"))?;
                let offset = from.u64()?;
                return Ok(StepEvent::Output { stream, offset, bytes: from.0.to_vec() });
            }
            0x07 => StepEvent::Heartbeat,
            _ => return Err(FrameError::UnknownKind(kind)),
        };
        from.end()?;
        Ok(event)
    }
}

/// Returns the header of an output frame.
#[must_use]
pub fn output_header(stream: OutputStream, offset: u64, length: usize) -> [u8; 14] {
    let mut header = [0; OUTPUT_HEADER_BYTES];
    let payload = length + OUTPUT_HEADER_BYTES - super::HEADER_BYTES;
    header[0] = 0x06;
    header[1..5].copy_from_slice(&u32::try_from(payload).unwrap_or(u32::MAX).to_le_bytes());
    header[5] = stream as u8;
    header[6..].copy_from_slice(&offset.to_le_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::super::{FailureKind, FrameBuffer, HEADER_BYTES, MAX_REQUEST_BYTES, StepRequest};
    use super::*;

    fn id(text: &str) -> StepId {
        StepId::new(text).unwrap()
    }

    fn events() -> Vec<StepEvent> {
        let failure = StepFailure {
            kind: FailureKind::Keeper,
            errno: 2,
            path: b"x".to_vec(),
            found: Vec::new(),
        };
        let ends = [StepAnswer::Exited(255), StepAnswer::Signalled(9), StepAnswer::Failed(failure)];
        let output = OutputStream::ALL.map(|stream| StepEvent::Output {
            stream,
            offset: 1 << 33,
            bytes: b"\0\xff".to_vec(),
        });
        let limits = LimitEvents {
            memory_kills: 1,
            cpu_usec: 1 << 40,
            throttled_usec: 3,
            is_disk_full: true,
        };
        let ends = ends.into_iter().map(|end| StepEvent::Ended { offset: 77, limits, end });
        [StepEvent::Started, StepEvent::Heartbeat].into_iter().chain(output).chain(ends).collect()
    }

    fn take_frame(bytes: &[u8]) -> (u8, Vec<u8>) {
        let mut frames = FrameBuffer::new(MAX_REQUEST_BYTES);
        frames.push(bytes);
        let frame = frames.take().unwrap().unwrap();
        assert_eq!(frames.length(), 0);
        frame
    }

    #[test]
    fn events_decode_only_completely() {
        for event in events() {
            let (kind, payload) = take_frame(&event.encode());
            assert_eq!(StepEvent::decode(kind, &payload), Ok(event.clone()));
            let is_output = matches!(event, StepEvent::Output { .. });
            for end in 0..payload.len() {
                // Output may be any bytes, or empty.
                let part = StepEvent::decode(kind, &payload[..end]);
                assert!(part == Err(FrameError::Short) || (is_output && end >= 9), "{part:?}");
            }
        }
    }

    #[test]
    fn output_is_as_long_as_its_frame() {
        let output = StepEvent::Output {
            stream: OutputStream::Errors,
            offset: 5,
            bytes: vec![7; MAX_OUTPUT_BYTES],
        };
        let frame = output.encode();
        assert_eq!(frame.len(), OUTPUT_HEADER_BYTES + MAX_OUTPUT_BYTES);
        assert!(frame.len() <= HEADER_BYTES + MAX_EVENT_BYTES);
        assert_eq!(frame[..14], output_header(OutputStream::Errors, 5, MAX_OUTPUT_BYTES));
    }

    #[test]
    fn step_ids_are_file_names() {
        let longest = "x".repeat(64);
        for text in ["a", "A-b_0", "-", "6f1e9a5c-3a55-4b9f-8d6f-0e5d2b1c7a11", &longest] {
            assert_eq!(id(text).as_str(), text);
        }
        for text in ["", ".", "..", "a/b", "a b", "a\0", "é", &"x".repeat(65)] {
            assert_eq!(StepId::new(text), None, "{text:?}");
            let mut payload = u32::try_from(text.len()).unwrap().to_le_bytes().to_vec();
            payload.extend(text.as_bytes());
            payload.extend([0; 9]);
            let read = StepRequest::decode(0x85, &payload);
            assert_eq!(read, Err(FrameError::Invalid("id")), "{text:?}");
        }
    }

    #[test]
    fn invalid_values_are_rejected() {
        assert_eq!(StepEvent::decode(0x06, &[2; 9]), Err(FrameError::Invalid("stream")));
        assert_eq!(StepEvent::decode(0x04, &[0; 34]), Err(FrameError::Invalid("signal")));
        assert_eq!(StepEvent::decode(0x08, &[]), Err(FrameError::UnknownKind(8)));
        let attach = AttachRequest { id: id("a"), from: 0, step: Some(ContainerStep::default()) };
        assert!(StepRequest::Attach(Box::new(attach)).encode().is_err());
        let step =
            ContainerStep { args: vec![vec![b'x'; MAX_REQUEST_BYTES]], ..ContainerStep::default() };
        let attach = AttachRequest { id: id("a"), from: 0, step: Some(step) };
        let encoded = StepRequest::Attach(Box::new(attach)).encode();
        assert!(matches!(encoded, Err(FrameError::TooLong { .. })));
    }
}
