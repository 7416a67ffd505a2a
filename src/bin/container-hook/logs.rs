//! `container-hook logs`.

use clap::Args;
use clap_complete::ArgValueCandidates;
use oci_hooks::container::{ContainerError, Engine, Record};
use oci_hooks::program::context::Context;
use oci_hooks::program::exit::Exit;
use oci_hooks::program::lines;

use crate::error::Error;
use crate::job_backend::JobBackend;
use crate::jobs;
use crate::names;
use crate::settings::Settings;

/// Show what a service wrote
#[derive(Debug, Args)]
#[command(after_help = "\
The output of a step is in the log of that step on GitHub, and nowhere else. What its background
processes write after it has ended is here, under the job's container. `container-hook ps` lists
the containers; their logs go with the job, and the log of the job then has the output of
services.")]
pub struct LogsArgs {
    /// The container's id, the beginning of it, or its name; in a cluster the pod
    #[arg(add = ArgValueCandidates::new(names::containers))]
    pub id: String,

    /// In a cluster: the container of the pod, if it has more than one
    pub container: Option<String>,

    /// Show the last lines only
    #[arg(long, short = 'n', value_name = "COUNT")]
    pub tail: Option<usize>,

    /// Print the time before each line
    #[arg(long)]
    pub timestamps: bool,
}

pub fn run(args: &LogsArgs, context: &mut Context) -> Result<Exit, Error> {
    let settings = context.settings::<Settings>()?.settings;
    match JobBackend::of(&settings)? {
        JobBackend::Root | JobBackend::User => {}
        #[cfg(feature = "kubernetes")]
        JobBackend::Cluster => return crate::pods::logs(args, &settings, context),
    }
    if args.container.is_some() {
        return Err(Error::NoPods);
    }
    let (engine, record) = find(&settings, &args.id)?;
    let lines = engine.logs(&record, args.tail.unwrap_or(usize::MAX))?;
    if context.is_json() {
        lines::json(&lines, context)?;
    } else {
        lines::write(&lines, args.timestamps, context)?;
    }
    Ok(Exit::Done)
}

/// Returns a container by its id, the beginning of it, or its name, and what has it: each job of an ordinary
/// user has its own records.
fn find(settings: &Settings, id: &str) -> Result<(Engine, Record), Error> {
    let unknown = || ContainerError::Unknown { id: id.to_owned() };
    let mut found = Err(Error::from(unknown()));
    for store in jobs::of(&settings.store).stores()? {
        let engine = settings.with_store(&store).host().existing()?;
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
