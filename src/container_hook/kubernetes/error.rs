//! What of a cluster can fail under a command of the runner.

use super::client::ClusterError;
use super::wait::WaitError;
use crate::container_hook::error::HookError;

/// A pod, a secret, or what is in a container failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KubernetesError {
    #[error(
        "no image brings this program to pods: pod {pod} of the runner cannot be read in namespace \
         {namespace}; set `runner-image` under [kubernetes], or ACTIONS_RUNNER_IMAGE"
    )]
    NoRunnerImage { pod: String, namespace: String },
    #[error(
        "the work directory {work} is on no volume claim: set `work = \"copy\"` under [kubernetes], or \
         mount a claim there in the runner's pod"
    )]
    NoClaim { work: String },
    #[error(
        "Dockerfile actions need a registry: set `push` and `image` (or `buildkit`) under \
         [kubernetes.build]"
    )]
    NoBuild,
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// A pod did not become what it should.
    #[error(transparent)]
    Wait(#[from] WaitError),
    #[error("interrupted by signal {signal}")]
    Interrupted { signal: i32 },
}

impl From<KubernetesError> for HookError {
    fn from(error: KubernetesError) -> Self {
        HookError::Backend(Box::new(error))
    }
}
