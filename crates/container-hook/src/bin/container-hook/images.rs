//! `container-hook images`.

use std::time::SystemTime;

use clap::Args;
use jiff::Timestamp;
use oci_hooks_cli::context::CliContext;
use oci_hooks_cli::exit::CliExit;
use oci_hooks_cli::table::{self, format_age};
use oci_hooks_engine_cli::rootless::EnterOutcome;
use oci_hooks_engine_cli::settings_file;
use oci_hooks_files::quantity::{format_count, format_size};
use oci_hooks_image::ImageSummary;
use serde::Serialize;

use crate::error::HookCommandError;
use crate::jobs;
use crate::settings::HookFileSettings;

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

impl From<&ImageSummary> for ImageEntry {
    fn from(image: &ImageSummary) -> Self {
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

pub fn run(_: &ImagesArgs, context: &mut CliContext) -> Result<CliExit, HookCommandError> {
    let mut settings = settings_file::load::<HookFileSettings>(context)?.settings;
    // Listing does not create a store.
    let (images, usage) = if settings.store.root.exists() {
        settings.store = match jobs::enter_store(&settings)? {
            EnterOutcome::Inside(store) => *store,
            EnterOutcome::Ended(exit) => return Ok(exit),
        };
        let store = settings.host().store()?;
        (store.images()?, store.usage()?)
    } else {
        Default::default()
    };
    if context.is_json() {
        context.json(&images.iter().map(ImageEntry::from).collect::<Vec<_>>())?;
        return Ok(CliExit::Done);
    }
    let rows: Vec<_> = images.iter().map(row).collect();
    table::write(["IMAGE", "PLATFORM", "DIGEST", "SIZE", "USED"], &rows, context)?;
    context.note(&format!(
        "{}, {} on disk (shared between images)",
        format_count(usage.layers, "layer"),
        format_size(usage.bytes)
    ));
    Ok(CliExit::Done)
}

fn row(image: &ImageSummary) -> [String; 5] {
    [
        image.reference.familiar_name().to_string(),
        image.platform.to_string(),
        image.digest.hex().chars().take(12).collect(),
        format_size(image.size_bytes),
        format_age(timestamp(image.used)),
    ]
}

fn timestamp(time: SystemTime) -> Timestamp {
    // Out of range only if the clock was set to a time beyond the year 9999.
    Timestamp::try_from(time).unwrap_or(Timestamp::MAX)
}
