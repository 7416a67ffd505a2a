//! The host's types that the other modules' signatures and errors name.

pub use crate::sys::fs::{PathError, ReadError, ReplaceError, SystemRoot};
pub use crate::sys::process::{Finished, RunError};
#[cfg(feature = "engine")]
pub use crate::sys::{
    caller::FileUser,
    cgroup::{Group, GroupLimits},
    host_file::{HostFile, HostRoot},
    identity::Identity,
    lock::FileLock,
    mount::MountNamespace,
    quantity::{Age, Cpus, CpusError, QuantityError, Size},
    trash::{Emptied, SetAside, Trash},
    userns::{IdRange, Mapping, PrivateIds},
};
