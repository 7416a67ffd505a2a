//! Logs of jobs: masking, timestamps, storage.
//!
//! Output passes a [`Masker`] and a [`LogStamper`] of its stream, in this order, and is written to the file
//! of a [`StepLog`], which any number of [`LogFollower`]s read from any offset. [`LogDemux`] splits a log into
//! streams; [`PlainOutput`] only masks, for a terminal.

mod automaton;
mod keep;
mod masker;
mod masking;
mod output;
mod patterns;
mod plain;
mod prefilter;
mod stamp;

pub use keep::{LogError, LogFollower, LogFormat, LogReader, StepLog};
pub use masker::{MASK, Masker};
pub use masking::{Masking, loose_forms, secret_forms};
pub use output::{LogStream, OutputSink, OutputSource};
pub use patterns::TooMuchToMask;
pub use plain::PlainOutput;
pub use stamp::{LogDemux, LogStamper, LogTime};
