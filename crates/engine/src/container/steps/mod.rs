//! Steps that a container's first process starts: its listening socket, and the host's end of a connection
//! (`oci_hooks_init::frames` has the protocol). Neither root nor a runtime takes part in a step.

mod client;
mod error;
mod socket;
mod streams;

pub use client::{StepConnection, StepEnd, StepSignals};
pub use error::StepError;
pub use socket::{StepSocket, directory, listen, names, remove};
