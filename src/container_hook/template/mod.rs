//! The pod template of [ADR 0134]: a YAML file by which an administrator changes what the hook makes.
//!
//! Reads a template ([`Template`]), makes the pod that the Kubernetes hook would make of a request
//! ([`base`]) and merges the two as that hook does. All of it is values to values: nothing is
//! applied here, and nothing is said but by returning it.
//!
//! Where the Kubernetes hook is lax or mistaken this module is not: fields that do not exist are
//! errors with their place, labels that find a job again stay, a `null` is as good as no line, and
//! what is mounted into one container is not mounted into all of them.
//!
//! [ADR 0134]: https://github.com/actions/runner-container-hooks/blob/main/docs/adrs/0134-hook-extensions.md

pub mod base;
mod deserialize;
mod emit;
mod error;
pub(super) mod fault;
mod merge;
mod merged;
mod node;
mod read;
#[cfg(test)]
mod tests;

pub use base::{Base, Target};
pub use error::{Problem, TemplateError};
pub(super) use fault::FieldPath;
pub use fault::{Fault, Faults};
pub use merged::{Merged, Note, Remark};
pub use node::Origin;
pub use read::{MAX_BYTES, Template, TemplateSettings};

pub use crate::yaml::{Position, SourceLocation};
