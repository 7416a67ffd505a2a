//! Dockerfile actions, for all builders: the context, copied once and hashed; the images that a Dockerfile
//! names; and the registry configuration of a builder.

mod images;
mod registries;
mod snapshot;

pub use images::{HereDocument, images_of};
pub use registries::{CONFIGURATION, DROP_INS, RegistryConfigError, allow_all_images, configure};
pub use snapshot::{ContextError, LIMITS, SnapshotTarget, take};
