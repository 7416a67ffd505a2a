//! Bundles: `config.json` from the configuration of an image and the caller's options.
//!
//! [`write()`] writes the bundle of a container whose root file system exists: it resolves the user from the
//! image's own files, creates the working directory, prepares mounts, and injects hooks of hooks.d. The
//! runtime must `create` or `run` the container in [`Bundle::mounts`], the only namespace that has the mount
//! sources of the configuration. [`process()`] describes another process to run in the container later.
//!
//! The defaults of [`BundleOptions`] are Docker's, but stricter.

mod capabilities;
mod cdi;
mod command;
mod config;
mod devices;
mod error;
mod files;
mod hooks;
mod mounts;
mod options;
mod process;
mod resources;
mod rootfs_dir;
mod seccomp;
mod sources;
mod stage;
mod user;
mod volume;
mod write;

pub use cdi::CdiError;
pub use config::{can_have_other_owner, checked_cwd, owns_sysctl};
pub use devices::{DeviceAccess, DeviceError, DeviceRule, HostDevice};
pub use error::BundleError;
pub use files::{resolvers, write_hosts};
pub use hooks::HooksError;
pub use mounts::{DEFAULT_SHM_BYTES, host_shm_bytes, unmount};
pub use options::{
    BundleOptions, ContainerInit, ContainerNamespaces, ContainerSecurity, HookOptions, HostEntry,
    IdMapping, MountPropagation, MountRequest, MountSource, NamespaceSource, ResolverOptions,
    Seccomp, TmpfsMount,
};
pub use process::{ExecOptions, host_ids, process};
pub use resources::{DEFAULT_PIDS_LIMIT, HighestLimit, ProcessRlimit, ResourceLimits};
pub use seccomp::builder_profile;
pub use user::{ContainerUser, IdKind, UserError, UserFiles, resolve_user};
pub use volume::{remove_unfinished, remove_volume, volume_users, volumes_in};
pub use write::{Bundle, write};
