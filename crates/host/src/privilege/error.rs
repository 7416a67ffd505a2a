//! Errors of creating and entering pause processes.

use std::io;
use std::path::PathBuf;

use oci_hooks_files::fs::PathError;
use oci_hooks_files::process::RunError;

/// Errors of setting up namespaces for rootless containers.
#[derive(Debug, thiserror::Error)]
pub enum PrivilegeError {
    #[error(transparent)]
    Path(#[from] PathError),
    #[error(transparent)]
    Process(#[from] RunError),
    /// The kernel does not permit user namespaces.
    #[error("user {uid} cannot create a user namespace: run this program's `doctor` for the cause")]
    Namespace { uid: u32, source: io::Error },
    /// The user has subordinate ids, but newuidmap or newgidmap is missing.
    #[error(
        "user {uid} has ids in /etc/subuid and /etc/subgid, but {name}, which maps them, is not installed: \
         install the package uidmap (Fedora: shadow-utils; Arch: shadow)"
    )]
    NoProgram { uid: u32, name: &'static str },
    #[error("{name} did not map the ids of user {uid}: {said}")]
    Refused { uid: u32, name: &'static str, said: String },
    #[error("cannot map the ids of the user namespace: cannot write {}", path.display())]
    Map { path: PathBuf, source: io::Error },
    #[error("in the user namespace of user {uid}: cannot {action}")]
    Setup { uid: u32, action: String, source: io::Error },
    #[error("the pause process of the job has ended (process {pid})")]
    Ended { pid: u32 },
    #[error("cannot enter the pause process of the job (process {pid})")]
    Enter { pid: u32, source: io::Error },
    #[error("this process has several threads, but namespaces can only be entered with one thread")]
    Threads,
}
