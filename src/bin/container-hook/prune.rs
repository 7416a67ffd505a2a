//! `container-hook prune`.

use std::time::Duration;

use clap::Args;
use oci_hooks::container_hook::HookError;
use oci_hooks::container_hook::engine::{Abandoned, remove_builds};
use oci_hooks::image::PrunePolicy;
use oci_hooks::program::context::Context;
use oci_hooks::program::exit::Exit;
use oci_hooks::program::set_aside::still_set_aside;
use oci_hooks::sys::quantity::{Age, Size, counted, human};
use oci_hooks::sys::record::NewerRecords;
use serde::Serialize;

use crate::door::{self, Passage};
use crate::environment;
use crate::error::Error;
use crate::images::ImageEntry;
use crate::pods;
use crate::settings::{Kind, Settings};
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

In a cluster it removes the pods and secrets of runners whose pod is gone or has ended.")]
pub(crate) struct PruneArgs {
    /// Remove images unused for this long, e.g. 7d
    #[arg(long, conflicts_with = "all")]
    age: Option<Age>,

    /// Remove least recently used images until the store is at most this size, e.g. 20GB
    #[arg(long, conflicts_with = "all")]
    size: Option<Size>,

    /// Remove all images that no container uses; in a cluster the pods of all runners, also of those that run
    #[arg(long)]
    pub(crate) all: bool,

    /// Also remove what a newer version of the program recorded, unless it runs: after a roll-back
    #[arg(long)]
    newer: bool,
}

impl PruneArgs {
    /// Returns an option that was given and is about images of this machine.
    pub(crate) fn of_images(&self) -> Option<&'static str> {
        let given = [
            ("--age", self.age.is_some()),
            ("--size", self.size.is_some()),
            ("--newer", self.newer),
        ];
        given.into_iter().find_map(|(option, is_given)| is_given.then_some(option))
    }
}

/// What was removed, for programs.
#[derive(Serialize)]
struct PruneReport {
    jobs: usize,
    images: Vec<ImageEntry>,
    layers: usize,
    freed_bytes: u64,
    /// What could not be removed.
    set_aside: Vec<String>,
    /// Records that cannot be read.
    unreadable: Vec<String>,
}

pub(crate) fn run(args: &PruneArgs, context: &mut Context) -> Result<Exit, Error> {
    let settings = context.settings::<Settings>()?.settings;
    if environment::backend(&settings) == Kind::Kubernetes {
        return pods::prune(args, &settings, context);
    }
    let newer = if args.newer { NewerRecords::Remove } else { NewerRecords::Keep };
    // Containers of killed jobs hold their images.
    let Abandoned { removed: jobs, mut unreadable } =
        door::remove_abandoned_jobs(&settings, newer)?;
    try_job::remove_abandoned(&settings)?;
    let settings = match door::store(settings)? {
        Passage::Inside(settings) => settings,
        Passage::Ended(exit) => return Ok(exit),
    };
    let engine = settings.host().existing()?;
    let given = args.age.is_some() || args.size.is_some();
    let (age, size) = match given {
        true => (args.age, args.size),
        false if args.all => (None, Some(Size(0))),
        false => (settings.store.keep_age, settings.store.keep_size),
    };
    let mut policy = PrunePolicy::new(age.map(|age| age.0), size.map(|size| size.0));
    policy.newer = newer;
    let pruned = engine.store.prune(&policy)?;
    let builds_age = if args.all { Some(Duration::ZERO) } else { policy.unused_for };
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
