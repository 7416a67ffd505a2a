//! The host: errors, files, processes. Everything above talks to the system through here or `std`.

#[cfg(feature = "engine")]
pub mod beneath;
#[cfg(feature = "engine")]
pub mod cgroup;
#[cfg(feature = "engine")]
pub mod confine;
pub mod error;
pub mod fs;
#[cfg(feature = "engine")]
pub mod identity;
#[cfg(feature = "engine")]
pub mod init;
pub mod lock;
#[cfg(feature = "engine")]
pub mod mount;
#[cfg(feature = "engine")]
pub mod netns;
pub mod process;
pub mod rollback;
#[cfg(feature = "engine")]
pub mod spawn;
#[cfg(feature = "engine")]
pub mod tree;
#[cfg(feature = "engine")]
pub mod userns;
