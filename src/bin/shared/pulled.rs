//! What is said of an image that was put into the store.

use oci_hooks::image::Image;
use serde::Serialize;

use crate::context::Context;
use crate::error::Error;

/// An image that is in the store now, for programs.
#[derive(Serialize)]
struct Json {
    reference: String,
    platform: String,
    digest: String,
    id: String,
}

/// Tells which image is in the store now.
pub(crate) fn report(image: &Image, context: &mut Context) -> Result<(), Error> {
    if context.is_json() {
        return context.json(&Json {
            reference: image.reference.to_string(),
            platform: image.platform.to_string(),
            digest: image.digest.to_string(),
            id: image.id.to_string(),
        });
    }
    context.line(format!("{} is {}", image.reference, image.digest))
}
