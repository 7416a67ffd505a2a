//! Where the agent has its files in containers.

/// The program; nobody there can write to it.
pub(in crate::container_hook::kubernetes) const PROGRAM: &str = "/.oci-hooks/bin/agent";
/// Its directory for the socket, and for what steps write.
pub(in crate::container_hook::kubernetes) const STATE: &str = "/.oci-hooks/run";
