//! Steps that a container's first process starts: the socket that it listens on, and the host's end of
//! a connection (`sys::init::frames` has the protocol). Neither root nor a runtime has part in a step.

mod client;
mod error;
mod socket;
mod streams;

pub use client::{StepConnection, StepEnd, StepSignals};
pub use error::StepError;
pub use socket::{StepSocket, directory};
pub use socket::{listen, names, remove};
