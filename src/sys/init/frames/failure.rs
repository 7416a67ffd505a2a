//! Why there was no step.

use super::values::{Reader, Writer};
use super::{FrameError, MAX_ANSWER_BYTES, MAX_PATH_BYTES};

/// Why there was no step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub kind: FailureKind,
    /// The kernel's error number, or 0.
    pub errno: i32,
    /// The program, the directory, or what was done.
    pub path: Vec<u8>,
    /// What there is instead: see the kinds.
    pub found: Vec<Vec<u8>>,
}

/// What failed, and what [`Failure::found`] has then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// No such program; the shells and interpreters that the container's `PATH` has.
    ProgramMissing,
    /// The program is there and cannot be executed.
    ProgramNotExecutable,
    /// The program is there, but not what its first line or header says it is run by; that.
    InterpreterMissing,
    /// No such working directory, or no directory; the deepest directory on the way that exists.
    Directory,
    /// A user, umask, limit or terminal could not be set; the path says which.
    Setup,
    /// No further process: a limit of the container.
    Process,
    /// The request was none, or came too slowly; the path says why.
    Request,
    /// A cancelled step is not dead, and could not be killed.
    Busy,
    /// The process that watches over the step was killed, and what was left of the step with it.
    Watcher,
    /// The process that keeps what the step writes was killed, or the container was started again.
    Keeper,
    /// What the host asks for was kept for it once, and is no longer.
    Forgotten,
    /// The host was away for too long, and the step was killed.
    Abandoned,
    /// Something that a later version has.
    Other(u8),
}

/// The kinds in order of their numbers, from 1 on.
pub const KINDS: [FailureKind; 12] = [
    FailureKind::ProgramMissing,
    FailureKind::ProgramNotExecutable,
    FailureKind::InterpreterMissing,
    FailureKind::Directory,
    FailureKind::Setup,
    FailureKind::Process,
    FailureKind::Request,
    FailureKind::Busy,
    FailureKind::Watcher,
    FailureKind::Keeper,
    FailureKind::Forgotten,
    FailureKind::Abandoned,
];

impl Failure {
    pub(super) fn write(&self, out: &mut Writer) {
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

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, FrameError> {
        let number = from.u8()?;
        let known = (1_u8..).zip(KINDS).find(|(known, _)| *known == number);
        let kind = known.map_or(FailureKind::Other(number), |(_, kind)| kind);
        let (errno, path, found) = (from.i32()?, from.bytes()?, from.list(Reader::bytes)?);
        Ok(Failure { kind, errno, path, found })
    }
}
