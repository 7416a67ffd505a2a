//! OCI layouts as tar archives: written layer by layer, and read by digest.
//!
//! What is written depends on nothing but what is put in: the same files give the same archive, byte by byte.

mod read;
mod write;

pub use read::LayoutArchive;
pub use write::{LayerBuilder, LayoutWriter, WrittenLayer};
