//! The sink for the output of steps.

use std::time::Instant;

/// Origin of a part of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// The step runner itself: stream `00`.
    Runner,
    /// A command of a step: stream `01`.
    Step,
}

/// Standard output or standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stream {
    Out,
    Err,
}

/// A sink for the output of a job. It reports its own errors: a job does not fail because its log is
/// full.
pub trait Output: Send {
    /// Writes bytes; lines may be split anywhere.
    fn write(&mut self, source: Source, stream: Stream, bytes: &[u8]);

    /// Writes what is held back; called when a command has ended.
    fn flush(&mut self);

    /// Writes what was held back long enough, and returns when to call again.
    fn release(&mut self, now: Instant) -> Option<Instant> {
        let _ = now;
        None
    }

    /// Masks a secret from now on, in all streams.
    fn mask(&mut self, secret: &str);
}
