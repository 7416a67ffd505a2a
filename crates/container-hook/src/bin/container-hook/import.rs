//! `container-hook import`.

use std::path::PathBuf;

use clap::Args;
use oci_hooks_cli::context::CliContext;
use oci_hooks_cli::exit::CliExit;
use oci_hooks_engine_cli::rootless::EnterOutcome;
use oci_hooks_engine_cli::settings_file;
use oci_hooks_image::ImageReference;

use crate::error::HookCommandError;
use crate::jobs;
use crate::settings::HookFileSettings;

/// Put an image from a file or directory into the store
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  docker save node:22 -o node.tar && container-hook import node.tar node:22
  skopeo copy docker://node:22 oci:node && container-hook import node node:22

With `pull = \"missing\"` or `\"never\"` in the settings, jobs then use it without asking a registry.")]
pub struct ImportArgs {
    /// OCI layout, as a directory or a tar file, or archive of `docker save`
    path: PathBuf,

    /// Name of the image
    #[arg(value_name = "REF")]
    reference: ImageReference,
}

pub fn run(args: &ImportArgs, context: &mut CliContext) -> Result<CliExit, HookCommandError> {
    let mut settings = settings_file::load::<HookFileSettings>(context)?.settings;
    settings.store = match jobs::enter_store(&settings)? {
        EnterOutcome::Inside(store) => *store,
        EnterOutcome::Ended(exit) => return Ok(exit),
    };
    let store = settings.host().store()?;
    let image = store.import(&args.path, &args.reference)?;
    oci_hooks_engine_cli::pulled::report(&image, context)?;
    Ok(CliExit::Done)
}
