//! The OCI runtime command line: what engines call `runc`, `crun` and `youki` with, where these are
//! found, how they are called, and how they report errors.

mod call;
mod error;
mod find;
mod invocation;
mod log;

pub use call::{FIRST_DESCRIPTOR, Files, Kind, Runtime, State};
pub use error::{Action, RuntimeError};
pub use find::{CONFINING, DEFAULT_PATH, FindError, KNOWN, find};
pub use invocation::{ArgumentError, ContainerCall, Invocation};
pub use log::{Level, Log, LogFormat};
