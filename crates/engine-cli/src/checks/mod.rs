//! Checks of `doctor` on machines that run containers.

mod advisories;
pub mod buildah;
mod firewall;
pub mod hooks;
pub mod host;
pub mod network;
pub mod owners;
pub mod registries;
pub mod runtimes;
pub mod storage;
pub mod user;

pub use oci_hooks_cli::check::{CONTAINERS, HostCheck, report};
