//! What jobs of a runner will find.

use std::path::Path;

use super::super::client::{Cluster, ClusterError};
use super::super::own_pod::{OwnPod, PodIdentity};

/// What is found of the pod of a runner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunnerPod {
    /// Whether it is in the namespace of the pods of its jobs, and owns them.
    pub is_found: bool,
    pub image: Option<String>,
    pub node: Option<String>,
    /// The claim that its work directory is on.
    pub claim: Option<String>,
}

/// Looks for the pod of a runner with this work directory.
///
/// # Errors
///
/// Fails if the cluster cannot be asked. That there is no such pod is no error.
pub async fn inspect(
    cluster: &Cluster,
    identity: &PodIdentity,
    work: &Path,
) -> Result<RunnerPod, ClusterError> {
    let pod = cluster.pod(&identity.name).await?;
    let own = OwnPod::new(identity, pod.as_ref(), work);
    Ok(RunnerPod {
        is_found: pod.is_some(),
        image: own.image,
        node: own.node,
        claim: own.claim.map(|claim| claim.name),
    })
}
