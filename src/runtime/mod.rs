//! The OCI runtime command line: what engines call `runc`, `crun` and `youki` with, where these are
//! found, and how they report errors.

mod find;
mod invocation;
mod log;

pub use find::{FindError, KNOWN, find};
pub use invocation::Invocation;
pub use log::{Level, Log, LogFormat};
