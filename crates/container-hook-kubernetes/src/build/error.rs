//! Errors of building an image.

use container_hook_job::dockerfile::{ContextError, RegistryConfigError};
use oci_hooks_files::fs::{PathError, ReadError};
use oci_hooks_image::{CredentialFileError, HelperError, ReferenceError, RegistryError};

use crate::client::ClusterError;

/// Errors of building an image in a cluster.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The settings name no registry for images.
    #[error(
        "a Dockerfile action needs a registry and a builder: set in the settings\n\
         [kubernetes.build]\n\
         push = \"registry.example.com/actions\"\n\
         image = \"quay.io/buildah/stable\"\n\
         or buildkit = \"tcp://HOST:PORT\" with an image that has buildctl, or use an action with a \
         published image"
    )]
    Unset,
    /// `restricted = true` rules out builds: the restricted profile of pod security allows no user
    /// namespaces.
    #[error(
        "cannot build a Dockerfile action with `restricted = true` under [kubernetes] of the settings: buildah \
         needs a user namespace, which the restricted profile does not allow; set `buildkit` under \
         [kubernetes.build], or use an action with a published image"
    )]
    Restricted,
    /// The prefix of image names is invalid.
    #[error(
        "invalid `push` {push:?} under [kubernetes.build] of the settings: expected REGISTRY[/PATH]"
    )]
    Push { push: String, source: ReferenceError },
    /// The Dockerfile's directory cannot be used as a context.
    #[error(transparent)]
    Context(#[from] ContextError),
    #[error(transparent)]
    Path(#[from] PathError),
    /// The builder's registry configuration cannot be written.
    #[error(transparent)]
    Configure(#[from] RegistryConfigError),
    /// The file with logins cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The file with logins is invalid.
    #[error("{file}")]
    Logins { file: String, source: CredentialFileError },
    #[error(transparent)]
    Helper(#[from] HelperError),
    #[error(transparent)]
    Registry(#[from] RegistryError),
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The builder failed; its output says why.
    #[error("{program} {action} ended with code {code}; see its output above")]
    Failed {
        program: &'static str,
        /// Command of the program that failed, such as `build` or `push`.
        action: &'static str,
        code: u8,
    },
    /// The builder reported success, but the registry does not have the image.
    #[error(
        "the builder reported no error, but {image} is not in its registry: see the builder's output above"
    )]
    NotPushed { image: String },
}

container_hook_job::backend_errors!(BuildError);
