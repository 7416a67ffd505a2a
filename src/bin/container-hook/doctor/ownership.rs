//! Whether files of containers in the runner's directories can belong to its user.

use std::fs;
use std::os::fd::AsFd as _;

use oci_hooks::container_hook::policy::{Policy, Preset};
use oci_hooks::program::checks::Check;
use oci_hooks::program::checks::storage::in_trial;
use oci_hooks::program::sections::Store;
use oci_hooks::sys::detached::{Attributes, Depth, Detached};
use oci_hooks::sys::error::chain;
use oci_hooks::sys::fs::PathContext as _;
use oci_hooks::sys::host_file::HostFile;
use oci_hooks::sys::userns::Mapping;
use semver::Version;

/// From here on overlayfs can be idmapped itself.
pub(super) const IDMAPPED_OVERLAY: (Version, &str) = (
    Version::new(5, 19, 0),
    "containers are in the host's user namespace before Linux 5.19: root in one is root",
);

pub(super) fn user_namespaces() -> Check {
    let max = fs::read_to_string("/proc/sys/user/max_user_namespaces").unwrap_or_default();
    if max.trim() == "0" {
        let hint = "sysctl user.max_user_namespaces=15000: files of containers in the runner's \
                    directories cannot be given to its user without one";
        return Check::warn("user namespaces", "turned off", hint);
    }
    Check::ok("user namespaces", "available")
}

/// Warns of what the policy gives away, and of what privileged containers can do in the runner's
/// directories; capabilities and seccomp keep all others from it.
pub(super) fn privileged(policy: &Policy) -> Vec<Check> {
    let mut checks = Vec::new();
    if policy.gives_root() {
        let why = match policy.preset {
            Preset::Docker => "preset \"docker\"",
            Preset::Default => "`privileged` or a bind mount of /",
        };
        checks.push(Check::warn(
            "policy",
            format!("whoever can change a workflow is root of this machine: {why} under [policy]"),
            "allow only what the workflows need: what is refused says by which key",
        ));
    }
    if policy.privileged {
        checks.push(Check::warn(
            "privileged containers",
            "can make devices in the runner's directories, which are removed when the job ends",
            "have these directories on a file system that the host mounts with nodev",
        ));
    }
    checks
}

/// Warns of a policy that gives a workflow all that the user has whose containers run without root.
pub(super) fn whole_user(policy: &Policy) -> Option<Check> {
    policy.gives_root().then(|| {
        Check::warn(
            "policy",
            "whoever can change a workflow can do all that this user can, by [policy]: read the files and \
             logins of the runner, and change what later jobs run",
            "allow only what the workflows need: what is refused says by which key",
        )
    })
}

/// Mounts a directory with its owners mapped, as the runner's directories are in containers.
pub(super) fn idmapped_mounts(store: &Store) -> Check {
    let mounted = in_trial(store, |trial| {
        let source = trial.join("source");
        fs::create_dir(&source).at("make the directory", &source)?;
        let namespace = Mapping::one((1000, 1000), (0, 0)).namespace()?;
        let tree = Detached::copy_of(&HostFile::open_trusted(&source)?, Depth::Single)?;
        Ok(tree.set(&Attributes { owners: Some(namespace.as_fd()), ..Attributes::default() })?)
    });
    match mounted {
        Ok(()) => Check::ok("idmapped mounts", "work"),
        Err(error) => Check::fail(
            "idmapped mounts",
            chain(&*error),
            "containers cannot be given the runner's directories: update the kernel, put the store \
             and the work directories on another file system, or set user-namespace = \"host\" under \
             [security] and ownership = \"keep\" under [mounts]",
        ),
    }
}

#[test]
fn privileged_containers_are_named_where_the_policy_has_them() {
    assert!(privileged(&Policy::default()).is_empty());
    assert_eq!(privileged(&Policy { privileged: true, ..Policy::default() }).len(), 2);
    let docker = serde_json::to_string(&privileged(&Policy::of(Preset::Docker))).unwrap();
    assert!(docker.contains("is root of this machine: preset"), "{docker}");
}
