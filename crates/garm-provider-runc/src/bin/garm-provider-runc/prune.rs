//! `garm-provider-runc prune`.

use clap::Args;
use garm_provider_runc as garm;
use oci_hooks_cli::context::CliContext;
use oci_hooks_cli::exit::CliExit;
use oci_hooks_engine::container::Engine;
use oci_hooks_engine_cli::prune::{PruneOptions, empty_all_trash};
use oci_hooks_engine_cli::rootless::EnterOutcome;
use oci_hooks_engine_cli::settings_file;
use oci_hooks_files::quantity::{Age, format_count, format_size};
use serde::Serialize;

use crate::backend::{self, InstanceBackend};
use crate::error::AdminError;
use crate::settings::GarmFileSettings;

/// Remove images by age and size, ended instances, unused cached runners, and old logs
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  garm-provider-runc prune                        Remove leftovers; images by keep-age, keep-size
  garm-provider-runc prune --age 7d --size 20GB   Keep images used this week, at most 20 GB
  garm-provider-runc prune --newer                After a roll-back: remove newer records too

GARM deletes its own instances. prune removes those that GARM did not delete: instances that ended
some time ago (--ended), or whose creation was interrupted. It never removes running instances, or
images that an instance uses.")]
pub struct PruneArgs {
    #[command(flatten)]
    options: PruneOptions,

    /// Remove instances that ended, and cached runners last used, at least this long ago, e.g. 12h or 7d
    #[arg(long, value_name = "AGE", default_value = "1d")]
    ended: Age,
}

/// Output of `prune --format json`.
#[derive(Serialize)]
struct PruneJson {
    instances: Vec<String>,
    containers: usize,
    logs: usize,
    runners: usize,
    images: Vec<String>,
    layers: usize,
    freed_bytes: u64,
    /// Errors of files that could not be removed.
    set_aside: Vec<String>,
    /// Errors of unreadable records.
    unreadable: Vec<String>,
}

pub fn run(args: &PruneArgs, context: &mut CliContext) -> Result<CliExit, AdminError> {
    let settings = settings_file::load::<GarmFileSettings>(context)?.settings;
    // Prune instances before images, because an instance uses its image.
    let pruning =
        garm::PruneOptions { ended_for: args.ended.0, newer: args.options.newer_records() };
    let (settings, engine, pruned) = match InstanceBackend::of(settings) {
        InstanceBackend::Root(settings) => {
            let engine = settings.host().into_existing_engine()?;
            let access = garm::EngineAccess { engine: &engine, network: &settings.network() };
            let pruned = garm::prune(access, &settings.provider_settings()?, pruning)?;
            (*settings, engine, pruned)
        }
        InstanceBackend::User(instances) => {
            let swept = garm::sweep(instances.run(), &*instances, pruning)?;
            instances.end_unrecorded()?;
            let settings = match backend::enter_store(instances.settings())? {
                EnterOutcome::Inside(store) => instances.settings().with_store(&store),
                EnterOutcome::Ended(exit) => return Ok(exit),
            };
            instances.remove_forgotten()?;
            let engine = settings.host().into_existing_engine()?;
            let pruned =
                garm::prune_shared(&engine, &settings.provider_settings()?, swept, pruning)?;
            (settings, engine, pruned)
        }
    };
    ImagePruning { args, settings: &settings, engine: &engine }.run(pruned, context)
}

/// Inputs for pruning images after the instances.
struct ImagePruning<'a> {
    args: &'a PruneArgs,
    settings: &'a GarmFileSettings,
    engine: &'a Engine,
}

impl ImagePruning<'_> {
    /// Removes images by the policy, and reports all removals.
    fn run(
        &self,
        pruned: garm::PruneReport,
        context: &mut CliContext,
    ) -> Result<CliExit, AdminError> {
        let ImagePruning { args, settings, engine } = *self;
        let policy = args.options.policy(&settings.store);
        let images = engine.store.prune(&policy)?;
        let result = PruneJson {
            instances: pruned.instances,
            containers: pruned.orphans,
            logs: pruned.logs,
            runners: pruned.runners.count,
            images: images.images.iter().map(|image| image.reference.to_string()).collect(),
            layers: images.layers,
            freed_bytes: images.freed_bytes + pruned.runners.freed_bytes,
            set_aside: empty_all_trash(engine)?,
            unreadable: [pruned.unreadable, images.unreadable].concat(),
        };
        if context.is_json() {
            context.json(&result)?;
            return Ok(CliExit::Done);
        }
        for problem in &result.unreadable {
            context.note(problem);
        }
        for problem in &result.set_aside {
            context.note(&format!("cannot empty the trash, the next prune tries again: {problem}"));
        }
        for name in &result.instances {
            context.line(format!("removed instance {name}"))?;
        }
        for image in &images.images {
            context.line(format!("removed image {} ({})", image.reference, image.platform))?;
        }
        context.line(format!(
            "removed {}, {}, {}, {} and {}; freed {}",
            format_count(result.instances.len(), "instance"),
            format_count(result.images.len(), "image"),
            format_count(result.layers, "layer"),
            format_count(result.runners, "cached runner"),
            format_count(result.logs, "log"),
            format_size(result.freed_bytes)
        ))?;
        Ok(CliExit::Done)
    }
}
