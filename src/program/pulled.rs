//! How an image that was put into the store is reported.

use serde::Serialize;

use super::context::{Context, OutputError};
use crate::image::Image;

/// An image that is in the store now, as JSON.
#[derive(Serialize)]
struct PulledImage {
    reference: String,
    platform: String,
    digest: String,
    id: String,
}

/// Prints which image is in the store now.
pub fn report(image: &Image, context: &mut Context) -> Result<(), OutputError> {
    if context.is_json() {
        return context.json(&PulledImage {
            reference: image.reference.to_string(),
            platform: image.platform.to_string(),
            digest: image.digest.to_string(),
            id: image.id.to_string(),
        });
    }
    context.line(format!("{} is {}", image.reference, image.digest))
}
