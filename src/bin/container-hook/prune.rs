//! `container-hook prune`.

use std::time::Duration;

use clap::Args;
use oci_hooks::container_hook::HookError;
use oci_hooks::container_hook::engine::{Abandoned, remove_builds};
use oci_hooks::program::context::Context;
use oci_hooks::program::exit::Exit;
use oci_hooks::program::prune::{PruneOptions, still_set_aside};
use oci_hooks::program::rootless::Entered;

use oci_hooks::sys::quantity::{counted, human};
use serde::Serialize;

use crate::error::Error;
use crate::images::ImageEntry;
use crate::job_backend::JobBackend;
use crate::jobs;
use crate::settings::Settings;
use crate::try_job;

/// Remove images by age and size, and what killed jobs left behind
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  container-hook prune                        What is left of jobs, and images as the settings say
  container-hook prune --age 7d --size 20GB   Keep what was used this week, and 20 GB of it
  container-hook prune --newer                After a roll-back: also what the newer version left

Images that containers use stay. Running jobs are not touched, nor are named volumes, which
`container-hook volumes prune` removes. The build cache of buildah is removed by age, not by size.
`systemctl enable --now container-hook-prune.timer` runs it each hour for the store of root.

In a cluster it removes the pods and secrets of runners whose pod is gone or has ended; with --all
those of all runners.")]
pub struct PruneArgs {
    #[command(flatten)]
    options: PruneOptions,
}

impl PruneArgs {
    /// Returns whether everything is removed that is not in use.
    pub fn is_all(&self) -> bool {
        self.options.all
    }

    /// Returns an option that was given and is about images of this machine.
    pub fn of_images(&self) -> Option<&'static str> {
        let PruneOptions { age, size, newer, .. } = &self.options;
        let given = [("--age", age.is_some()), ("--size", size.is_some()), ("--newer", *newer)];
        given.into_iter().find_map(|(option, is_given)| is_given.then_some(option))
    }
}

/// The JSON output.
#[derive(Serialize)]
struct PruneReport {
    jobs: usize,
    images: Vec<ImageEntry>,
    layers: usize,
    freed_bytes: u64,
    /// Files that could not be removed, and why.
    set_aside: Vec<String>,
    /// Records that cannot be read.
    unreadable: Vec<String>,
}

pub fn run(args: &PruneArgs, context: &mut Context) -> Result<Exit, Error> {
    let mut settings = context.settings::<Settings>()?.settings;
    match JobBackend::of(&settings)? {
        JobBackend::Root | JobBackend::User => {}
        #[cfg(feature = "kubernetes")]
        JobBackend::Cluster => return crate::pods::prune(args, &settings, context),
    }
    // Containers of killed jobs hold their images.
    let Abandoned { removed: jobs, mut unreadable } = jobs::prune(&settings, args.options.newer())?;
    try_job::remove_abandoned(&settings)?;
    settings.store = match jobs::enter_store(&settings)? {
        Entered::Inside(store) => *store,
        Entered::Ended(exit) => return Ok(exit),
    };
    let engine = settings.host().existing()?;
    let policy = args.options.policy(&settings.store);
    let pruned = engine.store.prune(&policy)?;
    let builds_age = if args.options.all { Some(Duration::ZERO) } else { policy.unused_for };
    let builds = remove_builds(&engine.disk, &engine.trash(), builds_age);
    let builds = builds.map_err(|error| Box::new(HookError::from(error)))?;
    let freed_bytes = pruned.freed_bytes + builds.freed_bytes;
    let set_aside = still_set_aside(&engine)?;
    unreadable.extend(pruned.unreadable);
    if context.is_json() {
        let images = pruned.images.iter().map(ImageEntry::from).collect();
        let layers = pruned.layers;
        context.json(&PruneReport { jobs, images, layers, freed_bytes, set_aside, unreadable })?;
        return Ok(Exit::Done);
    }
    for problem in &unreadable {
        context.note(problem);
    }
    for problem in &set_aside {
        context.note(&format!("set aside: {problem}"));
    }
    for image in &pruned.images {
        context.line(format!("removed {} ({})", image.reference, image.platform))?;
    }
    if builds.caches > 0 {
        context.line("removed build cache")?;
    }
    context.line(format!(
        "removed {}, {} and what was left of {}; freed {}",
        counted(pruned.images.len(), "image"),
        counted(pruned.layers, "layer"),
        if jobs == 1 {
            "1 job or container".to_owned()
        } else {
            format!("{jobs} jobs and containers")
        },
        human(freed_bytes)
    ))?;
    Ok(Exit::Done)
}
