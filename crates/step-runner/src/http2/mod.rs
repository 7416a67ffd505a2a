//! The part of HTTP/2 that is parsed outside of the gRPC library: frame boundaries, and one header.

mod authority;
mod frames;

pub use authority::AuthorityStream;
pub use frames::{FrameKind, FrameReader};
