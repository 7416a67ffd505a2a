//! `container-hook logs`.

use std::thread;

use clap::Args;
use clap_complete::ArgValueCandidates;
use oci_hooks_cli::context::CliContext;
use oci_hooks_cli::exit::CliExit;
use oci_hooks_engine::container::{ContainerError, ContainerRecord, Engine, LogReader};
use oci_hooks_engine_cli::{lines, settings_file};

use crate::error::HookCommandError;
use crate::job_backend::JobBackend;
use crate::settings::HookFileSettings;
use crate::{jobs, names};

/// Show the log of a container
#[derive(Debug, Args)]
#[command(after_help = "\
The output of a step is only in the log of that step on GitHub. What its background processes write
after it has ended is in the log of the job's container. `container-hook ps` lists the containers.
Their logs are removed with the job; the log of the job then has the output of services.")]
pub struct LogsArgs {
    /// Id, prefix of the id, or name of the container; in a cluster the pod
    #[arg(add = ArgValueCandidates::new(names::containers))]
    pub id: String,

    /// In a cluster: the container of the pod, if it has more than one
    pub container: Option<String>,

    /// Print new output until the container ends
    #[arg(long, short)]
    pub follow: bool,

    /// Show only the last COUNT lines
    #[arg(long, short = 'n', value_name = "COUNT")]
    pub tail: Option<usize>,

    /// Print the time before each line
    #[arg(long)]
    pub timestamps: bool,
}

pub fn run(args: &LogsArgs, context: &mut CliContext) -> Result<CliExit, HookCommandError> {
    let settings = settings_file::load::<HookFileSettings>(context)?.settings;
    match JobBackend::of(&settings)? {
        JobBackend::Root | JobBackend::User => {}
        #[cfg(feature = "kubernetes")]
        JobBackend::Cluster => return crate::pods::logs(args, &settings, context),
    }
    if args.container.is_some() {
        return Err(HookCommandError::NoPods);
    }
    let (engine, record) = find(&settings, &args.id)?;
    let count = args.tail.unwrap_or(usize::MAX);
    if args.follow {
        if context.is_json() {
            return Err(HookCommandError::EndlessJson);
        }
        let files = engine.directory(&record.id);
        let is_over = || match engine.find(&record.id) {
            Ok(_) => Ok(files.end().is_some()),
            Err(ContainerError::Unknown { .. }) => Ok(true),
            Err(error) => Err(HookCommandError::from(error)),
        };
        // A container that is being created has no log yet; some never have one.
        while !files.log().exists() {
            if is_over()? {
                return Ok(CliExit::Done);
            }
            thread::sleep(lines::POLL_INTERVAL);
        }
        let reader = LogReader::open(&files.log())?;
        lines::follow::<HookCommandError>(reader, count, args.timestamps, context, is_over)?;
        return Ok(CliExit::Done);
    }
    let lines = engine.logs(&record, count)?;
    if context.is_json() {
        lines::json(&lines, context)?;
    } else {
        lines::write(&lines, args.timestamps, context)?;
    }
    Ok(CliExit::Done)
}

/// Returns a container by its id, a prefix of its id, or its name, with its engine: each rootless job has its
/// own records.
fn find(
    settings: &HookFileSettings,
    id: &str,
) -> Result<(Engine, ContainerRecord), HookCommandError> {
    let unknown = || ContainerError::Unknown { id: id.to_owned() };
    let mut found = Err(HookCommandError::from(unknown()));
    for store in jobs::of(&settings.store).stores()? {
        let engine = settings.with_store(&store).host().into_existing_engine()?;
        match (engine.find(id), &found) {
            (Ok(record), Err(_)) => found = Ok((engine, record)),
            (Ok(_), Ok(_)) => {
                return Err(ContainerError::Ambiguous { id: id.to_owned() }.into());
            }
            (Err(ContainerError::Unknown { .. }), _) => {}
            (Err(error), _) => return Err(error.into()),
        }
    }
    found
}
