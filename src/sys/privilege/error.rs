//! Why a user has no holder.

use std::io;
use std::path::PathBuf;

use crate::sys::fs::PathError;
use crate::sys::process::RunError;

/// Why an ordinary user cannot be given what containers need.
#[derive(Debug, thiserror::Error)]
pub enum PrivilegeError {
    #[error(transparent)]
    Path(#[from] PathError),
    #[error(transparent)]
    Process(#[from] RunError),
    /// The system refuses user namespaces.
    #[error(
        "user {uid} cannot make a user namespace: container-hook doctor says what stands in the way"
    )]
    Namespace { uid: u32, source: io::Error },
    /// There are ranges, and not what gives them.
    #[error(
        "user {uid} has ids in /etc/subuid and /etc/subgid, but there is no program {name} to map them: \
         install the package uidmap (shadow-utils, shadow)"
    )]
    NoProgram { uid: u32, name: &'static str },
    #[error("{name} did not map the ids of user {uid}: {said}")]
    Refused { uid: u32, name: &'static str, said: String },
    #[error("cannot write {}", path.display())]
    Map { path: PathBuf, source: io::Error },
    #[error("in the user namespace of user {uid}: cannot {action}")]
    Inside { uid: u32, action: String, source: io::Error },
    #[error("the holder of the job has ended (process {pid})")]
    Ended { pid: u32 },
    #[error("cannot enter the holder of the job (process {pid})")]
    Enter { pid: u32, source: io::Error },
    #[error("this process has several threads: namespaces are entered before there are any")]
    Threads,
    #[error("user {uid} has no home directory: set XDG_DATA_HOME")]
    NoHome { uid: u32 },
    #[error("{} belongs to user {owner} or is writable by others: expected a directory of user {uid} with mode 0700", path.display())]
    Foreign { path: PathBuf, owner: u32, uid: u32 },
}
