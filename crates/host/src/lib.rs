//! The Linux interfaces that a container engine needs, with and without root: mounts, namespaces, cgroups, user IDs,
//! and removal of untrusted directory trees. The crate starts no containers, and knows neither images nor runtimes.
//!
//! Start with [`privilege`]: it determines what a process may do, and lets a user without root enter namespaces as
//! their root.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod apparmor;
pub mod cgroup;
pub mod detached;
pub mod file_user;
pub mod host_file;
pub mod identity;
pub mod loop_device;
pub mod metadata;
pub mod mount;
pub mod netns;
pub mod ownership;
mod posix_acl;
pub mod privilege;
pub mod processes;
pub mod removal;
pub mod share;
pub mod thread;
pub mod trash;
pub mod tree;
pub mod usage;
pub mod userns;
pub mod users;
pub mod version;
mod walk;
