//! `garm-provider-runc pull`.

use clap::Args;
use garm_provider_runc::find_image;
use oci_hooks_cli::context::CliContext;
use oci_hooks_cli::exit::CliExit;
use oci_hooks_engine_cli::pulled::PullOptions;
use oci_hooks_engine_cli::rootless::EnterOutcome;
use oci_hooks_engine_cli::settings_file;

use crate::backend;
use crate::error::AdminError;
use crate::settings::GarmFileSettings;

/// Pull an image before an instance needs it
#[derive(Debug, Args)]
#[command(after_help = "\
Registry logins are those in the files of `logins` under [store] of the settings, and those that the
user who runs this command has stored with `docker login` or `podman login`.")]
pub struct PullArgs {
    /// Image, as in a pool: an alias in the settings or a reference
    image: String,

    #[command(flatten)]
    options: PullOptions,
}

pub fn run(args: &PullArgs, context: &mut CliContext) -> Result<CliExit, AdminError> {
    let mut settings = settings_file::load::<GarmFileSettings>(context)?.settings;
    settings.store = match backend::enter_store(&settings)? {
        EnterOutcome::Inside(store) => *store,
        EnterOutcome::Ended(exit) => return Ok(exit),
    };
    let reference = find_image(&settings.images, &args.image)?.reference;
    let variable = |name: &str| settings.proxy(name, std::env::var(name).ok());
    args.options.pull::<AdminError>(&reference, settings.host(), variable, context)?;
    Ok(CliExit::Done)
}
