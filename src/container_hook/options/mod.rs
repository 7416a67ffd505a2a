//! `options:` of a container: the flags of `docker create`, as Docker's command line reads them.
//!
//! [`CreateOptions::parse`] turns them into typed values. Each flag of Docker is in the table in
//! `flags.rs`: carried out, refused by name with the reason, or taken without effect, and then listed
//! in [`CreateOptions::without_effect`]. What an option asks for is not yet allowed:
//! [`CreateOptions::check`] asks the admin's [`Policy`](super::policy::Policy).

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
    CreateOptions, Device, DeviceRule, ExposedPort, HealthOptions, Host, HostAddress, Ipc,
    Namespace, NetworkMode, NetworkOptions, Pull, Resources, SecurityOptions, Swap, Ulimit,
    Variable, WithoutEffect,
};
pub use parse::OptionError;
pub(super) use resources::ULIMITS;
pub(super) use security::capability;
