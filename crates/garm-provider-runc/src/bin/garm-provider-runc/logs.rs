//! `garm-provider-runc logs`.

use std::path::Path;
use std::thread;
use std::time::Duration;

use clap::Args;
use clap_complete::ArgValueCandidates;
use garm_provider_runc::logs::newest_log;
use garm_provider_runc::record::recorded_controllers;
use garm_provider_runc::{InstanceSites, InstanceStatus, instance};
use oci_hooks_cli::context::CliContext;
use oci_hooks_cli::exit::CliExit;
use oci_hooks_engine::container::{LogReader, last_lines};
use oci_hooks_engine_cli::{lines, settings_file};

use crate::backend::InstanceBackend;
use crate::error::AdminError;
use crate::instances;
use crate::settings::GarmFileSettings;

/// Interval at which a followed log is read.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Show the log of an instance: its boot and the output of its runner
#[derive(Debug, Args)]
#[command(after_help = "\
Logs are kept after an instance is removed, for keep-age under [log] of the settings. If several
instances had this name, the log is that of the last one.")]
pub struct LogsArgs {
    /// Name of the instance
    #[arg(add = ArgValueCandidates::new(instances::names))]
    name: String,

    /// Follow until the instance is removed
    #[arg(long, short)]
    follow: bool,

    /// Show only the last COUNT lines
    #[arg(long, short = 'n', value_name = "COUNT")]
    lines: Option<usize>,

    /// Print the time before each line
    #[arg(long)]
    timestamps: bool,
}

pub fn run(args: &LogsArgs, context: &mut CliContext) -> Result<CliExit, AdminError> {
    let settings = settings_file::load::<GarmFileSettings>(context)?.settings;
    let directory = &settings.log.directory;
    let path = newest_log(directory, &args.name)?.ok_or_else(|| AdminError::NoLog {
        name: args.name.clone(),
        directory: directory.clone(),
    })?;
    let count = args.lines.unwrap_or(usize::MAX);
    if args.follow && context.is_json() {
        return Err(AdminError::EndlessJson);
    }
    if args.follow {
        return InstanceBackend::of(settings).with_sites(|run, sites| {
            follow(args, &path, count, (run, sites), context).map(|()| CliExit::Done)
        });
    }
    let lines = last_lines(&path, count)?;
    if context.is_json() {
        lines::json(&lines, context)?;
        return Ok(CliExit::Done);
    }
    lines::write(&lines, args.timestamps, context)?;
    Ok(CliExit::Done)
}

/// Prints a log and lines appended to it, until the instance ends.
fn follow(
    args: &LogsArgs,
    path: &Path,
    count: usize,
    instances: (&Path, &dyn InstanceSites),
    context: &mut CliContext,
) -> Result<(), AdminError> {
    let mut reader = LogReader::open(path)?;
    let lines = reader.lines()?;
    lines::write(&lines[lines.len().saturating_sub(count)..], args.timestamps, context)?;
    loop {
        // Checked first, so that the last lines are not missed.
        let is_over = !is_written(args, path, instances)?;
        lines::write(&reader.lines()?, args.timestamps, context)?;
        context.flush()?;
        if is_over {
            return Ok(());
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// Returns whether the instance that writes this log is still running.
fn is_written(
    args: &LogsArgs,
    path: &Path,
    (run, sites): (&Path, &dyn InstanceSites),
) -> Result<bool, AdminError> {
    for records in recorded_controllers(run)? {
        let Some(files) = records.files(&args.name) else { continue };
        let Some(record) = files.record()? else { continue };
        if record.log == path {
            let site = sites.site(records.controller(), &args.name)?;
            return Ok(instance(&site, &files, record)?.status == InstanceStatus::Running);
        }
    }
    Ok(false)
}
