//! The errors of commands for admins, with hints.

use std::io;
use std::path::PathBuf;

use oci_hooks::container::ContainerError;
use oci_hooks::garm::{ProviderError, SupervisorError};
use oci_hooks::image::{ImportError, PullError, ReferenceError, StoreError};
use oci_hooks::program::context::OutputError;
use oci_hooks::program::exit::Failure;
use oci_hooks::program::host::HostError;
use oci_hooks::program::rootless::RootlessError;
use oci_hooks::program::settings_file::SettingsError;
use oci_hooks::sys::fs::PathError;
use oci_hooks::sys::privilege::PrivilegeError;

/// A command failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
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
    #[error("unknown image {name:?}: not an alias in the settings and not a valid reference")]
    Image { name: String, source: ReferenceError },
    #[error("cannot catch signals")]
    Signals(#[source] io::Error),
    #[error("the probe failed: {said}")]
    Probe { said: String },
    #[error("--follow cannot be combined with --format json")]
    EndlessJson,
    #[error("no log of {name} in {}", directory.display())]
    NoLog { name: String, directory: PathBuf },
}

impl Failure for Error {
    fn is_broken_pipe(&self) -> bool {
        matches!(self, Error::Output(error) if error.is_broken_pipe())
    }

    fn hint(&self) -> Option<String> {
        match self {
            Error::Settings(SettingsError::Trust { source: error, .. }) => error.hint(),
            Error::NoLog { .. } => {
                Some("`garm-provider-runc instances` lists the instances".to_owned())
            }
            _ => None,
        }
    }
}
