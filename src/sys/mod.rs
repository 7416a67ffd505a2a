//! The host: errors, files, processes. Everything above talks to the system through here or `std`.

#[cfg(feature = "engine")]
pub mod apparmor;
#[cfg(feature = "engine")]
pub mod append;
#[cfg(feature = "engine")]
pub mod beneath;
#[cfg(feature = "engine")]
pub mod caller;
#[cfg(feature = "engine")]
pub mod cgroup;
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
#[cfg(feature = "engine")]
pub mod lend;
pub mod lock;
#[cfg(feature = "engine")]
pub mod loop_device;
#[cfg(feature = "engine")]
pub mod metadata;
#[cfg(feature = "engine")]
pub mod mount;
#[cfg(feature = "engine")]
pub mod netns;
#[cfg(feature = "engine")]
pub mod orphans;
#[cfg(feature = "engine")]
mod posix_acl;
#[cfg(feature = "engine")]
pub mod privilege;
pub mod process;
#[cfg(feature = "engine")]
pub mod processes;
#[cfg(any(feature = "engine", feature = "program"))]
pub mod quantity;
#[cfg(feature = "engine")]
pub mod record;
#[cfg(feature = "engine")]
pub mod removal;
pub mod rollback;
pub mod spawn;
#[cfg(feature = "engine")]
pub mod text;
#[cfg(feature = "engine")]
pub mod thread;
#[cfg(feature = "engine")]
pub mod trash;
#[cfg(feature = "engine")]
pub mod tree;
#[cfg(feature = "engine")]
pub mod uplink;
#[cfg(feature = "engine")]
pub mod usage;
#[cfg(feature = "engine")]
pub mod userns;
#[cfg(feature = "engine")]
pub mod users;
#[cfg(feature = "engine-program")]
pub mod version;
#[cfg(feature = "engine")]
mod walk;

#[cfg(all(test, feature = "engine"))]
pub mod tests;
