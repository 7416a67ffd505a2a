//! `container-hook rmi`.

use clap::Args;
use clap_complete::ArgValueCandidates;
use oci_hooks::image::{Reference, StoreError};
use oci_hooks::program::context::Context;
use oci_hooks::program::exit::Exit;
use oci_hooks::program::rootless::Entered;

use crate::error::Error;
use crate::images::ImageEntry;
use crate::jobs;
use crate::names;
use crate::settings::Settings;

/// Remove images from the store
#[derive(Debug, Args)]
#[command(after_help = "\
Running containers are not affected: they keep their layers until they end.")]
pub struct RmiArgs {
    /// Image to remove, of all platforms (can be repeated)
    #[arg(required = true, value_name = "REF", add = ArgValueCandidates::new(names::images))]
    references: Vec<Reference>,
}

pub fn run(args: &RmiArgs, context: &mut Context) -> Result<Exit, Error> {
    let mut settings = context.settings::<Settings>()?.settings;
    settings.store = match jobs::enter_store(&settings)? {
        Entered::Inside(store) => *store,
        Entered::Ended(exit) => return Ok(exit),
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
    // Whatever went wrong, these are gone.
    if context.is_json() {
        context.json(&removed.iter().map(ImageEntry::from).collect::<Vec<_>>())?;
    } else {
        for image in &removed {
            context.line(format!("removed {} ({})", image.reference, image.platform))?;
        }
    }
    result?;
    if missing.is_empty() { Ok(Exit::Done) } else { Err(Error::NoSuchImage { missing }) }
}
