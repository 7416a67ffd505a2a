//! What a job writes: masked, stamped and kept.

mod output;

pub use output::{Output, Source, Stream};
