//! Logs of jobs: masking, timestamps, storage.
//!
//! Output passes a [`Masker`] and a [`Stamper`] of its stream, in this order, and is written to the file
//! of a [`Log`], which any number of [`Follower`]s read from any offset. [`Demux`] splits a log into
//! streams; [`Plain`] only masks, for a terminal.

mod demux;
mod follow;
mod format;
mod forms;
mod gate;
mod keep;
mod loose;
mod masker;
mod masking;
mod normalize;
mod output;
mod patterns;
mod plain;
mod stamp;
mod streams;

pub use demux::Demux;
pub use follow::{Follower, LogReader};
pub use format::LogFormat;
pub use forms::{loose_forms, secret_forms};
pub use keep::{Log, LogError};
pub use masker::{MASK, Masker};
pub use masking::Masking;
pub use output::{Output, Source, Stream};
pub use patterns::TooMuchToMask;
pub use plain::Plain;
pub use stamp::{Stamper, Time};
