//! The cluster of the settings.

use oci_hooks::container_hook::kubernetes::{Cluster, ClusterError, RetryPolicy};

use crate::environment::pod;
use crate::error::Error;
use crate::settings::Settings;

/// Connects to the cluster of the settings, with the timeouts of an interactive command.
pub fn connect(settings: &Settings) -> Result<Cluster, Box<ClusterError>> {
    let namespace = settings.kubernetes.namespace.clone().or_else(|| pod::variable(pod::NAMESPACE));
    let cluster = Cluster::connect(namespace.as_deref())?;
    Ok(cluster.with_retries(RetryPolicy::brief()))
}

impl From<Box<ClusterError>> for Error {
    fn from(error: Box<ClusterError>) -> Self {
        Error::Cluster(error)
    }
}
