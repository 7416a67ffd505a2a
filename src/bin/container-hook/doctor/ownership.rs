//! Whether files of containers in the runner's directories can belong to its user.

use std::fs;
use std::os::fd::AsFd as _;

use oci_hooks::sys::error::chain;
use oci_hooks::sys::fs::PathContext as _;
use oci_hooks::sys::mount::{self, Depth};
use oci_hooks::sys::userns::Mapping;

use crate::shared::checks::storage::in_trial;
use crate::shared::checks::{Check, Version};
use crate::shared::sections::Store;

/// From here on overlayfs can be idmapped itself.
pub(super) const IDMAPPED_OVERLAY: (Version, &str) = (
    Version::new(5, 19, 0),
    "files of containers in the runner's directories belong to root before Linux 5.19",
);

pub(super) fn user_namespaces() -> Check {
    let max = fs::read_to_string("/proc/sys/user/max_user_namespaces").unwrap_or_default();
    if max.trim() == "0" {
        let mend = "sysctl user.max_user_namespaces=15000: files of containers in the runner's \
                    directories cannot be given to its user without one";
        return Check::warn("user namespaces", "turned off", mend);
    }
    Check::ok("user namespaces", "available")
}

/// Mounts a directory with its owners mapped, as the runner's directories are in containers.
pub(super) fn idmapped_mounts(store: &Store) -> Option<Check> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let mounted = in_trial(store, |trial| {
        let (source, target) = (trial.join("source"), trial.join("target"));
        for path in [&source, &target] {
            fs::create_dir(path).at("make the directory", path)?;
        }
        let namespace = Mapping::one((1000, 1000), (0, 0)).namespace()?;
        mount::idmapped_bind(&source, &target, namespace.as_fd(), Depth::Single)?;
        Ok(mount::unmount(&target)?)
    });
    Some(match mounted {
        Ok(()) => Check::ok("idmapped mounts", "work"),
        Err(error) => Check::warn(
            "idmapped mounts",
            chain(&*error),
            "files that containers make in the runner's directories belong to root; set \
             mounts.ownership = \"keep\" if that is meant, or update the kernel",
        ),
    })
}
