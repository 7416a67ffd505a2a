//! `container-hook pull`.

use clap::Args;
use oci_hooks::image::Reference;
use oci_hooks::program::context::Context;
use oci_hooks::program::exit::Exit;
use oci_hooks::program::pulled::PullOptions;
use oci_hooks::program::rootless::Entered;

use crate::error::Error;
use crate::jobs;
use crate::settings::Settings;

/// Fetch an image from its registry
#[derive(Debug, Args)]
#[command(after_help = "\
Logins come from the settings, and from `docker login` or `podman login` of the user who runs this.")]
pub struct PullArgs {
    /// The image
    #[arg(value_name = "REF")]
    reference: Reference,

    #[command(flatten)]
    options: PullOptions,
}

pub fn run(args: &PullArgs, context: &mut Context) -> Result<Exit, Error> {
    let mut settings = context.settings::<Settings>()?.settings;
    settings.store = match jobs::enter_store(&settings)? {
        Entered::Inside(store) => *store,
        Entered::Ended(exit) => return Ok(exit),
    };
    let variable = |name: &str| std::env::var(name).ok();
    args.options.pull::<Error>(&args.reference, settings.host(), variable, context)?;
    Ok(Exit::Done)
}
