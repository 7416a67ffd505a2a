//! `container-hook prune`.

use clap::Args;
use container_hook::{AbandonedJobs, remove_builds};
use container_hook_job::HookError;
use oci_hooks_cli::context::CliContext;
use oci_hooks_cli::exit::CliExit;
use oci_hooks_engine_cli::prune::{PruneOptions, empty_all_trash};
use oci_hooks_engine_cli::rootless::EnterOutcome;
use oci_hooks_engine_cli::settings_file;

use oci_hooks_files::quantity::{format_count, format_size};
use serde::Serialize;

use crate::error::HookCommandError;
use crate::images::ImageEntry;
use crate::job_backend::JobBackend;
use crate::jobs;
use crate::settings::HookFileSettings;
use crate::try_job;

/// Remove images by age and size, and what killed jobs left behind
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  container-hook prune                        Remove leftovers, and images by the settings
  container-hook prune --age 7d --size 20GB   Keep images used this week, at most 20 GB
  container-hook prune --all --dry-run        Which images does no job use?
  container-hook prune --newer                After a roll-back: remove newer records too

Images that containers use stay. Running jobs are not touched, nor are named volumes, which
`container-hook volumes prune` removes.
`systemctl enable --now container-hook-prune.timer` runs it each hour for the store of root.

In a cluster it removes the pods and secrets of runners whose pod is gone or has ended; with --all
those of all runners.")]
pub struct PruneArgs {
    #[command(flatten)]
    options: PruneOptions,

    /// Print the images that would be removed, and remove nothing. Images of killed jobs count as
    /// used, although prune would clean up these jobs first
    #[arg(long, conflicts_with = "newer")]
    dry_run: bool,
}

impl PruneArgs {
    /// Returns whether all unused images are removed.
    pub fn is_all(&self) -> bool {
        self.options.all
    }

    /// Returns the first given option that applies only to images of this machine.
    pub fn image_only_option(&self) -> Option<&'static str> {
        let PruneOptions { age, size, newer, .. } = &self.options;
        let given = [
            ("--age", age.is_some()),
            ("--size", size.is_some()),
            ("--newer", *newer),
            ("--dry-run", self.dry_run),
        ];
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
    /// Errors of files and directories in the trash that could not be removed.
    set_aside: Vec<String>,
    /// Records that cannot be read.
    unreadable: Vec<String>,
}

pub fn run(args: &PruneArgs, context: &mut CliContext) -> Result<CliExit, HookCommandError> {
    let mut settings = settings_file::load::<HookFileSettings>(context)?.settings;
    match JobBackend::of(&settings)? {
        JobBackend::Root | JobBackend::User => {}
        #[cfg(feature = "kubernetes")]
        JobBackend::Cluster => return crate::pods::prune(args, &settings, context),
    }
    if args.dry_run {
        return preview(args, settings, context);
    }
    // Containers of killed jobs keep their images in use.
    let AbandonedJobs { removed: jobs, mut unreadable } =
        jobs::prune(&settings, args.options.newer_records())?;
    try_job::remove_abandoned(&settings)?;
    settings.store = match jobs::enter_store(&settings)? {
        EnterOutcome::Inside(store) => *store,
        EnterOutcome::Ended(exit) => return Ok(exit),
    };
    let engine = settings.host().into_existing_engine()?;
    let policy = args.options.policy(&settings.store);
    let pruned = engine.store.prune(&policy)?;
    let of_builds = remove_builds(&engine.disk, &engine.trash());
    let of_builds = of_builds.map_err(|error| Box::new(HookError::from(error)))?;
    let freed_bytes = pruned.freed_bytes + of_builds;
    let set_aside = empty_all_trash(&engine)?;
    unreadable.extend(pruned.unreadable);
    if context.is_json() {
        let images = pruned.images.iter().map(ImageEntry::from).collect();
        let layers = pruned.layers;
        context.json(&PruneReport { jobs, images, layers, freed_bytes, set_aside, unreadable })?;
        return Ok(CliExit::Done);
    }
    for problem in &unreadable {
        context.note(problem);
    }
    for problem in &set_aside {
        context.note(&format!("cannot empty the trash, the next prune tries again: {problem}"));
    }
    for image in &pruned.images {
        context.line(format!("removed {} ({})", image.reference, image.platform))?;
    }
    context.line(format!(
        "removed {}, {} and leftovers of {}; freed {}",
        format_count(pruned.images.len(), "image"),
        format_count(pruned.layers, "layer"),
        if jobs == 1 {
            "1 job or container".to_owned()
        } else {
            format!("{jobs} jobs and containers")
        },
        format_size(freed_bytes)
    ))?;
    Ok(CliExit::Done)
}

/// Reports the images that would be removed.
fn preview(
    args: &PruneArgs,
    mut settings: HookFileSettings,
    context: &mut CliContext,
) -> Result<CliExit, HookCommandError> {
    settings.store = match jobs::enter_store(&settings)? {
        EnterOutcome::Inside(store) => *store,
        EnterOutcome::Ended(exit) => return Ok(exit),
    };
    let policy = args.options.policy(&settings.store);
    let due = settings.host().into_existing_engine()?.store.preview_prune(&policy)?;
    if context.is_json() {
        let report = PruneReport {
            jobs: 0,
            images: due.images.iter().map(ImageEntry::from).collect(),
            layers: due.layers,
            freed_bytes: due.freed_bytes,
            set_aside: Vec::new(),
            unreadable: due.unreadable,
        };
        context.json(&report)?;
        return Ok(CliExit::Done);
    }
    for problem in &due.unreadable {
        context.note(problem);
    }
    for image in &due.images {
        context.line(format!("would remove {} ({})", image.reference, image.platform))?;
    }
    context.line(format!(
        "would remove {} and {}, and free {}",
        format_count(due.images.len(), "image"),
        format_count(due.layers, "layer"),
        format_size(due.freed_bytes)
    ))?;
    Ok(CliExit::Done)
}
