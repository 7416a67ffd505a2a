//! The kernel, its cgroups, and the programs that the hook calls.

use std::fs;
use std::path::Path;

use super::Check;
use super::version::Version;

/// The oldest kernel that has all system calls we make: `mount_setattr` for idmapped mounts.
const OLDEST: Version = Version::new(5, 12, 0);
/// From here on overlayfs can be idmapped itself.
const IDMAPPED_OVERLAY: Version = Version::new(5, 19, 0);

pub(super) fn checks() -> Vec<Check> {
    vec![kernel(), cgroups(), cgroup_controllers(), user_namespaces()]
}

fn kernel() -> Check {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy().into_owned();
    match Version::parse(&release) {
        Some(version) if version >= IDMAPPED_OVERLAY => Check::ok("kernel", release),
        Some(version) if version >= OLDEST => Check::warn(
            "kernel",
            release,
            "files of containers in the runner's directories belong to root before Linux 5.19",
        ),
        _ => Check::fail("kernel", release, "containers need Linux 5.12 or later"),
    }
}

/// How cgroups are mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cgroups {
    Unified,
    Hybrid,
    Legacy,
    None,
}

impl Cgroups {
    fn of(mounts: &str) -> Self {
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

fn cgroups() -> Check {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    match Cgroups::of(&mounts) {
        Cgroups::Unified => Check::ok("cgroups", "version 2"),
        Cgroups::Legacy => Check::ok("cgroups", "version 1"),
        Cgroups::Hybrid => Check::warn(
            "cgroups",
            "versions 1 and 2 are both mounted",
            "some versions of crun refuse this: use runc, or boot with \
             systemd.unified_cgroup_hierarchy=1",
        ),
        Cgroups::None => {
            Check::fail("cgroups", "not mounted", "mount -t cgroup2 none /sys/fs/cgroup")
        }
    }
}

/// Limits need these.
const CONTROLLERS: [&str; 3] = ["cpu", "memory", "pids"];

fn cgroup_controllers() -> Check {
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

fn user_namespaces() -> Check {
    let max = fs::read_to_string("/proc/sys/user/max_user_namespaces").unwrap_or_default();
    if max.trim() == "0" {
        let mend = "sysctl user.max_user_namespaces=15000: files of containers in the runner's \
                    directories cannot be given to its user without one";
        return Check::warn("user namespaces", "turned off", mend);
    }
    Check::ok("user namespaces", "available")
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
