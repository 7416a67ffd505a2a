//! What a container of the request shall be, found out before anything is made: a mistake in the last
//! service must not be noticed after the first one runs.
//!
//! Nothing here knows what carries the plan out. `options:` is parsed once, in a [`ContainerRequest`].

mod container;
mod request;
mod role;

pub(super) use container::ContainerPlan;
pub(super) use request::{ContainerRequest, JobRequest};
pub(super) use role::Role;
