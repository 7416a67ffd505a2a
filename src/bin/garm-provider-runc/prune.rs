//! `garm-provider-runc prune`.

use clap::Args;
use oci_hooks::container::Engine;
use oci_hooks::garm;
use oci_hooks::image::PrunePolicy;
use oci_hooks::program::context::Context;
use oci_hooks::program::exit::Exit;
use oci_hooks::program::set_aside::still_set_aside;
use oci_hooks::sys::privilege::Privilege;
use oci_hooks::sys::quantity::{Age, Size, counted, human};
use oci_hooks::sys::record::NewerRecords;
use serde::Serialize;

use crate::door::{self, DoorError, Passage, Rooms};
use crate::error::Error;
use crate::settings::Settings;

/// Remove images by age and size, and unused instances, cached runners and logs
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  garm-provider-runc prune                        Remove leftovers, and images by the settings
  garm-provider-runc prune --age 7d --size 20GB   Keep images used this week, at most 20 GB
  garm-provider-runc prune --newer                After a roll-back: remove newer records too

GARM deletes its own instances; prune removes those that GARM has given up: ended long ago, or
interrupted during creation. Running instances and images in use are kept.")]
pub(crate) struct PruneArgs {
    /// Remove images unused for this long, e.g. 7d
    #[arg(long, conflicts_with = "all")]
    age: Option<Age>,

    /// Remove least recently used images until the store is at most this size, e.g. 20GB
    #[arg(long, conflicts_with = "all")]
    size: Option<Size>,

    /// Remove all images that no instance uses
    #[arg(long)]
    all: bool,

    /// Also remove records of a newer version of this program, unless in use: after a roll-back
    #[arg(long)]
    newer: bool,

    /// Remove instances that ended this long ago, and cached runners unused since then
    #[arg(long, value_name = "AGE", default_value = "1d")]
    ended: Age,
}

/// What was removed, for programs.
#[derive(Serialize)]
struct PruneReport {
    instances: Vec<String>,
    containers: usize,
    logs: usize,
    runners: usize,
    images: Vec<String>,
    layers: usize,
    freed_bytes: u64,
    /// What could not be removed.
    set_aside: Vec<String>,
    /// Records that cannot be read.
    unreadable: Vec<String>,
}

pub(crate) fn run(args: &PruneArgs, context: &mut Context) -> Result<Exit, Error> {
    let settings = context.settings::<Settings>()?.settings;
    // Instances hold their images.
    let newer = if args.newer { NewerRecords::Remove } else { NewerRecords::Keep };
    let pruning = garm::PruneOptions { ended_for: args.ended.0, newer };
    if Privilege::is_root_of_host() {
        let engine = settings.host().existing()?;
        let pruned = garm::prune(&engine, &settings.network(), &settings.garm()?, pruning)?;
        return ImagePruning { args, settings: &settings, engine: &engine, newer }
            .run(pruned, context);
    }
    let rooms = Rooms::new(settings.clone()).map_err(DoorError::from)?;
    let swept = garm::sweep(rooms.run(), &rooms, pruning)?;
    rooms.end_unrecorded()?;
    match door::store(settings)? {
        Passage::Inside(settings) => {
            rooms.remove_forgotten()?;
            let engine = settings.host().existing()?;
            let pruned = garm::prune_shared(&engine, &settings.garm()?, swept, pruning)?;
            ImagePruning { args, settings: &settings, engine: &engine, newer }.run(pruned, context)
        }
        Passage::Ended(exit) => Ok(exit),
    }
}

/// What images are removed by, when instances are.
struct ImagePruning<'a> {
    args: &'a PruneArgs,
    settings: &'a Settings,
    engine: &'a Engine,
    newer: NewerRecords,
}

impl ImagePruning<'_> {
    /// Removes images that nothing needs, and reports all that was removed.
    fn run(&self, pruned: garm::Pruned, context: &mut Context) -> Result<Exit, Error> {
        let ImagePruning { args, settings, engine, newer } = *self;
        let given = args.age.is_some() || args.size.is_some();
        let (age, size) = match given {
            true => (args.age, args.size),
            false if args.all => (None, Some(Size(0))),
            false => (settings.store.keep_age, settings.store.keep_size),
        };
        let mut policy = PrunePolicy::new(age.map(|age| age.0), size.map(|size| size.0));
        policy.newer = newer;
        let images = engine.store.prune(&policy)?;
        let result = PruneReport {
            instances: pruned.instances,
            containers: pruned.orphans,
            logs: pruned.logs,
            runners: pruned.runners.count,
            images: images.images.iter().map(|image| image.reference.to_string()).collect(),
            layers: images.layers,
            freed_bytes: images.freed_bytes + pruned.runners.freed_bytes,
            set_aside: still_set_aside(engine)?,
            unreadable: [pruned.unreadable, images.unreadable].concat(),
        };
        if context.is_json() {
            context.json(&result)?;
            return Ok(Exit::Done);
        }
        for problem in &result.unreadable {
            context.note(problem);
        }
        for problem in &result.set_aside {
            context.note(&format!("set aside: {problem}"));
        }
        for name in &result.instances {
            context.line(format!("removed instance {name}"))?;
        }
        for image in &images.images {
            context.line(format!("removed {} ({})", image.reference, image.platform))?;
        }
        context.line(format!(
            "removed {}, {}, {}, {} and {}; freed {}",
            counted(result.instances.len(), "instance"),
            counted(result.images.len(), "image"),
            counted(result.layers, "layer"),
            counted(result.runners, "runner"),
            counted(result.logs, "log"),
            human(result.freed_bytes)
        ))?;
        Ok(Exit::Done)
    }
}
