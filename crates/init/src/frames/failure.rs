//! Failures of steps.

use super::values::{PayloadReader, PayloadWriter};
use super::{FrameError, MAX_ANSWER_BYTES, MAX_PATH_BYTES};

/// Failure of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepFailure {
    pub kind: FailureKind,
    /// The kernel's error number, or 0.
    pub errno: i32,
    /// Program, directory, or failed operation.
    pub path: Vec<u8>,
    /// Names that help to fix the failure, such as existing shells; [`FailureKind`] describes them.
    /// Empty for most kinds.
    pub found: Vec<Vec<u8>>,
}

/// Kind of a failure, and the content of [`StepFailure::found`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// The program does not exist; `found` has the shells and interpreters in the container's
    /// `PATH`.
    ProgramMissing,
    /// The program exists, but cannot be executed.
    ProgramNotExecutable,
    /// The program exists, but the interpreter in its first line or header does not; `found` names
    /// it.
    InterpreterMissing,
    /// The working directory does not exist, or is not a directory; `found` has its deepest
    /// existing parent.
    Directory,
    /// A user, umask, limit or terminal could not be set; `path` names it.
    Setup,
    /// A process could not be created, because of a limit of the container.
    Process,
    /// The request was invalid or too slow; `path` has the reason.
    Request,
    /// A step that was cancelled, or that has no host, could not be killed and is still alive.
    Busy,
    /// The supervisor of the step was killed, and the rest of the step with it.
    Supervisor,
    /// The supervisor of a step that is kept was killed, the container was restarted, or a host has
    /// acknowledged the end of the step.
    Keeper,
    /// The requested output was dropped, because a host had acknowledged it.
    Forgotten,
    /// The host was disconnected for too long, and the step was killed.
    Abandoned,
    /// Kind that a later version added, by its number.
    Other(u8),
}

/// The kinds in the order of their numbers, from 1 on.
pub const KINDS: [FailureKind; 12] = [
    FailureKind::ProgramMissing,
    FailureKind::ProgramNotExecutable,
    FailureKind::InterpreterMissing,
    FailureKind::Directory,
    FailureKind::Setup,
    FailureKind::Process,
    FailureKind::Request,
    FailureKind::Busy,
    FailureKind::Supervisor,
    FailureKind::Keeper,
    FailureKind::Forgotten,
    FailureKind::Abandoned,
];

impl StepFailure {
    /// Returns a failure whose [`found`](StepFailure::found) is empty.
    #[must_use]
    pub fn new(kind: FailureKind, errno: i32, path: impl Into<Vec<u8>>) -> Self {
        StepFailure { kind, errno, path: path.into(), found: Vec::new() }
    }

    pub(super) fn write(&self, out: &mut PayloadWriter) {
        let known = (1_u8..).zip(KINDS).find(|(_, kind)| *kind == self.kind);
        out.0.push(match self.kind {
            FailureKind::Other(number) => number,
            _ => known.map_or(0, |(number, _)| number),
        });
        out.0.extend(self.errno.to_le_bytes());
        out.bytes(&self.path[..self.path.len().min(MAX_PATH_BYTES)]);
        let mut room = MAX_ANSWER_BYTES - out.0.len() - 4;
        let fitting = self.found.iter().take_while(|text| {
            let fits = text.len() + 4 <= room;
            room = room.saturating_sub(text.len() + 4);
            fits
        });
        let fitting: Vec<_> = fitting.collect();
        out.list(&fitting, |out, text| out.bytes(text));
    }

    pub(super) fn read(from: &mut PayloadReader<'_>) -> Result<Self, FrameError> {
        let number = from.u8()?;
        let known = (1_u8..).zip(KINDS).find(|(known, _)| *known == number);
        let kind = known.map_or(FailureKind::Other(number), |(_, kind)| kind);
        let (errno, path, found) = (from.i32()?, from.bytes()?, from.list(PayloadReader::bytes)?);
        Ok(StepFailure { kind, errno, path, found })
    }
}
