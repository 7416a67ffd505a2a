//! The sink for the output of steps.

use std::time::Instant;

/// Origin of a part of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OutputSource {
    /// The step runner itself: stream number `00` in the log.
    Runner,
    /// A command of a step: stream number `01` in the log.
    Step,
}

/// Standard output or standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LogStream {
    Out,
    Err,
}

/// A sink for the output of a job. It reports its own errors: a job does not fail because its log is
/// full.
pub trait OutputSink: Send {
    /// Writes bytes; lines may be split anywhere.
    fn write(&mut self, source: OutputSource, stream: LogStream, bytes: &[u8]);

    /// Writes held-back output; called when a command has ended.
    fn flush(&mut self);

    /// Writes output that has been held back long enough. Returns the time of the next call, if
    /// output is still held back.
    fn release(&mut self, now: Instant) -> Option<Instant> {
        let _ = now;
        None
    }

    /// Masks a secret from now on, in all streams.
    fn mask(&mut self, secret: &str);
}
