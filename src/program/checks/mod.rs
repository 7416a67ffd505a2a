//! What `doctor` looks at on any machine that runs containers.

mod firewall;
pub mod host;
pub mod network;
mod report;
pub mod runtimes;
pub mod storage;
mod version;

pub use report::{Check, report};
