//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use oci_hooks::hooks::pipeline::MissingProgram;
use oci_hooks_cli::completions::CompletionsArgs;
use oci_hooks_cli::context::log_level;
use oci_hooks_cli::man::ManArgs;
use oci_hooks_cli::trace::LevelFilter;
use oci_hooks_nri::{IdentityError, PluginIdentity};
use serde::Deserialize;

/// Default socket of containerd and CRI-O for plugins.
const SOCKET: &str = "/var/run/nri/nri.sock";

const HELP: &str = "\
containerd and CRI-O start it themselves if it is in their plugin directory, with an index before its \
name. Started in any other way, it connects to their socket, and again whenever they have restarted.

Examples:
  ln -s /usr/bin/oci-hooks-nri /opt/nri/plugins/10-oci-hooks-nri   Have containerd start it
  oci-hooks-nri                                 Connect to the socket of containerd or CRI-O
  oci-hooks-nri --hooks-dir /etc/hooks.d --log-level debug         Explain each decision

Exit status:
  0  ended by SIGTERM or SIGINT, or by the runtime that started it
  1  error
  2  bad usage

Installation, conditions, failures, troubleshooting, upgrade, uninstall: see man oci-hooks-nri,
and nri.md in /usr/share/doc/oci-hooks-nri or in docs/ of the repository.";

/// Apply hooks.d to containers of containerd and CRI-O, as an NRI plugin
#[derive(Debug, Parser)]
#[command(
    name = "oci-hooks-nri",
    version,
    after_help = HELP,
    args_conflicts_with_subcommands = true
)]
pub struct PluginCli {
    #[command(flatten)]
    pub options: PluginArgs,
    #[command(subcommand)]
    pub command: Option<PluginCommand>,
}

/// Treatment of hook files whose program does not exist.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum MissingSetting {
    Drop,
    Fail,
}

impl From<MissingSetting> for MissingProgram {
    fn from(missing: MissingSetting) -> Self {
        match missing {
            MissingSetting::Drop => MissingProgram::Drop,
            MissingSetting::Fail => MissingProgram::Fail,
        }
    }
}

/// Options of the plugin. They override the runtime's configuration.
#[derive(Args, Debug, Default)]
pub struct PluginArgs {
    /// Read hook files from DIR instead of /usr/share/containers/oci/hooks.d and
    /// /etc/containers/oci/hooks.d (can be repeated, in order of increasing precedence)
    #[arg(long, value_name = "DIR")]
    pub hooks_dir: Vec<PathBuf>,

    /// Reject all containers while there is a broken hook file that was never valid, instead of leaving the
    /// file out
    #[arg(long)]
    pub strict: bool,

    /// Leave out hook files whose program does not exist, as podman does, or reject all containers while
    /// there is one [default: drop]
    #[arg(long, value_enum, value_name = "WHAT")]
    pub missing_program: Option<MissingSetting>,

    /// Reject containers unless the hook file FILE, a name or an absolute path, is in force (can be
    /// repeated)
    #[arg(long, value_name = "FILE")]
    pub require_hook: Vec<PathBuf>,

    /// Inject hooks that non-root users can change too, and let hooks without `env` inherit the
    /// environment of the OCI runtime
    #[arg(long)]
    pub allow_untrusted: bool,

    /// Write metrics to FILE, for the textfile collector of Prometheus' node exporter
    #[arg(long, value_name = "FILE")]
    pub metrics: Option<PathBuf>,

    /// Append the log to FILE instead of writing it to standard error
    #[arg(long, value_name = "FILE")]
    pub log_file: Option<PathBuf>,

    /// Log from this level: info has the hooks of each container, debug explains them [default: info]
    #[arg(long, value_name = "LEVEL", value_parser = log_level())]
    pub log_level: Option<LevelFilter>,

    /// Socket of the runtime
    #[arg(long, value_name = "PATH", default_value = SOCKET)]
    pub socket: PathBuf,

    /// Name to register as [default: oci-hooks-nri, or the one that the runtime gave]
    #[arg(long, value_name = "NAME", value_parser = name)]
    pub name: Option<String>,

    /// Index to register with, two digits: plugins are called in ascending order [default: 10, or the
    /// one that the runtime gave]
    #[arg(long, value_name = "NN", value_parser = index)]
    pub idx: Option<String>,
}

fn name(text: &str) -> Result<String, IdentityError> {
    PluginIdentity::new(text, "10").map(|_| text.to_owned())
}

fn index(text: &str) -> Result<String, IdentityError> {
    PluginIdentity::new("name", text).map(|_| text.to_owned())
}

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  oci-hooks-nri completions bash > /etc/bash_completion.d/oci-hooks-nri";

#[derive(Debug, Subcommand)]
pub enum PluginCommand {
    #[command(after_help = COMPLETIONS_EXAMPLES)]
    Completions(CompletionsArgs),
    Man(ManArgs),
}
