//! Images: references, registries, the store on disk, layers and their unpacking.
//!
//! A [`Reference`] names an image. [`pull()`] asks a [`RegistryClient`] for its [`Manifest`], streams
//! the layers that are missing into the store, and returns the image that was committed there.
//!
//! Everything from a registry is hostile until its digest is checked. What it may lead us to do
//! with credentials is limited: they go to the registry they belong to and to the token server it
//! names, never along a redirect to another origin, never to a foreign layer's address.

mod config;
mod credentials;
mod digest;
mod import;
mod layer;
mod layout;
mod manifest;
mod pace;
mod platform;
mod progress;
mod pull;
mod reference;
mod registry;
mod store;

pub use config::{Configuration, ConfigurationError, Healthcheck, ImageConfig, MAX_LAYERS, RootFs};
pub use credentials::{
    Credential, CredentialFile, CredentialFileError, Credentials, HelperError, Helpers, Login,
    Secret,
};
pub use digest::{Algorithm, Digest, DigestError, Hasher};
pub use import::ImportError;
pub use layer::{Limit, Limits, Target, UnpackError, unpack_archive};
pub use layout::{LayerBuilder, LayoutArchive, LayoutWriter, WrittenLayer};
pub use manifest::{Descriptor, Document, Index, MAX_MANIFEST_BYTES, Manifest, ManifestError};
pub use oci_spec::image::{Arch, MediaType, Os};
pub use pace::{Meter, Pace, TooSlow};
pub use platform::{Platform, PlatformError};
pub use progress::{Progress, ProgressEvent, Silent};
pub use pull::{Downloaded, PullError, PullPolicy, PullRequest, configuration, download, pull};
pub use reference::{Reference, ReferenceError};
pub use registry::{
    BlobReader, ClientOptions, Destination, Fetched, OpenError, PushError, Pushed, RegistryClient,
    RegistryError, RegistryOptions, Repository, Retry,
};
pub use store::{
    Image, Layer, NewImage, PrunePolicy, Pruned, Reservation, Store, StoreError, StoreOptions,
    Summary, Usage,
};
