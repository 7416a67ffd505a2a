//! `garm-provider-runc rm`.

use clap::Args;
use clap_complete::ArgValueCandidates;
use garm_provider_runc::{InstanceSelection, RmOptions, RmReport, SelectedInstance};
use oci_hooks_cli::context::CliContext;
use oci_hooks_cli::exit::CliExit;
use oci_hooks_engine_cli::settings_file;
use oci_hooks_files::quantity::format_count;
use serde::Serialize;

use crate::backend::InstanceBackend;
use crate::error::AdminError;
use crate::instances::{self, escape_control};
use crate::settings::GarmFileSettings;

/// Remove instances that GARM does not remove
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  garm-provider-runc rm garm-x7k2                     An instance that has ended
  garm-provider-runc rm --orphans --dry-run           List orphans
  garm-provider-runc rm --controller 3f2a… --force    All instances of a deleted GARM, with jobs

GARM deletes its own instances; it can also delete those that were removed here. Only GARM knows
whether a controller or a pool still exists, so select a deleted one by its id, which
`garm-provider-runc instances` prints.

Exit status is 0 if all selected instances were removed, and 1 if one was not, or a name is unknown.")]
pub struct RmArgs {
    /// Name of an instance to remove (can be repeated)
    #[arg(
        value_name = "NAME",
        required_unless_present_any = ["orphans", "controller", "pool"],
        add = ArgValueCandidates::new(instances::names)
    )]
    names: Vec<String>,

    /// Remove orphans: instances that ended, whose creation was interrupted, or whose supervisor was killed
    #[arg(long)]
    orphans: bool,

    /// Remove only instances of the controller with this id
    #[arg(long, value_name = "ID", add = ArgValueCandidates::new(instances::controller_ids))]
    controller: Option<String>,

    /// Remove only instances of the pool with this id, or of this scale set (NAME-ID)
    #[arg(long, value_name = "ID", add = ArgValueCandidates::new(instances::pools))]
    pool: Option<String>,

    /// Also remove running instances, with their jobs, and instances that another version created
    #[arg(long, short)]
    force: bool,

    /// Show what would be done without doing it
    #[arg(long)]
    dry_run: bool,
}

/// Output of `rm --format json`.
#[derive(Serialize)]
struct RmJson<'a> {
    dry_run: bool,
    #[serde(flatten)]
    report: &'a RmReport,
}

pub fn run(args: &RmArgs, context: &mut CliContext) -> Result<CliExit, AdminError> {
    let settings = settings_file::load::<GarmFileSettings>(context)?.settings;
    let selection = InstanceSelection {
        names: &args.names,
        orphans: args.orphans,
        controller: args.controller.as_deref(),
        pool: args.pool.as_deref(),
    };
    let options = RmOptions { force: args.force, dry_run: args.dry_run };
    let report = InstanceBackend::of(settings).with_access(|run, access| {
        garm_provider_runc::rm(run, access, &selection, options).map_err(AdminError::from)
    })?;
    let exit = match report.left.is_empty() && report.unknown.is_empty() {
        true => CliExit::Done,
        false => CliExit::Findings,
    };
    if context.is_json() {
        context.json(&RmJson { dry_run: args.dry_run, report: &report })?;
        return Ok(exit);
    }
    let done = if args.dry_run { "would remove" } else { "removed" };
    for SelectedInstance { name, reason, .. } in &report.removed {
        context.line(format!("{done} instance {name}: {}", escape_control(reason)))?;
    }
    for SelectedInstance { name, controller, reason, .. } in &report.left {
        context.error_line(&format!(
            "error: cannot remove instance {name} of controller {}: {}",
            escape_control(controller),
            escape_control(reason)
        ));
    }
    for name in &report.unknown {
        context.error_line(&format!("error: unknown instance {name:?}"));
    }
    context.line(format!("{done} {}", format_count(report.removed.len(), "instance")))?;
    Ok(exit)
}
