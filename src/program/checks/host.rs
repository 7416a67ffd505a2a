//! The kernel and its cgroups.

use std::fs;
use std::path::Path;

use semver::Version;

use super::Check;
use crate::sys::version::parse;

/// The oldest kernel that has all system calls we make: `mount_setattr` for idmapped mounts.
const OLDEST: Version = Version::new(5, 12, 0);

/// Looks at the kernel, which is to be of some version, and had better be of another for a reason.
pub fn kernel(better: Option<(Version, &str)>) -> Check {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy().into_owned();
    match (parse(&release), better) {
        (Some(version), Some((better, reason))) if version >= OLDEST && version < better => {
            Check::warn("kernel", release, reason)
        }
        (Some(version), _) if version >= OLDEST => Check::ok("kernel", release),
        _ => Check::fail("kernel", release, "containers need Linux 5.12 or later"),
    }
}

/// The versions of cgroups that are mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cgroups {
    Unified,
    Hybrid,
    Legacy,
    None,
}

impl Cgroups {
    pub(super) fn of(mounts: &str) -> Self {
        let types = |kind: &str| {
            mounts.lines().any(|line| line.split(' ').nth(2).is_some_and(|found| found == kind))
        };
        match (types("cgroup2"), types("cgroup")) {
            (true, false) => Cgroups::Unified,
            (true, true) => Cgroups::Hybrid,
            (false, true) => Cgroups::Legacy,
            (false, false) => Cgroups::None,
        }
    }
}

pub fn cgroups() -> Check {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    match Cgroups::of(&mounts) {
        Cgroups::Unified => Check::ok("cgroups", "version 2"),
        Cgroups::Legacy => Check::ok("cgroups", "version 1"),
        Cgroups::Hybrid => Check::warn(
            "cgroups",
            "versions 1 and 2 are both mounted",
            "some versions of crun reject this: use runc, or boot with \
             systemd.unified_cgroup_hierarchy=1",
        ),
        Cgroups::None => {
            Check::fail("cgroups", "not mounted", "mount -t cgroup2 none /sys/fs/cgroup")
        }
    }
}

/// The controllers that limits of containers need.
const CONTROLLERS: [&str; 3] = ["cpu", "memory", "pids"];

pub fn cgroup_controllers() -> Check {
    let unified = fs::read_to_string("/sys/fs/cgroup/cgroup.controllers").ok();
    let there = |name: &str| match &unified {
        Some(controllers) => controllers.split_whitespace().any(|found| found == name),
        None => Path::new("/sys/fs/cgroup").join(name).is_dir(),
    };
    let missing: Vec<_> = CONTROLLERS.into_iter().filter(|name| !there(name)).collect();
    if missing.is_empty() {
        return Check::ok("controllers", CONTROLLERS.join(", "));
    }
    Check::warn(
        "controllers",
        format!("without {}", missing.join(", ")),
        "limits of containers do not work; add cgroup_enable=memory to the kernel's command line, \
         or run the service with Delegate=yes",
    )
}

#[test]
fn the_three_ways_to_mount_cgroups_are_told_apart() {
    let v1 = "cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n";
    let v2 = "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n";
    assert_eq!(Cgroups::of(v1), Cgroups::Legacy);
    assert_eq!(Cgroups::of(v2), Cgroups::Unified);
    assert_eq!(Cgroups::of(&format!("{v1}{v2}")), Cgroups::Hybrid);
    assert_eq!(Cgroups::of("tmpfs /cgroup tmpfs rw 0 0"), Cgroups::None);
}
