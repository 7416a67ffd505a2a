//! `garm-provider-runc logs`.

use std::path::Path;

use clap::Args;
use clap_complete::ArgValueCandidates;
use garm_provider_runc::logs::newest_log;
use garm_provider_runc::record::recorded_controllers;
use garm_provider_runc::{InstanceAccess, InstanceStatus, instance};
use oci_hooks_cli::context::CliContext;
use oci_hooks_cli::exit::CliExit;
use oci_hooks_engine::container::{LogReader, last_lines};
use oci_hooks_engine_cli::{lines, settings_file};

use crate::backend::InstanceBackend;
use crate::error::AdminError;
use crate::instances;
use crate::settings::GarmFileSettings;

/// Show the log of an instance: its boot and the output of its runner
#[derive(Debug, Args)]
#[command(after_help = "\
The log of a removed instance is kept for `keep-age` under [log] of the settings. If several
instances had this name, the newest log is shown.")]
pub struct LogsArgs {
    /// Name of the instance
    #[arg(add = ArgValueCandidates::new(instances::names))]
    name: String,

    /// Follow the log while the instance is running
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
        return InstanceBackend::of(settings).with_access(|run, access| {
            let is_over = || Ok(!is_written(args, &path, (run, access))?);
            let reader = LogReader::open(&path)?;
            lines::follow::<AdminError>(reader, count, args.timestamps, context, is_over)?;
            Ok(CliExit::Done)
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

/// Returns whether the instance that writes this log is still running.
fn is_written(
    args: &LogsArgs,
    path: &Path,
    (run, access): (&Path, &dyn InstanceAccess),
) -> Result<bool, AdminError> {
    for records in recorded_controllers(run)? {
        let Some(files) = records.files(&args.name) else { continue };
        let Some(record) = files.record()? else { continue };
        if record.log == path {
            let processes = access.processes(records.controller(), &args.name)?;
            return Ok(instance(&processes, &files, record)?.status == InstanceStatus::Running);
        }
    }
    Ok(false)
}
