//! `container-hook images`.

use std::time::SystemTime;

use clap::Args;
use jiff::Timestamp;
use oci_hooks::image::Summary;
use oci_hooks::program::context::Context;
use oci_hooks::program::exit::Exit;
use oci_hooks::program::table::{self, ago};
use oci_hooks::sys::quantity::{counted, human};
use serde::Serialize;

use crate::error::Error;
use crate::settings::Settings;

/// List the images in the store
#[derive(Debug, Args)]
pub(crate) struct ImagesArgs {}

/// An image, for programs.
#[derive(Serialize)]
pub(crate) struct Json {
    reference: String,
    platform: String,
    digest: String,
    id: String,
    size_bytes: u64,
    used: Timestamp,
}

impl From<&Summary> for Json {
    fn from(image: &Summary) -> Self {
        Json {
            reference: image.reference.to_string(),
            platform: image.platform.to_string(),
            digest: image.digest.to_string(),
            id: image.id.to_string(),
            size_bytes: image.size_bytes,
            used: timestamp(image.used),
        }
    }
}

pub(crate) fn run(_: &ImagesArgs, context: &mut Context) -> Result<Exit, Error> {
    let store = context.settings::<Settings>()?.settings.host().store()?;
    let images = store.images()?;
    if context.is_json() {
        context.json(&images.iter().map(Json::from).collect::<Vec<_>>())?;
        return Ok(Exit::Done);
    }
    let rows: Vec<_> = images.iter().map(row).collect();
    table::write(["IMAGE", "PLATFORM", "DIGEST", "SIZE", "USED"], &rows, context)?;
    let usage = store.usage()?;
    context.note(&format!(
        "{} {} {}; images share them, so that sizes add up to more",
        counted(usage.layers, "layer"),
        if usage.layers == 1 { "takes" } else { "take" },
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
