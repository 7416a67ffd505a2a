//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use oci_hooks_cli::completions::CompletionsArgs;
use oci_hooks_cli::context::{CliContext, ColorMode, log_level};
use oci_hooks_cli::man::ManArgs;
use oci_hooks_cli::trace::LevelFilter;
use oci_hooks_engine_cli::config::ConfigArgs;
use oci_hooks_engine_cli::monitor::MonitorArgs;

use crate::{
    as_child, audit, doctor, images, import, install, logs, prune, ps, pull, rmi, shell, template,
    try_job, volumes,
};

const HELP: &str = "\
Without a command it reads a request of GitHub's runner from standard input and carries it out.
The runner does so through the script that `container-hook install` writes.

Examples:
  container-hook install ~/container-hook      Write the script, and print what the runner needs
  container-hook doctor                        What is missing on this machine?
  container-hook doctor --probe                What can jobs reach that they must not?
  container-hook try                           Run a job without GitHub
  container-hook pull node:22                  Pull an image before a job needs it
  container-hook shell                         A shell in the container of the running job
  container-hook prune --size 20GB             Remove least recently used images
  container-hook template lint pod.yaml        Are there mistakes in this pod template?

Exit status:
  0  done; for a request, the step succeeded
  1  error, or doctor found a problem
  2  the command line or a template is wrong
  N  for a request, the code that the step ended with

Memory limits, mirrors, CA certificates, troubleshooting, upgrade, uninstall: see
man container-hook, and container-hook.md and container-hook-settings.md in
/usr/share/doc/container-hook or in docs/ of the repository.";

/// Run the containers of GitHub's runner on runc or crun, without a daemon
#[derive(Debug, Parser)]
#[command(name = "container-hook", version, after_help = HELP)]
pub struct HookCli {
    #[command(flatten)]
    pub global: GlobalArgs,
    #[command(subcommand)]
    pub command: Option<HookSubcommand>,
}

/// Options of all commands.
#[derive(Debug, Args)]
#[command(next_help_heading = "Global options")]
pub struct GlobalArgs {
    /// Read the settings from FILE instead of /etc/oci-hooks/container-hook.toml and the user's own
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Format of the output
    #[arg(long, global = true, value_enum, value_name = "FORMAT", default_value_t)]
    pub format: ResultFormat,

    /// Coloured output
    #[arg(long, global = true, value_enum, value_name = "WHEN", default_value_t)]
    pub color: ColorMode,

    /// Log mounts, programs, requests and decisions to standard error, from this level (RUST_LOG selects modules)
    #[arg(long, global = true, value_name = "LEVEL", value_parser = log_level())]
    pub log_level: Option<LevelFilter>,
}

impl GlobalArgs {
    /// Returns the context of a command with these options.
    pub fn context(&self) -> CliContext {
        CliContext::new(self.color, self.format == ResultFormat::Json)
            .with_config(self.config.clone())
    }
}

/// The formats that results are printed in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ResultFormat {
    /// Human-readable
    #[default]
    Human,
    /// Machine-readable; described in container-hook(1)
    Json,
    /// YAML; only for `container-hook template`, which prints it by default
    Yaml,
}

const CONFIG_EXAMPLES: &str = "\
Examples:
  container-hook config --default > /etc/oci-hooks/container-hook.toml   A file to start from
  container-hook config                                                  What is in force

/etc/oci-hooks/container-hook.toml applies to all runners of this machine; a user's own file
supplies the keys that it does not set. [limits] has defaults for containers, [policy.max] maximums.
Examples are in /usr/share/doc/container-hook/container-hook-settings.md.";

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  container-hook completions bash > /etc/bash_completion.d/container-hook";

#[derive(Debug, Subcommand)]
pub enum HookSubcommand {
    Install(install::InstallArgs),
    Doctor(doctor::HookDoctorArgs),
    Try(try_job::TryArgs),
    Ps(ps::PsArgs),
    Logs(logs::LogsArgs),
    Shell(shell::ShellArgs),
    Audit(audit::AuditArgs),
    Images(images::ImagesArgs),
    Pull(pull::PullArgs),
    Import(import::ImportArgs),
    Rmi(rmi::RmiArgs),
    Volumes(volumes::VolumesArgs),
    Prune(prune::PruneArgs),
    Template(template::TemplateArgs),
    #[command(after_help = CONFIG_EXAMPLES)]
    Config(ConfigArgs),
    #[command(after_help = COMPLETIONS_EXAMPLES)]
    Completions(CompletionsArgs),
    Man(ManArgs),
    AsChild(as_child::AsChildArgs),
    TryRequest(try_job::TryRequestArgs),
    #[cfg(feature = "kubernetes")]
    Fill(crate::fill::FillArgs),
    Monitor(MonitorArgs),
}
