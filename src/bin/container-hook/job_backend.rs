//! What carries jobs out.

use oci_hooks::sys::privilege::Privilege;

use crate::environment::pod;
use crate::settings::{Kind, Settings};

/// Where the containers of jobs run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobBackend {
    /// On this host, as root.
    Root,
    /// On this host, as an ordinary user.
    User,
    /// In pods of a cluster.
    #[cfg(feature = "kubernetes")]
    Cluster,
}

/// The settings or the environment ask for a cluster.
#[derive(Debug, thiserror::Error)]
#[error(
    "this program was built without the feature `kubernetes`: set `kind = \"engine\"` under [backend] for \
     containers of this machine"
)]
pub struct NoKubernetes;

impl JobBackend {
    /// Returns what the settings name, else a cluster in the pod of a runner, else this host.
    pub fn of(settings: &Settings) -> Result<Self, NoKubernetes> {
        let found = || if pod::is_of_runner() { Kind::Kubernetes } else { Kind::Engine };
        match settings.backend.kind.unwrap_or_else(found) {
            Kind::Engine if Privilege::is_root_of_host() => Ok(JobBackend::Root),
            Kind::Engine => Ok(JobBackend::User),
            #[cfg(feature = "kubernetes")]
            Kind::Kubernetes => Ok(JobBackend::Cluster),
            #[cfg(not(feature = "kubernetes"))]
            Kind::Kubernetes => Err(NoKubernetes),
        }
    }
}
