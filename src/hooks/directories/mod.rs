//! The hook directories that a consumer reads on a system, according to its own configuration.
//!
//! [`Consumer::dirs`](super::Consumer::dirs) are the directories for its hook files, which it need
//! not read: podman reads `/etc/containers/oci/hooks.d` only if `hooks_dir` in containers.conf(5)
//! names it. [`read_configured`] returns the directories that podman and CRI-O would read, and the file
//! that decided; [`unread_dirs`] finds hook files in other directories.
//!
//! Command-line options such as podman's `--hooks-dir` and `--module` are not considered: they are
//! not part of the system's configuration.

mod configured;
mod containers_conf;
mod crio_conf;
mod setting;
mod system;
#[cfg(test)]
mod tests;

pub use oci_hooks_files::fs::SystemRoot;

pub use configured::{ConfigLine, ConfiguredDirs, DirsSource, read_configured};
pub use setting::DirectoriesError;
pub use system::{ConsumerSystem, UnreadDir, unread_dirs};
