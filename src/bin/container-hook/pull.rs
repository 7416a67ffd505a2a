//! `container-hook pull`.

use clap::Args;
use oci_hooks::image::{Image, Platform, PullRequest, Reference, pull};
use serde::Serialize;

use crate::Exit;
use crate::context::Context;
use crate::engine;
use crate::error::Error;
use crate::progress::Bar;
use crate::settings::Pull;

/// Fetch an image from its registry
#[derive(Debug, Args)]
#[command(after_help = "\
Logins are those that the settings name, and those of `docker login` or `podman login` of whoever
runs this.")]
pub(crate) struct PullArgs {
    /// The image
    #[arg(value_name = "REF")]
    reference: Reference,

    /// The platform, as linux/arm64, instead of this machine's
    #[arg(long)]
    platform: Option<Platform>,

    /// When to ask the registry
    #[arg(long, value_enum, value_name = "WHEN", default_value_t)]
    policy: Pull,
}

/// An image that is in the store now, for programs.
#[derive(Serialize)]
struct Json {
    reference: String,
    platform: String,
    digest: String,
    id: String,
}

pub(crate) fn run(args: &PullArgs, context: &mut Context) -> Result<Exit, Error> {
    let settings = context.settings()?.settings;
    let store = engine::store(&settings)?;
    let client = engine::registries(&settings)?;
    let credentials = engine::credentials(&settings)?;
    let platform = args.platform.clone().unwrap_or_else(Platform::host);
    let progress = Bar::new();
    let image = pull(
        &store,
        &client,
        &PullRequest {
            reference: &args.reference,
            platform: &platform,
            credentials: &credentials,
            policy: args.policy.into(),
            progress: &progress,
        },
    );
    progress.finish();
    report(&image.map_err(Box::new)?, context)?;
    Ok(Exit::Done)
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
