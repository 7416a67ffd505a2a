//! `container-hook rmi`.

use clap::Args;
use clap_complete::ArgValueCandidates;
use oci_hooks_cli::context::CliContext;
use oci_hooks_cli::exit::CliExit;
use oci_hooks_engine_cli::rootless::EnterOutcome;
use oci_hooks_engine_cli::settings_file;
use oci_hooks_image::{ImageReference, StoreError};

use crate::error::HookCommandError;
use crate::images::ImageEntry;
use crate::settings::HookFileSettings;
use crate::{jobs, names};

/// Remove images from the store
#[derive(Debug, Args)]
#[command(after_help = "\
Running containers are not affected: they keep their layers until they end.")]
pub struct RmiArgs {
    /// Image to remove, of all platforms (can be repeated)
    #[arg(required = true, value_name = "REF", add = ArgValueCandidates::new(names::images))]
    references: Vec<ImageReference>,
}

pub fn run(args: &RmiArgs, context: &mut CliContext) -> Result<CliExit, HookCommandError> {
    let mut settings = settings_file::load::<HookFileSettings>(context)?.settings;
    settings.store = match jobs::enter_store(&settings)? {
        EnterOutcome::Inside(store) => *store,
        EnterOutcome::Ended(exit) => return Ok(exit),
    };
    let store = settings.host().store()?;
    let (mut removed, mut missing) = (Vec::new(), Vec::new());
    let result = args.references.iter().try_for_each(|reference| {
        let images = store.remove(reference)?;
        if images.is_empty() {
            missing.push(reference.to_string());
        }
        removed.extend(images);
        Ok::<_, StoreError>(())
    });
    // Reports the images removed before an error.
    if context.is_json() {
        context.json(&removed.iter().map(ImageEntry::from).collect::<Vec<_>>())?;
    } else {
        for image in &removed {
            context.line(format!("removed {} ({})", image.reference, image.platform))?;
        }
    }
    result?;
    if missing.is_empty() {
        Ok(CliExit::Done)
    } else {
        Err(HookCommandError::NoSuchImage { missing })
    }
}
