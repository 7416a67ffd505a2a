//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use oci_hooks_cli::completions::CompletionsArgs;
use oci_hooks_cli::context::{CliContext, ColorMode, log_level};
use oci_hooks_cli::man::ManArgs;
use oci_hooks_cli::trace::LevelFilter;
use oci_hooks_engine_cli::config::ConfigArgs;
use oci_hooks_engine_cli::monitor::MonitorArgs;

use crate::{doctor, instances, logs, prune, pull, rm, supervise};

const HELP: &str = "\
Without a command, this program carries out the request in GARM_COMMAND and other environment
variables. Only GARM calls it without a command; the commands are for admins.

Examples:
  garm-provider-runc doctor                  Check this host
  garm-provider-runc doctor --probe          What can instances reach that they must not?
  garm-provider-runc pull ubuntu-24.04       Pull an image before an instance needs it
  garm-provider-runc instances               List the instances of all pools
  garm-provider-runc logs garm-x7k2 -f       Follow the output of a runner
  garm-provider-runc rm --orphans            Remove orphaned instances
  garm-provider-runc prune --size 20GB       Remove least recently used images

Exit status:
  0   done
  1   error, or doctor found a problem
  2   bad usage
  30  for GARM: unknown instance
  31  for GARM: the instance already exists

Memory limits, mirrors, CA certificates, caches, extra specs, troubleshooting, uninstall: see
man garm-provider-runc, and garm.md in /usr/share/doc/garm-provider-runc or in docs/ of the
repository.";

/// Run GARM's runners as OCI containers on runc or crun, without a daemon
#[derive(Debug, Parser)]
#[command(name = "garm-provider-runc", version, after_help = HELP)]
pub struct ProviderCli {
    #[command(flatten)]
    pub global: GlobalArgs,
    #[command(subcommand)]
    pub command: Option<AdminCommand>,
}

/// Options of all commands.
#[derive(Debug, Args)]
#[command(next_help_heading = "Global options")]
pub struct GlobalArgs {
    /// Read the settings from FILE instead of /etc/oci-hooks/garm-provider-runc.toml
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Output format
    #[arg(long, global = true, value_enum, value_name = "FORMAT", default_value_t)]
    pub format: AdminFormat,

    /// Coloured output
    #[arg(long, global = true, value_enum, value_name = "WHEN", default_value_t)]
    pub color: ColorMode,

    /// Log mounts, programs, requests and decisions to standard error, from this level (RUST_LOG selects modules)
    #[arg(long, global = true, value_name = "LEVEL", value_parser = log_level())]
    pub log_level: Option<LevelFilter>,
}

impl GlobalArgs {
    /// Returns the environment of a command with these options.
    pub fn context(&self) -> CliContext {
        CliContext::new(self.color, self.format == AdminFormat::Json)
            .with_config(self.config.clone())
    }
}

/// Output format of commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum AdminFormat {
    /// Human-readable
    #[default]
    Human,
    /// Machine-readable; described in garm-provider-runc(1)
    Json,
}

const CONFIG_EXAMPLES: &str = "\
Examples:
  garm-provider-runc config                        Print the settings in force
  garm-provider-runc config --default > FILE.toml  Write a file to start from";

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  garm-provider-runc completions bash > /etc/bash_completion.d/garm-provider-runc";

#[derive(Debug, Subcommand)]
pub enum AdminCommand {
    Instances(instances::InstancesArgs),
    Logs(logs::LogsArgs),
    Doctor(doctor::DoctorArgs),
    Pull(pull::PullArgs),
    Rm(rm::RmArgs),
    Prune(prune::PruneArgs),
    #[command(after_help = CONFIG_EXAMPLES)]
    Config(ConfigArgs),
    #[command(after_help = COMPLETIONS_EXAMPLES)]
    Completions(CompletionsArgs),
    Man(ManArgs),
    Supervise(supervise::SuperviseArgs),
    Monitor(MonitorArgs),
}
