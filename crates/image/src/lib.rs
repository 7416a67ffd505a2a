//! OCI images: references, a registry client, an on-disk store and layer unpacking. The crate
//! neither mounts nor runs anything: `oci-hooks-engine` assembles root file systems from the
//! layers. It writes images as OCI layouts and pushes them, but does not build them.
//!
//! An [`ImageReference`] names an image. [`pull()`] asks a [`RegistryClient`] for its [`Manifest`],
//! streams missing layers into the store, and returns the committed image.
//!
//! Content from a registry is untrusted until its digest is checked. Credentials go only to the
//! registry they belong to and to the token server it names: never along a redirect to another
//! origin, never to the URL of a foreign layer.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod config;
mod credentials;
mod digest;
pub mod http;
mod import;
mod layer;
mod layout;
mod manifest;
mod min_rate;
mod platform;
mod progress;
mod pull;
mod reference;
mod registry;
mod store;

pub use config::{
    ConfigurationError, Healthcheck, ImageConfig, ImageConfiguration, MAX_LAYERS, RootFs,
};
pub use credentials::{
    CredentialFile, CredentialFileError, CredentialHelpers, Credentials, HelperError, LoginMethod,
    RegistryCredential, Secret,
};
pub use digest::{Digest, DigestError, HashAlgorithm, Hasher};
pub use import::ImportError;
pub use layer::{LayerLimit, LayerLimits, UnpackError, UnpackTarget, unpack_archive};
pub use layout::{LayerBuilder, LayoutArchive, LayoutWriter, WrittenLayer};
pub use manifest::{
    Descriptor, MAX_MANIFEST_BYTES, Manifest, ManifestDocument, ManifestError, ManifestIndex,
};
pub use min_rate::{MinRate, RateMeter, SlowTransfer};
pub use oci_spec::image::{Arch, MediaType, Os};
pub use platform::{Platform, PlatformError};
pub use progress::{ProgressEvent, PullProgress, SilentProgress};
pub use pull::{PullError, PullPolicy, PullRequest, configuration, pull};
pub use reference::{ImageReference, ReferenceError};
pub use registry::{
    BlobReader, ClientOptions, FetchedDocument, PushDestination, PushError, PushOutcome,
    RegistryClient, RegistryError, RegistryOptions, RegistryRepository, RetryOptions,
};
pub use store::{
    Image, ImageStore, ImageSummary, Layer, LayerReservation, NewImage, PrunePolicy, PruneResult,
    StoreError, StoreOptions, StoreUsage,
};
