//! What a hook file says: schemas 1.0.0 and 0.1.0, the older one converted on load.

mod decode;
mod definition;
mod usual;
mod v0_1_0;
mod v1_0_0;
mod validate;

pub use definition::{Definition, PathCheck, SchemaOptions, Version};
pub(super) use definition::{FoundPrograms, MASK_PROGRAM};
pub(super) use v0_1_0::KEYS as KEYS_0_1_0;
