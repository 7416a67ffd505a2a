//! Resolves references to step files: local, built-in, in git repositories, in images.

mod builtin;
mod context;
mod error;
mod git;
mod interrupt;
mod local;
mod oci;
mod resolver;

pub(super) use builtin::ARCHIVE;
pub use context::{LoadedStep, ReferenceContext, RemoteAccess};
pub(super) use error::reason;
pub use error::{OciError, ResolveError};
pub use git::{GitCredential, GitError, GitFetcher};
pub use interrupt::Interrupt;
pub(super) use oci::credentials;
pub use resolver::Resolver;
