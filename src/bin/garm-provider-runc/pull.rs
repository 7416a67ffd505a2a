//! `garm-provider-runc pull`.

use clap::Args;
use oci_hooks::program::context::Context;
use oci_hooks::program::exit::Exit;
use oci_hooks::program::pulled::PullOptions;
use oci_hooks::program::rootless::Entered;

use crate::backend;
use crate::error::Error;
use crate::settings::Settings;

/// Pull an image before an instance needs it
#[derive(Debug, Args)]
#[command(after_help = "\
Logins are those in the settings, and those of `docker login` or `podman login` of the user who runs
this.")]
pub struct PullArgs {
    /// Image, as in a pool: an alias in the settings or a reference
    image: String,

    #[command(flatten)]
    options: PullOptions,
}

pub fn run(args: &PullArgs, context: &mut Context) -> Result<Exit, Error> {
    let mut settings = context.settings::<Settings>()?.settings;
    settings.store = match backend::enter_store(&settings)? {
        Entered::Inside(store) => *store,
        Entered::Ended(exit) => return Ok(exit),
    };
    let reference = match settings.images.get(&args.image) {
        Some(image) => image.reference.clone(),
        None => args
            .image
            .parse()
            .map_err(|source| Error::Image { name: args.image.clone(), source })?,
    };
    let variable = |name: &str| settings.proxy(name, std::env::var(name).ok());
    args.options.pull::<Error>(&reference, settings.host(), variable, context)?;
    Ok(Exit::Done)
}
