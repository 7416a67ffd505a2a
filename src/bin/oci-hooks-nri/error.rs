//! What ends the plugin.

use std::io;

use oci_hooks::hooks::monitor::MonitorError;
use oci_hooks::nri::{IdentityError, SessionError};
use oci_hooks::program::context::OutputError;
use oci_hooks::program::exit::Failure;
use oci_hooks::sys::fs::PathError;

use crate::settings::ConfigError;

/// Why the plugin, or a conversation with a runtime, ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
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
    #[error("cannot wait for events")]
    Wait(#[source] io::Error),
    #[error(transparent)]
    Output(#[from] OutputError),
}

impl Failure for Error {
    fn is_broken_pipe(&self) -> bool {
        matches!(self, Error::Output(error) if error.is_broken_pipe())
    }

    fn hint(&self) -> Option<String> {
        match self {
            Error::Monitor(error) => error.hint().map(str::to_owned),
            _ => None,
        }
    }
}
