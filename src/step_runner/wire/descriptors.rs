//! What the messages are, for those who ask at run time.

/// The descriptors of all messages: a `google.protobuf.FileDescriptorSet`.
pub const DESCRIPTORS: &[u8] = include_bytes!("descriptors.bin");
