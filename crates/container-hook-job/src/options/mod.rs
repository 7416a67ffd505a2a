//! `options:` of a container: the flags of `docker create`, as Docker's command line reads them.
//!
//! [`CreateOptions::parse`] turns them into typed values. Each flag of Docker is in the table in
//! `flags.rs`: supported, rejected with the reason, or accepted without effect and listed in
//! [`CreateOptions::without_effect`]. Parsing does not check the admin's
//! [`Policy`](super::policy::Policy); [`CreateOptions::check`] does.

mod create_options;
mod device;
mod flags;
mod mount;
mod network;
mod parse;
mod process;
mod resources;
mod security;
#[cfg(test)]
mod tests;
mod value;

pub use create_options::{
    AddedHost, CreateOptions, DeviceOption, EnvOption, ExposedPort, GpuOption, HealthOptions,
    HostAddress, HostNamespace, IneffectiveOption, IpcMode, NetworkMode, NetworkOptions,
    PullOption, ResourceOptions, SecurityOptions, SwapLimit, Ulimit,
};
pub(super) use network::host_name;
pub use parse::OptionError;
pub(super) use resources::ULIMITS;
pub use security::capability;
