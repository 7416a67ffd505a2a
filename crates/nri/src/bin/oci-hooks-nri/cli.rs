//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use oci_hooks_cli::completions::CompletionsArgs;
use oci_hooks_cli::man::ManArgs;
use oci_hooks_nri::{IdentityError, PluginIdentity};

use crate::settings::PluginSettings;

/// Default socket of containerd and CRI-O for plugins.
const SOCKET: &str = "/var/run/nri/nri.sock";

const HELP: &str = "\
containerd and CRI-O start it themselves if it is in their plugin directory, with an index before its \
name. Started in any other way, it connects to their socket, and reconnects after they restart.

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

/// Options of the plugin. They override the runtime's configuration.
#[derive(Args, Debug)]
pub struct PluginArgs {
    #[command(flatten)]
    pub settings: PluginSettings,

    /// Unix socket on which the runtime listens for NRI plugins
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
