//! Dockerfile actions: built in a separate pod, and pushed to the registry that the admin configures.
//!
//! The context is copied once and hashed (`name`); an earlier build of the same content is found in the
//! registry. Otherwise a pod is created (`pod`) with two containers, each with an agent: `build` runs the
//! Dockerfile's programs and has no logins; `registry` has the logins, and runs only buildah's own code on
//! the result that `build` left in a shared directory. With an external BuildKit there is only `registry`,
//! whose `buildctl` sends the context. `program` has the command lines, `logins` the logins.

mod error;
mod logins;
mod name;
mod pod;
mod program;
mod run;

pub use error::BuildError;
pub use run::{BuiltImage, image};
