//! Missing settings of the container or service in which this process runs, for nested containers.
//!
//! They are checked only after a failure: nested containers may work without some of them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use oci_hooks_engine::network::TUN;
use oci_hooks_host::privilege::find_id_map_program;

use super::ids::{ProgramPrivilege, SETGID, SETUID, program_privilege};

/// Files by which containers of podman, Docker and Kubernetes are recognised.
const MARKS: [&str; 3] = ["/run/.containerenv", "/.dockerenv", "/var/run/secrets/kubernetes.io"];

/// Paths below `/proc` that `ProtectKernelTunables=` of systemd makes read-only or hides.
const KERNEL_TUNABLES: [&str; 14] = [
    "acpi",
    "apm",
    "asound",
    "bus",
    "fs",
    "irq",
    "kallsyms",
    "kcore",
    "latency_stats",
    "mtrr",
    "scsi",
    "sys",
    "sysrq-trigger",
    "timer_stats",
];

/// Properties of the container and of this process in it.
#[derive(Clone, Debug, Default)]
struct EnclosingContainer {
    /// Content of `/proc/self/status`.
    status: String,
    /// Content of `/proc/self/mountinfo`.
    mounts: String,
    has_tun: bool,
    /// Set if newuidmap has the set-user-ID bit instead of file capabilities.
    has_setuid_newuidmap: bool,
}

/// Returns the missing settings of the container or pod in which this process runs, on one line; `None` outside of
/// containers, or if nothing is known to be missing.
pub fn missing_in_container() -> Option<String> {
    if !is_in_container() {
        return None;
    }
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let missing = EnclosingContainer {
        status: read("/proc/self/status"),
        mounts: read("/proc/self/mountinfo"),
        has_tun: Path::new(TUN).exists(),
        has_setuid_newuidmap: find_id_map_program("newuidmap")
            .is_some_and(|path| program_privilege(&path, SETUID) == ProgramPrivilege::SetUser),
    }
    .missing();
    (!missing.is_empty())
        .then(|| format!("this process runs in a container, which needs {}", missing.join("; ")))
}

/// Returns whether this process runs in a container of podman, Docker or Kubernetes.
pub fn is_in_container() -> bool {
    MARKS.iter().any(|mark| Path::new(mark).exists())
}

/// Returns the options of a systemd unit that hide parts of `/proc` from a process with these
/// mounts (`/proc/PID/mountinfo`); none if any mount of procfs is complete. Without a complete one,
/// the kernel does not permit user namespaces to mount a new procfs.
pub fn unit_options_hiding_proc(mounts: &str) -> Vec<&'static str> {
    let complete = |path: &str| !mount_points(mounts).any(|other| is_below(other, path));
    if proc_mount_points(mounts).any(complete) {
        return Vec::new();
    }
    let option = |path: &str| match path.strip_prefix("/proc/")? {
        "kmsg" => Some("ProtectKernelLogs="),
        "sys/kernel/domainname" | "sys/kernel/hostname" => Some("ProtectHostname="),
        name if KERNEL_TUNABLES.contains(&name) => Some("ProtectKernelTunables="),
        _ => None,
    };
    let options: BTreeSet<_> = mount_points(mounts).filter_map(option).collect();
    options.into_iter().collect()
}

/// Returns whether a mount point is below another. Mounts on directories of `/proc` that are always
/// empty do not count, as in the kernel.
fn is_below(path: &str, above: &str) -> bool {
    let name = path.strip_prefix(above).and_then(|rest| rest.strip_prefix('/'));
    name.is_some_and(|name| !["fs/nfsd", "sys/fs/binfmt_misc", "xen"].contains(&name))
}

/// Returns the mount points of procfs in a `mountinfo` file.
fn proc_mount_points(mounts: &str) -> impl Iterator<Item = &str> {
    let is_proc = |line: &&str| line.contains(" - proc ");
    mounts.lines().filter(is_proc).filter_map(|line| {
        let mut fields = line.split_ascii_whitespace().skip(3);
        fields.next().filter(|root| *root == "/").and(fields.next())
    })
}

/// Returns the mount points in a `mountinfo` file.
fn mount_points(mounts: &str) -> impl Iterator<Item = &str> {
    mounts.lines().filter_map(|line| line.split_ascii_whitespace().nth(4))
}

impl EnclosingContainer {
    fn missing(&self) -> Vec<&'static str> {
        let lacks = |bit: u32| self.number("CapBnd", 16) & (1 << bit) == 0;
        let is_mask = |path: &str| path.starts_with("/proc/") || path.starts_with("/sys/firmware");
        let is_masked = mount_points(&self.mounts).any(is_mask);
        [
            (
                self.number("NoNewPrivs", 10) != 0,
                "privilege escalation (`allowPrivilegeEscalation: true`; no `no-new-privileges`)",
            ),
            (
                lacks(SETUID) || lacks(SETGID),
                "the capabilities SETUID and SETGID (`capabilities.add`; `--cap-add`), which newuidmap needs",
            ),
            (
                self.has_setuid_newuidmap,
                "newuidmap and newgidmap with file capabilities instead of the set-user-ID bit \
                 (`setcap cap_setuid+ep`, `setcap cap_setgid+ep`)",
            ),
            (
                self.number("Seccomp", 10) == 2,
                "a seccomp profile that allows new namespaces, mounts and host names without CAP_SYS_ADMIN \
                 (`seccompProfile` `Unconfined` or a custom profile; `--security-opt seccomp=unconfined`)",
            ),
            (
                is_masked,
                "/proc and /sys without masked paths (`procMount: Unmasked` with `hostUsers: false`; \
                 `--security-opt unmask=ALL`)",
            ),
            (!self.has_tun, "the device /dev/net/tun, for the network of jobs"),
        ]
        .into_iter()
        .filter_map(|(is_missing, what)| is_missing.then_some(what))
        .collect()
    }

    /// Returns a number in `/proc/self/status`; 0 if it is missing.
    fn number(&self, key: &str, radix: u32) -> u64 {
        let value = |line: &str| line.strip_prefix(key)?.strip_prefix(':').map(str::to_owned);
        let value = self.status.lines().find_map(value);
        value.and_then(|value| u64::from_str_radix(value.trim(), radix).ok()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MASKED: &str = "\
        74 73 0:43 / /sys ro,nosuid - sysfs sysfs ro\n\
        75 73 0:44 / /proc rw,nosuid - proc proc rw\n\
        52 75 0:44 /sys /proc/sys ro,nosuid - proc proc rw\n\
        56 74 0:49 / /sys/firmware ro,relatime - tmpfs tmpfs ro\n";
    const OPEN: &str = "\
        74 73 0:43 / /sys ro,nosuid - sysfs sysfs ro\n\
        75 73 0:44 / /proc rw,nosuid - proc proc rw\n";

    fn parse_container(status: &str) -> EnclosingContainer {
        let (status, mounts) = (status.to_owned(), OPEN.to_owned());
        EnclosingContainer { status, mounts, has_tun: true, has_setuid_newuidmap: false }
    }

    #[test]
    fn unrestricted_container_lacks_nothing() {
        let open = parse_container("CapBnd:\t00000000000000c0\nNoNewPrivs:\t0\nSeccomp:\t0\n");
        assert!(open.missing().is_empty(), "{:?}", open.missing());
    }

    #[test]
    fn each_missing_setting_is_named() {
        let open = "CapBnd:\t00000000000000c0\nNoNewPrivs:\t0\nSeccomp:\t0\n";
        let with = |from: &str, to: &str| parse_container(&open.replace(from, to));
        for (found, expected) in [
            (with("NoNewPrivs:\t0", "NoNewPrivs:\t1"), "allowPrivilegeEscalation"),
            (with("c0", "80"), "SETGID"),
            (with("Seccomp:\t0", "Seccomp:\t2"), "seccomp"),
            (
                EnclosingContainer { mounts: MASKED.to_owned(), ..parse_container(open) },
                "procMount",
            ),
            (EnclosingContainer { has_tun: false, ..parse_container(open) }, "/dev/net/tun"),
            (EnclosingContainer { has_setuid_newuidmap: true, ..parse_container(open) }, "setcap"),
        ] {
            let missing = found.missing();
            assert!(missing.len() == 1 && missing[0].contains(expected), "{expected}: {missing:?}");
        }
    }

    #[test]
    fn options_that_hide_proc_are_named() {
        let of = |mounts: &[(&str, &str)]| {
            let line = |(path, kind): &(&str, &str)| format!("9 2 0:5 / {path} ro - {kind} x rw\n");
            unit_options_hiding_proc(&mounts.iter().map(line).collect::<String>())
        };
        let proc = ("/proc", "proc");
        let always_empty = [("/proc/fs/nfsd", "nfsd"), ("/proc/sys/fs/binfmt_misc", "autofs")];
        assert!(of(&[proc, always_empty[0], always_empty[1], ("/process", "tmpfs")]).is_empty());
        let service = [proc, ("/proc/sys", "proc"), ("/proc/irq", "proc"), ("/proc/kmsg", "tmpfs")];
        // The mount of a part of procfs has another root.
        let mounts: String = service
            .iter()
            .zip(["/", "/sys", "/irq", "/"])
            .map(|((path, kind), root)| format!("9 2 0:5 {root} {path} ro - {kind} x rw\n"))
            .collect();
        assert_eq!(
            unit_options_hiding_proc(&mounts),
            ["ProtectKernelLogs=", "ProtectKernelTunables="]
        );
        assert_eq!(of(&[proc, ("/proc/sys/kernel/hostname", "x")]), ["ProtectHostname="]);
        // Mounts of lxcfs are not systemd's, and a second, complete `/proc` suffices.
        assert!(of(&[proc, ("/proc/cpuinfo", "fuse")]).is_empty());
        assert!(of(&[proc, ("/proc/kmsg", "tmpfs"), ("/dev/.lxc/proc", "proc")]).is_empty());
    }
}
