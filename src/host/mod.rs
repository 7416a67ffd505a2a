//! The host's types that the other modules' signatures and errors name.

pub use crate::sys::fs::{PathError, ReadError, ReplaceError, SystemRoot};
pub use crate::sys::process::{Finished, RunError};
#[cfg(feature = "engine")]
pub use crate::sys::{
    caller::FileUser,
    cgroup::{Group, GroupLimits},
    cpus::{Cpus, CpusError},
    host_file::{HostFile, HostRoot},
    identity::Identity,
    lock::FileLock,
    mount_namespace::MountNamespace,
    quantity::{Age, QuantityError, Size},
    trash::{Emptied, SetAside, Trash},
    userns::{IdRange, Mapping, PrivateIds},
};
