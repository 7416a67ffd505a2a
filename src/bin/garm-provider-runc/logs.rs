//! `garm-provider-runc logs`.

use std::path::Path;
use std::thread;
use std::time::Duration;

use clap::Args;
use clap_complete::ArgValueCandidates;
use oci_hooks::container::{LogReader, last_lines};
use oci_hooks::garm::logs::last;
use oci_hooks::garm::record::controllers;
use oci_hooks::garm::{Sites, Status, instance};
use oci_hooks::program::context::Context;
use oci_hooks::program::exit::Exit;
use oci_hooks::program::lines;

use crate::backend::Backend;
use crate::error::Error;
use crate::instances;
use crate::settings::Settings;

/// The interval at which a followed log is read.
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

pub fn run(args: &LogsArgs, context: &mut Context) -> Result<Exit, Error> {
    let settings = context.settings::<Settings>()?.settings;
    let directory = &settings.log.directory;
    let path = last(directory, &args.name)?
        .ok_or_else(|| Error::NoLog { name: args.name.clone(), directory: directory.clone() })?;
    let count = args.lines.unwrap_or(usize::MAX);
    if args.follow && context.is_json() {
        return Err(Error::EndlessJson);
    }
    if args.follow {
        return Backend::of(settings).with_sites(|run, sites| {
            follow(args, &path, count, (run, sites), context).map(|()| Exit::Done)
        });
    }
    let lines = last_lines(&path, count)?;
    if context.is_json() {
        lines::json(&lines, context)?;
        return Ok(Exit::Done);
    }
    lines::write(&lines, args.timestamps, context)?;
    Ok(Exit::Done)
}

/// Prints a log and what is appended, until the instance ends.
fn follow(
    args: &LogsArgs,
    path: &Path,
    count: usize,
    instances: (&Path, &dyn Sites),
    context: &mut Context,
) -> Result<(), Error> {
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
    (run, sites): (&Path, &dyn Sites),
) -> Result<bool, Error> {
    for records in controllers(run)? {
        let Some(files) = records.files(&args.name) else { continue };
        let Some(record) = files.record()? else { continue };
        if record.log == path {
            let site = sites.site(records.controller(), &args.name)?;
            return Ok(instance(&site, &files, record)?.status == Status::Running);
        }
    }
    Ok(false)
}
