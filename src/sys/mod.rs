//! The host: errors, files, processes. Everything above talks to the system through here or `std`.

#[cfg(feature = "engine")]
pub mod append;
#[cfg(feature = "engine")]
pub mod beneath;
#[cfg(feature = "engine")]
pub mod caller;
#[cfg(feature = "engine")]
pub mod cgroup;
#[cfg(feature = "engine")]
pub mod confine;
#[cfg(feature = "engine")]
pub mod descent;
#[cfg(feature = "engine")]
pub mod detached;
pub mod error;
pub mod fs;
#[cfg(feature = "engine")]
pub mod give_back;
#[cfg(feature = "engine")]
pub mod host_file;
#[cfg(feature = "engine")]
pub mod identity;
#[cfg(feature = "engine")]
pub mod init;
pub mod lock;
#[cfg(feature = "engine")]
pub mod loop_device;
#[cfg(feature = "engine")]
pub mod metadata;
#[cfg(feature = "engine")]
pub mod mount;
#[cfg(feature = "engine")]
pub mod mount_namespace;
#[cfg(feature = "engine")]
pub mod netns;
pub mod process;
#[cfg(any(feature = "engine", feature = "program"))]
pub mod quantity;
#[cfg(feature = "engine")]
pub mod removal;
pub mod rollback;
pub mod spawn;
#[cfg(feature = "engine")]
pub mod text;
#[cfg(feature = "engine")]
mod thread;
#[cfg(feature = "engine")]
pub mod trash;
#[cfg(feature = "engine")]
pub mod tree;
#[cfg(feature = "engine")]
pub mod usage;
#[cfg(feature = "engine")]
pub mod userns;
#[cfg(feature = "engine")]
pub mod users;

#[cfg(all(test, feature = "engine"))]
pub mod tests;
