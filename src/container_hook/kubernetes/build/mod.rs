//! Dockerfile actions: built in a pod of their own, and pushed to the registry that the admin names.
//!
//! The context is copied once and hashed (`name`); what has been built before is found in the registry.
//! Otherwise a pod is made (`pod`) with two containers, each with an agent of ours: `build` runs what the
//! Dockerfile says, and has no logins; `registry` has them, and runs nothing but buildah's own code on what
//! `build` left in a directory that both see. With a BuildKit elsewhere there is only `registry`, whose
//! `buildctl` hands the context over. `program` has the command lines, `logins` whom they are for.

mod error;
mod logins;
mod name;
mod pod;
mod program;
mod run;

pub use error::BuildError;
pub use run::{BuiltImage, image};
