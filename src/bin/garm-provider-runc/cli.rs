//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::context::Color;
use crate::{completions, config, doctor, instances, logs, monitor, prune, pull, relay, supervise};

const HELP: &str = "\
Without a command it carries out what GARM asks for by GARM_COMMAND and other variables.
The commands are for people.

Examples:
  garm-provider-runc doctor                  What is missing on this machine?
  garm-provider-runc pull ubuntu-24.04       Have an image before an instance needs it
  garm-provider-runc instances               What is there, of all pools?
  garm-provider-runc logs garm-x7k2 -f       What does the runner of an instance say?
  garm-provider-runc prune --size 20GB       Remove the images unused for the longest time

Exit status:
  0   done
  1   it could not be done, or doctor found something that has to be mended
  2   the command line is wrong
  30  for GARM: there is no such instance
  31  for GARM: there is such an instance already";

/// Run GARM's runners as OCI containers on runc, crun or youki, without a daemon
#[derive(Debug, Parser)]
#[command(name = "garm-provider-runc", version, after_help = HELP, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

/// Options of all commands.
#[derive(Debug, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct GlobalArgs {
    /// Read the settings from FILE instead of /etc/oci-hooks/garm-provider-runc.toml
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Format of the output
    #[arg(long, global = true, value_enum, value_name = "FORMAT", default_value_t)]
    pub(crate) format: Format,

    /// Use colours
    #[arg(long, global = true, value_enum, value_name = "WHEN", default_value_t)]
    pub(crate) color: Color,
}

/// How results are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people
    #[default]
    Human,
    /// For programs; described in garm-provider-runc(1)
    Json,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Instances(instances::InstancesArgs),
    Logs(logs::LogsArgs),
    Doctor(doctor::DoctorArgs),
    Pull(pull::PullArgs),
    Prune(prune::PruneArgs),
    Config(config::ConfigArgs),
    Completions(completions::CompletionsArgs),
    AsRoot(relay::AsRootArgs),
    Supervise(supervise::SuperviseArgs),
    Monitor(monitor::MonitorArgs),
}
