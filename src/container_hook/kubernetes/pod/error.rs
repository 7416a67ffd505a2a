//! Why no pod can be made of a request.

use crate::container_hook::error::HookError;

/// What a request asks for cannot be had of a pod.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PodError {
    /// Two containers share the network of their pod, and would share a port.
    #[error(
        "{first} and {second} both use the port {port}: the containers of a job share one network in a \
         cluster; let one of them use another port"
    )]
    SamePort { first: String, second: String, port: String },
    /// Only one of them can be what the pod has.
    #[error("{field}: {first} and {second} ask for different ones, and a pod has one")]
    Different { field: &'static str, first: String, second: String },
    /// A Dockerfile was not built by now.
    #[error("{dockerfile} is a Dockerfile, and a pod needs an image")]
    Dockerfile { dockerfile: String },
    /// Nothing says what a step shall run.
    #[error(
        "what the image {image} runs is not known, since its registry does not tell: name `entrypoint` and \
         `args` of the step"
    )]
    NoFacts { image: String },
    /// An image has no program, and the step names none.
    #[error("the image {image} has no program of its own: name an `entrypoint`")]
    NoProgram { image: String },
    /// The claim of the runner is to be used, and there is none.
    #[error(
        "`work = \"claim\"` under [kubernetes] of the settings needs a runner whose work directory is on a \
         persistent volume claim: this one's is not, or cannot be found; name it by \
         ACTIONS_RUNNER_CLAIM_NAME, or write `work = \"copy\"`"
    )]
    NoClaim,
    /// The claim can be used by the runner alone.
    #[error(
        "`work = \"claim\"` under [kubernetes] of the settings: the claim {claim} is ReadWriteOncePod, and \
         the runner's pod has it; write `work = \"copy\"`"
    )]
    ClaimOfOnePod { claim: String },
    /// The pod is not as the admin wants all pods to be.
    #[error(
        "the pod does not pass the restricted profile, which `restricted = true` under [kubernetes] of the \
         settings asks for: {}", .0.join("; ")
    )]
    NotRestricted(Vec<String>),
    /// A file cannot be mounted before it is there.
    #[error(
        "{path} is a file: where files are copied to the pod of the job, only directories can be mounted"
    )]
    File { path: String },
}

impl From<PodError> for HookError {
    fn from(error: PodError) -> Self {
        HookError::Backend(Box::new(error))
    }
}
