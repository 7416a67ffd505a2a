//! Bundles: config.json from the configuration of an image and what was asked for.
//!
//! [`write()`] makes the bundle of a container whose root file system is there: it finds the user in
//! the image's own files, makes the working directory, prepares mounts, and lets hooks.d hooks have
//! their say. The runtime has to `create` or `run` the container in [`Bundle::mounts`]: only there is
//! what the configuration mounts. [`process()`] says what else is to run in the container later.
//!
//! What a container may do is what Docker lets it do: [`Options`] starts from there.

mod capabilities;
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

pub use config::{checked_cwd, owns_sysctl};
pub use devices::{Access, Device, DeviceError, DeviceRule};
pub use error::BundleError;
pub use files::{resolvers, write_hosts};
pub use hooks::HooksError;
pub use mounts::{DEFAULT_SHM_BYTES, host_shm_bytes, unmount};
pub use options::{
    Dns, HookOptions, HostEntry, IdMapping, Init, Mount, MountSource, Namespace, Namespaces,
    Options, Propagation, Seccomp, Security, Tmpfs,
};
pub use process::{ExecOptions, on_host, process};
pub use resources::{DEFAULT_PIDS_LIMIT, Resources, Rlimit};
pub use seccomp::builder_profile;
pub use user::{IdKind, User, UserError, UserFiles, resolve_user};
pub use volume::{remove_unfinished, remove_volume, volume_users, volumes_in};
pub use write::{Bundle, write};
