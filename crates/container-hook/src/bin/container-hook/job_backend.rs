//! Selects the backend of jobs.

use oci_hooks_host::privilege::Privilege;

use crate::environment::pod;
use crate::settings::{BackendKind, HookFileSettings};

/// Backend of a job's containers.
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

/// The settings or the environment select a cluster, but the feature `kubernetes` is off.
#[derive(Debug, thiserror::Error)]
#[error(
    "this program was built without the feature `kubernetes`: set `kind = \"engine\"` under [backend] for \
     containers of this machine"
)]
pub struct KubernetesUnsupported;

impl JobBackend {
    /// Returns the backend of the settings; by default a cluster in a runner's pod, else this host.
    pub fn of(settings: &HookFileSettings) -> Result<Self, KubernetesUnsupported> {
        let found =
            || if pod::is_of_runner() { BackendKind::Kubernetes } else { BackendKind::Engine };
        match settings.backend.kind.unwrap_or_else(found) {
            BackendKind::Engine if Privilege::is_root_of_host() => Ok(JobBackend::Root),
            BackendKind::Engine => Ok(JobBackend::User),
            #[cfg(feature = "kubernetes")]
            BackendKind::Kubernetes => Ok(JobBackend::Cluster),
            #[cfg(not(feature = "kubernetes"))]
            BackendKind::Kubernetes => Err(KubernetesUnsupported),
        }
    }
}
