//! `container-hook images`.

use std::time::SystemTime;

use clap::Args;
use jiff::Timestamp;
use oci_hooks::image::Summary;
use oci_hooks::program::context::Context;
use oci_hooks::program::exit::Exit;
use oci_hooks::program::rootless::Entered;
use oci_hooks::program::table::{self, ago};
use oci_hooks::sys::quantity::{counted, human};
use serde::Serialize;

use crate::error::Error;
use crate::jobs;
use crate::settings::Settings;

/// List the images in the store
#[derive(Debug, Args)]
pub struct ImagesArgs {}

/// An image, as `images --format json` prints it.
#[derive(Serialize)]
pub struct ImageEntry {
    reference: String,
    platform: String,
    digest: String,
    id: String,
    size_bytes: u64,
    used: Timestamp,
}

impl From<&Summary> for ImageEntry {
    fn from(image: &Summary) -> Self {
        ImageEntry {
            reference: image.reference.to_string(),
            platform: image.platform.to_string(),
            digest: image.digest.to_string(),
            id: image.id.to_string(),
            size_bytes: image.size_bytes,
            used: timestamp(image.used),
        }
    }
}

pub fn run(_: &ImagesArgs, context: &mut Context) -> Result<Exit, Error> {
    let mut settings = context.settings::<Settings>()?.settings;
    // Listing does not create a store.
    let (images, usage) = if settings.store.root.exists() {
        settings.store = match jobs::enter_store(&settings)? {
            Entered::Inside(store) => *store,
            Entered::Ended(exit) => return Ok(exit),
        };
        let store = settings.host().store()?;
        (store.images()?, store.usage()?)
    } else {
        Default::default()
    };
    if context.is_json() {
        context.json(&images.iter().map(ImageEntry::from).collect::<Vec<_>>())?;
        return Ok(Exit::Done);
    }
    let rows: Vec<_> = images.iter().map(row).collect();
    table::write(["IMAGE", "PLATFORM", "DIGEST", "SIZE", "USED"], &rows, context)?;
    context.note(&format!(
        "{}, {} on disk (shared between images)",
        counted(usage.layers, "layer"),
        human(usage.bytes)
    ));
    Ok(Exit::Done)
}

fn row(image: &Summary) -> [String; 5] {
    [
        image.reference.familiar().to_string(),
        image.platform.to_string(),
        image.digest.hex().chars().take(12).collect(),
        human(image.size_bytes),
        ago(timestamp(image.used)),
    ]
}

fn timestamp(time: SystemTime) -> Timestamp {
    // Out of range only if the clock was set to a time beyond the year 9999.
    Timestamp::try_from(time).unwrap_or(Timestamp::MAX)
}
