//! Checks of `doctor` for a rootless user, whose containers are in user namespaces.
//!
//! Where possible, a check tries the operation: outside, and inside the namespaces of a pause process like a job's.

pub mod ids;
pub mod inside;
pub mod namespaces;
pub(crate) mod nesting;
pub mod places;
pub mod service;
mod uplink;
