//! The messages and services on the wire, generated from the `.proto` files beside this one by
//! `UPDATE_GOLDEN=1 cargo test -p oci-hooks-system-tests --test all proto`.
//!
//! [`proto`] is GitLab's own package: [`proto::step_runner_server`] is the service that its runner calls.
//! [`document`] is the service of GitLab's design document. Two messages are not generated, since the numbers of
//! their newer fields are in no public source; these fields are identified by their type.

#[rustfmt::skip]
#[expect(clippy::allow_attributes, missing_docs, unreachable_pub, unused_qualifications, reason = "generated")]
mod generated;
mod requests;

pub use generated::oci_hooks::steps::v1 as document;
pub use generated::{DESCRIPTORS, proto};
