//! `container-hook logs`.

use clap::Args;
use clap_complete::ArgValueCandidates;
use oci_hooks::program::context::Context;
use oci_hooks::program::exit::Exit;
use oci_hooks::program::lines;

use crate::error::Error;
use crate::names;
use crate::settings::Settings;

/// Show what a service wrote
#[derive(Debug, Args)]
#[command(after_help = "\
What the job's container and container actions write is in the log of the step.")]
pub(crate) struct LogsArgs {
    /// The container's id, the beginning of it, or its name
    #[arg(add = ArgValueCandidates::new(names::containers))]
    id: String,

    /// Show the last lines only
    #[arg(long, short = 'n', value_name = "COUNT")]
    tail: Option<usize>,

    /// Print the time before each line
    #[arg(long)]
    timestamps: bool,
}

pub(crate) fn run(args: &LogsArgs, context: &mut Context) -> Result<Exit, Error> {
    let engine = context.settings::<Settings>()?.settings.host().existing()?;
    let record = engine.find(&args.id)?;
    let lines = engine.logs(&record, args.tail.unwrap_or(usize::MAX))?;
    if context.is_json() {
        lines::json(&lines, context)?;
    } else {
        lines::write(&lines, args.timestamps, context)?;
    }
    Ok(Exit::Done)
}
