//! `container-hook import`.

use std::path::PathBuf;

use clap::Args;
use oci_hooks::image::Reference;
use oci_hooks::program::context::Context;
use oci_hooks::program::exit::Exit;
use oci_hooks::program::rootless::Entered;

use crate::error::Error;
use crate::jobs;
use crate::settings::Settings;

/// Put an image from a file or directory into the store
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  docker save node:22 -o node.tar && container-hook import node.tar node:22
  skopeo copy docker://node:22 oci:node && container-hook import node node:22

With `pull = \"missing\"` or `\"never\"` in the settings, jobs then use it without asking a registry.")]
pub struct ImportArgs {
    /// An OCI layout, as a directory or as a tar file, or what `docker save` wrote
    path: PathBuf,

    /// The name of the image
    #[arg(value_name = "REF")]
    reference: Reference,
}

pub fn run(args: &ImportArgs, context: &mut Context) -> Result<Exit, Error> {
    let mut settings = context.settings::<Settings>()?.settings;
    settings.store = match jobs::enter_store(&settings)? {
        Entered::Inside(store) => *store,
        Entered::Ended(exit) => return Ok(exit),
    };
    let store = settings.host().store()?;
    let image = store.import(&args.path, &args.reference)?;
    oci_hooks::program::pulled::report(&image, context)?;
    Ok(Exit::Done)
}
