//! Commands for a cluster, where jobs are pods.

mod doctor;
mod logs;
mod prune;
mod ps;
mod template;

use oci_hooks::container_hook::kubernetes::{Cluster, ClusterError, RetryPolicy};

pub(crate) use doctor::run as doctor;
pub(crate) use logs::run as logs;
pub(crate) use prune::run as prune;
pub(crate) use ps::run as ps;
pub(crate) use template::run as template;

use crate::environment::pod;
use crate::settings::Settings;

/// Connects to the cluster of the settings, for somebody who waits for it.
fn connect(settings: &Settings) -> Result<Cluster, Box<ClusterError>> {
    let namespace = settings.kubernetes.namespace.clone().or_else(|| pod::variable(pod::NAMESPACE));
    let cluster = Cluster::connect(namespace.as_deref())?;
    Ok(cluster.with_retries(RetryPolicy::brief()))
}
