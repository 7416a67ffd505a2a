//! `garm-provider-runc pull`.

use clap::Args;
use oci_hooks::image::{Platform, PullRequest, pull};
use oci_hooks::program::context::Context;
use oci_hooks::program::exit::Exit;
use oci_hooks::program::progress::Bar;
use oci_hooks::program::pulled;
use oci_hooks::program::sections::Pull;

use crate::door::{self, Passage};
use crate::error::Error;
use crate::settings::Settings;

/// Pull an image before an instance needs it
#[derive(Debug, Args)]
#[command(after_help = "\
Logins are those in the settings, and those of `docker login` or `podman login` of the user who runs
this.")]
pub(crate) struct PullArgs {
    /// Image, as in a pool: an alias in the settings or a reference
    image: String,

    /// Platform, e.g. linux/arm64, instead of this machine's
    #[arg(long)]
    platform: Option<Platform>,

    /// When to ask the registry
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = Pull::Always)]
    policy: Pull,
}

pub(crate) fn run(args: &PullArgs, context: &mut Context) -> Result<Exit, Error> {
    let settings = match door::store(context.settings::<Settings>()?.settings)? {
        Passage::Inside(settings) => settings,
        Passage::Ended(exit) => return Ok(exit),
    };
    let reference = match settings.images.get(&args.image) {
        Some(image) => image.reference.clone(),
        None => args
            .image
            .parse()
            .map_err(|source| Error::Image { name: args.image.clone(), source })?,
    };
    let host = settings.host();
    let store = host.store()?;
    let client = host.registries(|name| settings.proxy(name, std::env::var(name).ok()))?;
    let progress = Bar::on_stderr();
    let image = pull(
        &store,
        &client,
        &PullRequest {
            reference: &reference,
            platform: &args.platform.clone().unwrap_or_else(Platform::host),
            credentials: &host.credentials()?,
            policy: args.policy.into(),
            progress: &progress,
        },
    );
    progress.finish();
    pulled::report(&image.map_err(Box::new)?, context)?;
    Ok(Exit::Done)
}
