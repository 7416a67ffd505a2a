//! Why an image could not be built.

use crate::container_hook::dockerfile::{ConfigureError, ContextError};
use crate::container_hook::error::HookError;
use crate::container_hook::kubernetes::client::ClusterError;
use crate::image::{CredentialFileError, HelperError, OpenError, ReferenceError, RegistryError};
use crate::sys::fs::{PathError, ReadError};

/// An image could not be built in a cluster.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// Nothing says where images go.
    #[error(
        "a Dockerfile action needs a registry and a builder: set\n\
         [kubernetes.build]\n\
         push = \"registry.example.com/actions\"\n\
         image = \"quay.io/buildah/stable\"\n\
         or buildkit = \"tcp://HOST:PORT\" with an image that has buildctl, or use an action with a \
         published image"
    )]
    Unset,
    /// The restricted profile of pod security allows no user namespaces.
    #[error(
        "`restricted = true` under [kubernetes] leaves buildah no user namespace to build in: set \
         `buildkit` under [kubernetes.build], or use an action with a published image"
    )]
    Restricted,
    /// What names of images begin with cannot be it.
    #[error("invalid `push` {push:?} under [kubernetes.build]: expected REGISTRY[/PATH]")]
    Push { push: String, source: ReferenceError },
    /// The directory of the Dockerfile cannot be built from.
    #[error(transparent)]
    Context(#[from] ContextError),
    #[error(transparent)]
    Path(#[from] PathError),
    /// The builder cannot be told of registries.
    #[error(transparent)]
    Configure(#[from] ConfigureError),
    /// The file with logins cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The file with logins is none.
    #[error("{file}")]
    Logins { file: String, source: CredentialFileError },
    /// A login could not be found out.
    #[error(transparent)]
    Helper(#[from] HelperError),
    /// The registry cannot be asked for what was built before.
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Registry(#[from] RegistryError),
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The builder failed, and has said why.
    #[error("{program} {action} ended with code {code}; see its output above")]
    Failed {
        program: &'static str,
        /// `build`, `push` and the like.
        action: &'static str,
        code: u8,
    },
    /// The builder says that it pushed the image, the registry that it has none.
    #[error("{image} is not in its registry, although it was pushed")]
    NotPushed { image: String },
}

impl From<BuildError> for HookError {
    fn from(error: BuildError) -> Self {
        HookError::Backend(Box::new(error))
    }
}
