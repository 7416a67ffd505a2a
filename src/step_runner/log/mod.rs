//! What a job writes: masked, stamped and kept.
//!
//! Bytes go through a [`Masker`] and a [`Stamper`] of their stream, in this order, and into the file
//! of a [`Log`], which any number of [`Follower`]s read from any offset. [`Demux`] is for those who
//! read it; [`Plain`] is masked only, for a terminal. Who asks a job what, and when a log is
//! removed, is not known here.

mod demux;
mod follow;
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
pub use forms::{loose_forms, secret_forms};
pub use keep::{Log, LogError};
pub use masker::{MASK, Masker};
pub use masking::Masking;
pub use output::{Output, Source, Stream};
pub use patterns::TooMuchToMask;
pub use plain::Plain;
pub use stamp::{Stamper, Time};
