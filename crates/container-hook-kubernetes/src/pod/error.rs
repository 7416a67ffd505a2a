//! Reasons to reject a pod.

/// Reasons to reject the pod of a request.
#[derive(Debug, thiserror::Error)]
pub enum PodError {
    /// The containers disagree on a setting of the whole pod.
    #[error("{field}: {first} and {second} request different values, but a pod has only one")]
    Different { field: String, first: String, second: String },
    /// The request names a Dockerfile, whose image has to be built first.
    #[error("{dockerfile} is a Dockerfile, and a pod needs an image")]
    Dockerfile { dockerfile: String },
    /// The program of a container step or a service is unknown.
    #[error(
        "the program of the image {image} is unknown, because the configuration of the image could not be read from its \
         registry: set `entrypoint` and its arguments"
    )]
    NoFacts { image: String },
    /// Neither the image nor the request has a program.
    #[error("the image {image} has no program of its own (ENTRYPOINT or CMD): set `entrypoint`")]
    NoProgram { image: String },
    /// The settings require the runner's claim, but none was found.
    #[error(
        "`work = \"claim\"` under [kubernetes] of the settings needs a runner whose work directory is on a \
         persistent volume claim, but no claim of this runner was found: set ACTIONS_RUNNER_CLAIM_NAME to \
         the claim's name, or write `work = \"copy\"`"
    )]
    NoClaim,
    /// Only the runner's own pod can use the claim.
    #[error(
        "`work = \"claim\"` under [kubernetes] of the settings: the access mode of the claim {claim} is \
         ReadWriteOncePod, so only the runner's pod can mount it; write `work = \"copy\"`"
    )]
    ClaimOfOnePod { claim: String },
    /// The pod violates the restricted profile, which the settings require.
    #[error(
        "the pod violates the restricted profile of the pod security standards, which `restricted = true` \
         under [kubernetes] of the settings requires: {}", .0.join("; ")
    )]
    NotRestricted(Vec<String>),
    /// A file cannot be mounted before it is uploaded.
    #[error(
        "cannot mount the file {path}: without a persistent volume claim for the work directory, only \
         directories can be mounted"
    )]
    File { path: String },
}

container_hook_job::backend_errors!(PodError);
