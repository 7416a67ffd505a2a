//! `container-hook logs`.

use clap::Args;
use clap_complete::ArgValueCandidates;
use oci_hooks::program::context::Context;
use oci_hooks::program::exit::Exit;
use oci_hooks::program::lines;

use crate::environment;
use crate::error::Error;
use crate::names;
use crate::pods;
use crate::settings::{Kind, Settings};

/// Show what a service wrote
#[derive(Debug, Args)]
#[command(after_help = "\
What the job's container and container actions write is in the log of the step.")]
pub(crate) struct LogsArgs {
    /// The container's id, the beginning of it, or its name; in a cluster the pod
    #[arg(add = ArgValueCandidates::new(names::containers))]
    pub(crate) id: String,

    /// In a cluster: the container of the pod, if it has more than one
    pub(crate) container: Option<String>,

    /// Show the last lines only
    #[arg(long, short = 'n', value_name = "COUNT")]
    pub(crate) tail: Option<usize>,

    /// Print the time before each line
    #[arg(long)]
    pub(crate) timestamps: bool,
}

pub(crate) fn run(args: &LogsArgs, context: &mut Context) -> Result<Exit, Error> {
    let settings = context.settings::<Settings>()?.settings;
    if environment::backend(&settings) == Kind::Kubernetes {
        return pods::logs(args, &settings, context);
    }
    if args.container.is_some() {
        return Err(Error::NoPods);
    }
    let engine = settings.host().existing()?;
    let record = engine.find(&args.id)?;
    let lines = engine.logs(&record, args.tail.unwrap_or(usize::MAX))?;
    if context.is_json() {
        lines::json(&lines, context)?;
    } else {
        lines::write(&lines, args.timestamps, context)?;
    }
    Ok(Exit::Done)
}
