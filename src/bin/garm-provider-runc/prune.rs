//! `garm-provider-runc prune`.

use clap::Args;
use oci_hooks::container::Engine;
use oci_hooks::garm;
use oci_hooks::program::context::Context;
use oci_hooks::program::exit::Exit;
use oci_hooks::program::prune::{PruneOptions, still_set_aside};
use oci_hooks::program::rootless::Entered;
use oci_hooks::sys::quantity::{Age, counted, human};
use serde::Serialize;

use crate::backend::Backend;
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
pub struct PruneArgs {
    #[command(flatten)]
    options: PruneOptions,

    /// Remove instances that ended this long ago, and cached runners unused since then
    #[arg(long, value_name = "AGE", default_value = "1d")]
    ended: Age,
}

/// The JSON output.
#[derive(Serialize)]
struct PruneReport {
    instances: Vec<String>,
    containers: usize,
    logs: usize,
    runners: usize,
    images: Vec<String>,
    layers: usize,
    freed_bytes: u64,
    /// Files that could not be removed, and why.
    set_aside: Vec<String>,
    /// Records that cannot be read.
    unreadable: Vec<String>,
}

pub fn run(args: &PruneArgs, context: &mut Context) -> Result<Exit, Error> {
    let settings = context.settings::<Settings>()?.settings;
    // Instances hold their images.
    let pruning = garm::PruneOptions { ended_for: args.ended.0, newer: args.options.newer() };
    let (settings, engine, pruned) = match Backend::of(settings) {
        Backend::Root(settings) => {
            let engine = settings.host().existing()?;
            let pruned = garm::prune(&engine, &settings.network(), &settings.garm()?, pruning)?;
            (*settings, engine, pruned)
        }
        Backend::User(instances) => {
            let swept = garm::sweep(instances.run(), &*instances, pruning)?;
            instances.end_unrecorded()?;
            let settings = match instances.enter_store()? {
                Entered::Inside(store) => instances.settings().with_store(&store),
                Entered::Ended(exit) => return Ok(exit),
            };
            instances.remove_forgotten()?;
            let engine = settings.host().existing()?;
            let pruned = garm::prune_shared(&engine, &settings.garm()?, swept, pruning)?;
            (settings, engine, pruned)
        }
    };
    ImagePruning { args, settings: &settings, engine: &engine }.run(pruned, context)
}

/// Removes images after instances, and reports both.
struct ImagePruning<'a> {
    args: &'a PruneArgs,
    settings: &'a Settings,
    engine: &'a Engine,
}

impl ImagePruning<'_> {
    /// Removes images that nothing needs, and reports all that was removed.
    fn run(&self, pruned: garm::Pruned, context: &mut Context) -> Result<Exit, Error> {
        let ImagePruning { args, settings, engine } = *self;
        let policy = args.options.policy(&settings.store);
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
