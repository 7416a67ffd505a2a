//! `container-hook pull`.

use clap::Args;
use oci_hooks_cli::context::CliContext;
use oci_hooks_cli::exit::CliExit;
use oci_hooks_engine_cli::pulled::PullOptions;
use oci_hooks_engine_cli::rootless::EnterOutcome;
use oci_hooks_engine_cli::settings_file;
use oci_hooks_image::ImageReference;

use crate::error::HookCommandError;
use crate::jobs;
use crate::settings::HookFileSettings;

/// Fetch an image from its registry
#[derive(Debug, Args)]
#[command(after_help = "\
Logins come from the settings, and from `docker login` or `podman login` of the user who runs this.")]
pub struct PullArgs {
    /// Image to pull
    #[arg(value_name = "REF")]
    reference: ImageReference,

    #[command(flatten)]
    options: PullOptions,
}

pub fn run(args: &PullArgs, context: &mut CliContext) -> Result<CliExit, HookCommandError> {
    let mut settings = settings_file::load::<HookFileSettings>(context)?.settings;
    settings.store = match jobs::enter_store(&settings)? {
        EnterOutcome::Inside(store) => *store,
        EnterOutcome::Ended(exit) => return Ok(exit),
    };
    let variable = |name: &str| std::env::var(name).ok();
    args.options.pull::<HookCommandError>(&args.reference, settings.host(), variable, context)?;
    Ok(CliExit::Done)
}
