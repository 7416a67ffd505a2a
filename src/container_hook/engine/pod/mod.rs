//! The pod of a template (ADR 0134), in containers of one host.
//!
//! A request is a default pod; the admin's template is merged into it as on Kubernetes. How a field
//! of the template gets into a container:
//!
//! 1. [`FIELDS`] says of each field of a pod whether it is applied, means nothing here, or is
//!    refused; [`check`] asks it about all that the template says.
//! 2. `Pod` takes what the template adds apart: an `Overlay` for each container of the request, and a
//!    `Helper` for each init container and sidecar.
//! 3. `Overlay::apply` puts it into the container's
//!    [`Options`](crate::bundle::Options), over what the workflow asked for. It is called twice: to
//!    find faults before anything is made, and when addresses and directories are known.
//!
//! Services keep their own networks and names. All others of the pod share the job container's.

mod check;
mod environment;
mod expand;
mod fault;
mod fields;
mod mounts;
mod objects;
mod overlay;
mod parts;
mod probes;
mod quantity;
mod resources;
mod security;
mod storage;
mod volumes;

pub use check::check;
pub use fault::{Fault, Faults};
pub use fields::{FIELDS, Field, Treatment};

pub(super) use overlay::{Facts, Overlay};
pub(super) use parts::{Helper, Pod};
pub(super) use probes::POST_START;
pub(super) use storage::{directory, list, make, remove};
