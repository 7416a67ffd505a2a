//! Events of the container's limits: the kernel counts them in files of the cgroup, which most runtimes mount.

use std::fs::{self, OpenOptions};
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use oci_hooks_init::frames::journal::LimitEvents;
use rustix::fs::statvfs;

const MOUNT: &str = "/sys/fs/cgroup";

/// Maximum number of bytes to read from a file of the cgroup.
const MAX_BYTES: u64 = 64 << 10;

/// Returns the events since the container was created.
pub fn count_limit_events() -> LimitEvents {
    let own = own_directory();
    let memory = [own.join("memory.events"), in_mount("memory/memory.oom_control")];
    // Since Linux 6.6, `cpu.stat.local` also counts waits for the limit of the pod. That is often the container's,
    // and may then be the one that is reached in each period.
    let throttled = |directory: PathBuf, key| {
        value(&["cpu.stat.local", "cpu.stat"].map(|file| directory.join(file)), key)
    };
    let throttled_usec = throttled(own.clone(), "throttled_usec")
        .or_else(|| Some(throttled(in_mount("cpu"), "throttled_time")? / 1000));
    let usage = || read(&in_mount("cpuacct/cpuacct.usage"))?.trim().parse::<u64>().ok();
    let cpu_usec = value(&[own.join("cpu.stat")], "usage_usec").or_else(|| Some(usage()? / 1000));
    LimitEvents {
        memory_kills: value(&memory, "oom_kill").unwrap_or(0),
        cpu_usec: cpu_usec.unwrap_or(0),
        throttled_usec: throttled_usec.unwrap_or(0),
        is_disk_full: false,
    }
}

/// Returns the events since an earlier count.
pub fn limit_events_since(earlier: &LimitEvents) -> LimitEvents {
    let now = count_limit_events();
    LimitEvents {
        memory_kills: now.memory_kills.saturating_sub(earlier.memory_kills),
        cpu_usec: now.cpu_usec.saturating_sub(earlier.cpu_usec),
        throttled_usec: now.throttled_usec.saturating_sub(earlier.throttled_usec),
        ..now
    }
}

/// Returns whether a directory's file system has less than a thousandth of its blocks left.
pub fn is_full(directory: &[u8]) -> bool {
    statvfs(directory).is_ok_and(|found| found.f_bavail < found.f_blocks / 1000)
}

fn in_mount(file: &str) -> PathBuf {
    Path::new(MOUNT).join(file)
}

/// Returns the directory of this process's cgroup (v2): the mount itself if the container has its
/// own cgroup namespace.
fn own_directory() -> PathBuf {
    let text = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = text.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    in_mount(own)
}

/// Reads at most [`MAX_BYTES`] of a file. The file is untrusted: if no cgroups are mounted, a step
/// may have created it, even as a FIFO.
fn read(file: &Path) -> Option<String> {
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(file).ok()?;
    let mut text = String::new();
    opened.take(MAX_BYTES).read_to_string(&mut text).ok()?;
    Some(text)
}

/// Returns the value of a key in the first file that has it.
fn value(files: &[PathBuf], key: &str) -> Option<u64> {
    let find = |file: &PathBuf| {
        let text = read(file)?;
        let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '))?;
        value.trim().parse().ok()
    };
    files.iter().find_map(find)
}
