//! The hook directories that a consumer reads on a system, by its own configuration.
//!
//! [`Consumer::dirs`](super::Consumer::dirs) are where its hook files are put; whether it reads them is
//! another matter: podman reads `/etc/containers/oci/hooks.d` only if `hooks_dir` in containers.conf(5)
//! names it. [`configured`] reads what podman and CRI-O would read, and says which file decided;
//! [`unread`] finds hook files in directories that are left out.
//!
//! Not looked at are options of a command line, as podman's `--hooks-dir` and `--module`: they are not the
//! configuration of the system.

mod configured;
mod containers_conf;
mod crio_conf;
mod setting;
mod system;
#[cfg(test)]
mod tests;

pub use configured::{ConfigLine, ConfiguredDirs, DirsSource, configured};
pub use setting::DirectoriesError;
pub use system::{System, UnreadDir, unread};
