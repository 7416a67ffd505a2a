//! Calls of OCI runtimes (`runc`, `crun`, `runsc`), their capabilities, and the errors that they report.

mod call;
mod error;
mod kind;

pub use call::{CONFINING, FIRST_DESCRIPTOR, OciRuntime, RuntimeFiles, RuntimeState};
pub use error::{NO_OUTPUT, RuntimeAction, RuntimeError};
pub use kind::{RuntimeCapabilities, RuntimeKind};
