//! The pod of a template (ADR 0134), in containers of one host.
//!
//! A request is a default pod; the admin's template is merged into it as on Kubernetes. How a field
//! of the template gets into a container:
//!
//! 1. [`FIELDS`] says of each field of a pod whether it is applied, has no effect, or is
//!    refused; [`check`] asks it about all that the template says.
//! 2. `Pod` takes what the template adds apart: an `Overlay` for each container of the request, and
//!    a `TemplateContainer` for each init container and sidecar.
//! 3. `Overlay::resolve` reads and checks it once, when the container is planned, and puts what is
//!    known by then into its [`Options`](crate::bundle::Options), over what the workflow asked for.
//! 4. `Additions::apply` adds the rest when the image, addresses and directories are known.
//!
//! Services keep their own networks and names. All others of the pod share the job container's.

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
mod volumes;

pub use check::check;
pub use fields::{FIELDS, Field, Treatment};

pub(super) use additions::{Additions, Facts};
pub(super) use environment::Addresses;
pub(super) use overlay::Overlay;
pub(super) use parts::{Pod, TemplateContainer};
pub(super) use probes::POST_START_TIMEOUT;
pub(super) use storage::{directory, list, make, remove};
