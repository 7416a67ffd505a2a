//! The pod of a template (ADR 0134), applied to containers of a single host.
//!
//! A request becomes the pod that GitHub's hook for Kubernetes would create, and the admin's template is
//! merged into it. A field of the template reaches a container in these steps:
//!
//! 1. [`FIELDS`] lists for each field of a pod whether it is applied, has no effect, or is rejected; [`check()`]
//!    looks up all fields of the template.
//! 2. `TemplatePod` splits the additions of the template: a `ContainerOverlay` for each container of the
//!    request, and a `TemplateContainer` for each init container and sidecar.
//! 3. `ContainerOverlay::resolve` reads and checks an overlay once, when the container is planned, and sets the options
//!    that are known by then in its [`BundleOptions`](oci_hooks_engine::bundle::BundleOptions), over those of the
//!    workflow.
//! 4. `TemplateAdditions::apply` adds the rest when the image, addresses and directories are known.
//!
//! Services keep their own addresses and host names; all other containers share the job container's.

mod additions;
mod check;
mod environment;
mod fields;
mod mount_plan;
mod mounts;
mod objects;
mod overlay;
mod parts;
mod pod_fields;
mod probes;
mod resources;
mod security;
mod storage;
#[cfg(test)]
mod testing;
mod volumes;

pub use check::check;
pub use fields::{FIELDS, FieldTreatment, PodField};

pub(super) use additions::TemplateAdditions;
pub(super) use environment::PodAddresses;
pub(super) use overlay::ContainerOverlay;
pub(super) use parts::{TemplateContainer, TemplatePod};
pub(super) use probes::POST_START_TIMEOUT;
pub(super) use storage::{directory, list, make, remove};
