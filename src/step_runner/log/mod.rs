//! Logs of jobs: masking, timestamps, storage.
//!
//! Output passes a [`Masker`] and a [`Stamper`] of its stream, in this order, and is written to the file
//! of a [`Log`], which any number of [`Follower`]s read from any offset. [`Demux`] splits a log into
//! streams; [`Plain`] only masks, for a terminal.

mod gate;
mod keep;
mod masker;
mod masking;
mod output;
mod patterns;
mod plain;
mod stamp;

pub use keep::{Follower, Log, LogError, LogFormat, LogReader};
pub use masker::{MASK, Masker};
pub use masking::{Masking, loose_forms, secret_forms};
pub use output::{Output, Source, Stream};
pub use patterns::TooMuchToMask;
pub use plain::Plain;
pub use stamp::{Demux, Stamper, Time};
