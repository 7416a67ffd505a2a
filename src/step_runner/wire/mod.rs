//! The messages and services on the wire, generated from the `.proto` files beside this one by
//! `UPDATE_GOLDEN=1 cargo test --test proto`.
//!
//! [`proto`] is GitLab's own package: [`proto::step_runner_server`] is the service that its runner
//! calls. [`document`] is the service of the design document.

mod descriptors;
#[rustfmt::skip]
#[expect(missing_docs, unused_qualifications, reason = "generated")]
pub mod document;
#[rustfmt::skip]
#[expect(missing_docs, unused_qualifications, reason = "generated")]
pub mod proto;

pub use descriptors::DESCRIPTORS;
