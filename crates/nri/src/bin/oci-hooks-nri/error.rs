//! Errors of the plugin.

use std::io;

use oci_hooks::hooks::monitor::MonitorError;
use oci_hooks_cli::context::OutputError;
use oci_hooks_cli::exit::CliError;
use oci_hooks_files::fs::PathError;
use oci_hooks_nri::{IdentityError, SessionError};

use crate::settings::ConfigError;

/// Errors that end the plugin or a conversation with a runtime.
#[derive(Debug, thiserror::Error)]
pub enum PluginError {
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error("invalid NRI_PLUGIN_SOCKET {text:?}: expected the number of an open descriptor")]
    Descriptor { text: String, source: Option<io::Error> },
    #[error(transparent)]
    Monitor(#[from] MonitorError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Log(#[from] PathError),
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error("the runtime did not answer the registration within {seconds} s")]
    Timeout { seconds: u64 },
    #[error("the runtime closed the connection before it accepted the plugin")]
    Closed,
    #[error("cannot {action} the runtime")]
    Socket { action: &'static str, source: io::Error },
    #[error("cannot wait for signals, the runtime and changes of hook directories")]
    Wait(#[source] io::Error),
    #[error(transparent)]
    Output(#[from] OutputError),
}

impl CliError for PluginError {
    fn is_broken_pipe(&self) -> bool {
        matches!(self, PluginError::Output(error) if error.is_broken_pipe())
    }

    fn hint(&self) -> Option<String> {
        match self {
            PluginError::Monitor(error) => error.hint().map(str::to_owned),
            _ => None,
        }
    }
}
