//! Checks that containers started by root can have user namespaces and idmapped mounts.

use std::fs;
use std::os::fd::AsFd as _;

use oci_hooks_files::error::chain;
use oci_hooks_files::fs::PathContext as _;
use oci_hooks_host::detached::{DetachedMount, MountAttributes, MountDepth};
use oci_hooks_host::host_file::HostFile;
use oci_hooks_host::userns::{self, NamespaceMapping, PrivateIds};

use super::HostCheck;
use super::storage::run_trial;
pub use crate::sections::IDMAPPED_OVERLAY;
use crate::sections::StoreSection;

/// Checks that user namespaces can be created; `without` is the consequence if not.
pub fn user_namespaces(without: &str) -> HostCheck {
    if userns::are_allowed() {
        return HostCheck::ok("user namespaces", "available");
    }
    let hint = format!("sysctl user.max_user_namespaces=15000: {without}");
    HostCheck::warn("user namespaces", "turned off", hint)
}

/// Checks idmapped mounts, by mounting a directory of the store.
pub fn idmapped_mounts(store: &StoreSection, hint: &str) -> HostCheck {
    let mounted = run_trial(store, |trial| {
        let source = trial.join("source");
        fs::create_dir(&source).with_path("create the directory", &source)?;
        let namespace = NamespaceMapping::shifted(PrivateIds::default()).namespace()?;
        let tree = DetachedMount::copy_of(&HostFile::open_trusted(&source)?, MountDepth::Single)?;
        Ok(tree.set(&MountAttributes {
            owners: Some(namespace.as_fd()),
            ..MountAttributes::default()
        })?)
    });
    match mounted {
        Ok(()) => HostCheck::ok("idmapped mounts", "work"),
        Err(error) => HostCheck::fail("idmapped mounts", chain(&*error), hint),
    }
}
