//! The cluster of the settings.

use container_hook_kubernetes::{ClusterClient, ClusterError, RetryPolicy};

use crate::environment::pod;
use crate::error::HookCommandError;
use crate::settings::HookFileSettings;

/// Connects to the cluster of the settings, with the timeouts of an interactive command.
pub fn connect(settings: &HookFileSettings) -> Result<ClusterClient, Box<ClusterError>> {
    let namespace = settings.kubernetes.namespace.clone().or_else(|| pod::variable(pod::NAMESPACE));
    let cluster = ClusterClient::connect(namespace.as_deref())?;
    Ok(cluster.with_retries(RetryPolicy::brief()))
}

impl From<Box<ClusterError>> for HookCommandError {
    fn from(error: Box<ClusterError>) -> Self {
        HookCommandError::Cluster(error)
    }
}
