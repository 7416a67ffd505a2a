//! What `doctor` looks at for an ordinary user, whose containers are in user namespaces of theirs.
//!
//! What can be tried is tried: outside, and inside of a holder like those of jobs.

pub mod ids;
pub mod inside;
pub mod namespaces;
pub mod places;
pub mod service;
mod uplink;
