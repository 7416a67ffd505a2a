//! The messages and services on the wire, generated from the `.proto` files beside this one by
//! `UPDATE_GOLDEN=1 cargo test --test proto`.

/// GitLab's own package: [`step_runner_server`](proto::step_runner_server) is the service that its
/// runner calls.
#[expect(missing_docs, unused_qualifications, reason = "generated")]
#[expect(clippy::doc_markdown, reason = "generated")]
pub mod proto {
    include!("proto.rs");
}

/// The service of the design document.
pub mod oci_hooks {
    /// Steps.
    pub mod steps {
        /// Version 1.
        #[expect(missing_docs, unused_qualifications, reason = "generated")]
        pub mod v1 {
            include!("oci_hooks.steps.v1.rs");
        }
    }
}

pub use oci_hooks::steps::v1 as document;

/// The descriptors of all messages, a `google.protobuf.FileDescriptorSet`.
pub const DESCRIPTORS: &[u8] = include_bytes!("descriptors.bin");
