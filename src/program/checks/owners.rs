//! Whether containers of root can have users of their own, and mounts other owners than the disk.

use std::fs;
use std::os::fd::AsFd as _;

use super::Check;
use super::storage::in_trial;
pub use crate::program::sections::IDMAPPED_OVERLAY;
use crate::program::sections::Store;
use crate::sys::detached::{Attributes, Depth, Detached};
use crate::sys::error::chain;
use crate::sys::fs::PathContext as _;
use crate::sys::host_file::HostFile;
use crate::sys::userns::{self, Mapping};

/// Checks that there can be user namespaces; `without` says what is not possible without one.
pub fn user_namespaces(without: &str) -> Check {
    if userns::are_allowed() {
        return Check::ok("user namespaces", "available");
    }
    let hint = format!("sysctl user.max_user_namespaces=15000: {without}");
    Check::warn("user namespaces", "turned off", hint)
}

/// Mounts a directory of the store with its owners mapped.
pub fn idmapped_mounts(store: &Store, hint: &str) -> Check {
    let mounted = in_trial(store, |trial| {
        let source = trial.join("source");
        fs::create_dir(&source).at("make the directory", &source)?;
        let namespace = Mapping::one((1000, 1000), (0, 0)).namespace()?;
        let tree = Detached::copy_of(&HostFile::open_trusted(&source)?, Depth::Single)?;
        Ok(tree.set(&Attributes { owners: Some(namespace.as_fd()), ..Attributes::default() })?)
    });
    match mounted {
        Ok(()) => Check::ok("idmapped mounts", "work"),
        Err(error) => Check::fail("idmapped mounts", chain(&*error), hint),
    }
}
