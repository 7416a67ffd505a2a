//! References to step files: from a reference to the file, wherever it is.

mod builtin;
mod error;
mod git;
mod local;
mod oci;
mod resolver;

pub use error::{OciError, ResolveError};
pub use git::{Credential, Git, GitError};
pub use local::MAX_BYTES;
pub use resolver::{Caller, Loaded, Remote, Resolver};
