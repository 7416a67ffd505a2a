//! What `doctor` looks at on any machine that runs containers.

mod advisories;
pub mod buildah;
mod firewall;
pub mod host;
pub mod network;
pub mod owners;
pub mod registries;
pub mod runtimes;
pub mod storage;
pub mod user;

pub use super::check::{CONTAINERS, Check, report};
