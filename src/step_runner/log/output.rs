//! Where the engine puts what steps write.

use std::time::Instant;

/// Who writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// The step runner itself: stream `00`.
    Runner,
    /// A command of a step: stream `01`.
    Step,
}

/// Which of the two streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// Takes what a job writes. What cannot be taken is the taker's to report: a job does not fail
/// because its log is full.
pub trait Output: Send {
    /// Takes bytes as they were written; lines may be cut anywhere.
    fn write(&mut self, source: Source, stream: Stream, bytes: &[u8]);

    /// Is called when a command has ended: what was held back to see more is written now.
    fn flush(&mut self);

    /// Writes what was held back for long enough, and returns when to call again.
    fn release(&mut self, now: Instant) -> Option<Instant> {
        let _ = now;
        None
    }

    /// Masks this from now on, in all streams.
    fn mask(&mut self, secret: &str);
}
