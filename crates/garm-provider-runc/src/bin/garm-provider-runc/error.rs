//! Errors of admin commands, with hints.

use std::io;
use std::path::PathBuf;

use garm_provider_runc::{ImageNameError, ProviderError, SupervisorError};
use oci_hooks_cli::context::OutputError;
use oci_hooks_cli::exit::CliError;
use oci_hooks_engine::container::ContainerError;
use oci_hooks_engine_cli::host::HostError;
use oci_hooks_engine_cli::rootless::RootlessError;
use oci_hooks_engine_cli::settings_file::SettingsError;
use oci_hooks_files::fs::PathError;
use oci_hooks_host::privilege::PrivilegeError;
use oci_hooks_image::{ImportError, PullError, StoreError};

/// Errors of admin commands.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    #[error(transparent)]
    Path(#[from] PathError),
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error(transparent)]
    Output(#[from] OutputError),
    #[error(transparent)]
    Host(#[from] HostError),
    #[error(transparent)]
    Container(#[from] ContainerError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Import(#[from] ImportError),
    #[error(transparent)]
    Pull(#[from] Box<PullError>),
    #[error(transparent)]
    Provider(#[from] ProviderError),
    #[error(transparent)]
    Supervisor(#[from] SupervisorError),
    #[error(transparent)]
    Rootless(#[from] RootlessError),
    #[error(transparent)]
    Privilege(#[from] PrivilegeError),
    #[error(transparent)]
    Image(#[from] ImageNameError),
    #[error("cannot install signal handlers")]
    Signals(#[source] io::Error),
    #[error("the probe failed: {said}")]
    Probe { said: String },
    #[error("--follow cannot be combined with --format json")]
    EndlessJson,
    #[error("no log of {name} in {}", directory.display())]
    NoLog { name: String, directory: PathBuf },
}

impl CliError for AdminError {
    fn is_broken_pipe(&self) -> bool {
        matches!(self, AdminError::Output(error) if error.is_broken_pipe())
    }

    fn hint(&self) -> Option<String> {
        match self {
            AdminError::Settings(SettingsError::Trust { source: error, .. }) => error.hint(),
            AdminError::NoLog { .. } => Some(
                "`garm-provider-runc instances` lists the instances; the log of a removed one is \
                     kept for `keep-age` under [log]"
                    .to_owned(),
            ),
            _ => None,
        }
    }
}
