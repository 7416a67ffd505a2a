//! What `doctor` looks at on any machine that runs containers.

mod firewall;
pub(crate) mod host;
pub(crate) mod network;
mod report;
pub(crate) mod runtimes;
pub(crate) mod storage;
mod version;

pub(crate) use report::{Check, report};
