//! Dockerfile actions, whatever builds them: the context, copied once and hashed; the images that a
//! Dockerfile names; and what a builder is told of registries.

mod images;
mod registries;
mod snapshot;

pub use images::{HereDocument, images_of};
pub use registries::ConfigureError;
pub use registries::{CONFIGURATION, NO_MORE, allow_all_images, configure};
pub use snapshot::ContextError;
pub use snapshot::{LIMITS, Target, take};
