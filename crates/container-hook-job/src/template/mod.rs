//! The pod template of [ADR 0134]: a YAML file by which the admin changes the pods of the hook.
//!
//! Reads a template ([`PodTemplate`]), creates the pod that the Kubernetes hook would create for a request
//! ([`base`]), and merges the two as that hook does. The module only transforms values: it applies nothing to
//! containers and logs nothing.
//!
//! It is stricter than the Kubernetes hook and avoids its bugs: unknown fields are errors with their
//! position, the labels that identify a job are kept, a `null` counts as an absent field, and a mount of one
//! container is not added to all containers.
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

pub use base::{BasePod, MergeTarget};
pub use error::{TemplateError, TemplateProblem};
pub use fault::FieldPath;
pub use fault::{TemplateFault, TemplateFaults};
pub use merged::{MergeNote, MergeRemark, MergedPod};
pub use node::ValueOrigin;
pub use oci_hooks_yaml::{SourceLocation, TextPosition};
pub use read::{MAX_BYTES, PodTemplate, TemplateSettings};
