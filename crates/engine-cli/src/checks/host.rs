//! Checks the kernel version and cgroups.

use std::fs;
use std::path::Path;

use oci_hooks_host::version::parse;
use semver::Version;

use super::HostCheck;

/// First kernel version with `mount_setattr`, which idmapped mounts need.
const OLDEST: Version = Version::new(5, 12, 0);

/// Checks the kernel version: fails below 5.12, and warns below `better` with a reason.
pub fn kernel(better: Option<(Version, &str)>) -> HostCheck {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy().into_owned();
    match (parse(&release), better) {
        (Some(version), Some((better, reason))) if version >= OLDEST && version < better => {
            HostCheck::warn("kernel", release, reason)
        }
        (Some(version), _) if version >= OLDEST => HostCheck::ok("kernel", release),
        _ => HostCheck::fail("kernel", release, "containers need Linux 5.12 or later"),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CgroupVersions {
    Unified,
    Hybrid,
    Legacy,
    None,
}

impl CgroupVersions {
    pub(super) fn of(mounts: &str) -> Self {
        let types = |kind: &str| {
            mounts.lines().any(|line| line.split(' ').nth(2).is_some_and(|found| found == kind))
        };
        match (types("cgroup2"), types("cgroup")) {
            (true, false) => CgroupVersions::Unified,
            (true, true) => CgroupVersions::Hybrid,
            (false, true) => CgroupVersions::Legacy,
            (false, false) => CgroupVersions::None,
        }
    }
}

/// Checks the mounted cgroup versions.
pub fn cgroups() -> HostCheck {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    match CgroupVersions::of(&mounts) {
        CgroupVersions::Unified => HostCheck::ok("cgroups", "version 2"),
        CgroupVersions::Legacy => HostCheck::ok("cgroups", "version 1"),
        CgroupVersions::Hybrid => HostCheck::warn(
            "cgroups",
            "versions 1 and 2 are both mounted",
            "some versions of crun reject this: use runc, or boot with \
             systemd.unified_cgroup_hierarchy=1",
        ),
        CgroupVersions::None => {
            HostCheck::fail("cgroups", "not mounted", "mount -t cgroup2 none /sys/fs/cgroup")
        }
    }
}

/// Cgroup controllers that limits of containers need.
const CONTROLLERS: [&str; 3] = ["cpu", "memory", "pids"];

/// Checks that the kernel has the cgroup controllers that limits need.
pub fn cgroup_controllers() -> HostCheck {
    let unified = fs::read_to_string("/sys/fs/cgroup/cgroup.controllers").ok();
    let there = |name: &str| match &unified {
        Some(controllers) => controllers.split_whitespace().any(|found| found == name),
        None => Path::new("/sys/fs/cgroup").join(name).is_dir(),
    };
    let missing: Vec<_> = CONTROLLERS.into_iter().filter(|name| !there(name)).collect();
    if missing.is_empty() {
        return HostCheck::ok("controllers", CONTROLLERS.join(", "));
    }
    HostCheck::warn(
        "controllers",
        format!("not available: {}", missing.join(", ")),
        "limits of containers are not enforced: add cgroup_enable=memory to the kernel's command line, \
         or run the service with Delegate=yes",
    )
}

#[test]
fn three_ways_to_mount_cgroups_are_distinguished() {
    let v1 = "cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n";
    let v2 = "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n";
    assert_eq!(CgroupVersions::of(v1), CgroupVersions::Legacy);
    assert_eq!(CgroupVersions::of(v2), CgroupVersions::Unified);
    assert_eq!(CgroupVersions::of(&format!("{v1}{v2}")), CgroupVersions::Hybrid);
    assert_eq!(CgroupVersions::of("tmpfs /cgroup tmpfs rw 0 0"), CgroupVersions::None);
}
