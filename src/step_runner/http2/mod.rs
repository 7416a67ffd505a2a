//! HTTP/2 as far as it must be read beside the gRPC library: where frames begin, and one header of theirs.

mod authority;
mod frames;

pub use authority::Tidied;
pub use frames::{Frames, Kind};
