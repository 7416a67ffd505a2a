//! Groups of containers as systemd slices, for hosts where systemd manages the cgroups.
//!
//! The slice is transient: no unit file is left on disk when it is stopped.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::time::Duration;

use oci_hooks_files::fs::PathError;
use oci_hooks_files::process::{ChildProgram, ProgramEnd};

use super::hierarchy::{MOUNT, poll_until};

/// Prefix of slice names, and the name of their parent slice.
const PREFIX: &str = "ocihooks";

const BUSCTL: &str = "/usr/bin/busctl";
const SYSTEMCTL: &str = "/usr/bin/systemctl";

const TIMEOUT: Duration = Duration::from_secs(30);

/// Limits of all processes in a group together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupLimits {
    /// Memory limit in bytes; the limit of swap is the same.
    pub memory_bytes: Option<u64>,
    /// CPU limit in billionths of a CPU.
    pub nano_cpus: Option<u64>,
    /// Maximum number of processes and threads.
    pub pids: Option<u64>,
}

/// Returns the name of a group's slice.
pub fn name(id: &str) -> String {
    format!("{PREFIX}-{id}.slice")
}

/// Returns the directory of a slice: `a-b.slice` is in `a.slice`.
pub fn directory(slice: &str) -> String {
    let Some(name) = slice.strip_suffix(".slice") else { return slice.to_owned() };
    let ends = name.match_indices('-').map(|(at, _)| at).chain([name.len()]);
    let all = ends.map(|end| format!("{}.slice", &name[..end]));
    all.collect::<Vec<_>>().join("/")
}

/// Starts a slice unless it exists, and sets its limits.
pub fn make(slice: &str, limits: &GroupLimits) -> Result<(), PathError> {
    let properties = properties(limits);
    let there = Path::new(MOUNT).join(directory(slice)).is_dir();
    let words = if there { set(slice, &properties) } else { start(slice, &properties) };
    call(BUSCTL, &words)?;
    // The call returns before systemd has started the slice.
    let is_there = || Path::new(MOUNT).join(directory(slice)).is_dir();
    match poll_until(is_there) {
        true => Ok(()),
        false => Err(PathError::new("start the slice", Path::new(slice), io::ErrorKind::TimedOut)),
    }
}

/// Stops a slice with all its processes; returns whether the slice is gone.
pub fn remove(slice: &str) -> bool {
    let dir = Path::new(MOUNT).join(directory(slice));
    !dir.is_dir() || call(SYSTEMCTL, &["stop".to_owned(), slice.to_owned()]).is_ok()
}

/// Returns the limits as systemd properties: name, D-Bus type and value.
fn properties(limits: &GroupLimits) -> Vec<[String; 3]> {
    let number = |name: &str, value: u64| [name.to_owned(), "t".to_owned(), value.to_string()];
    let memory = limits
        .memory_bytes
        .map(|bytes| [number("MemoryMax", bytes), number("MemorySwapMax", bytes)]);
    let cpus = limits.nano_cpus.map(|nanos| number("CPUQuotaPerSecUSec", nanos / 1000));
    let pids = limits.pids.map(|pids| number("TasksMax", pids));
    memory.into_iter().flatten().chain(cpus).chain(pids).collect()
}

const MANAGER: [&str; 4] = [
    "call",
    "org.freedesktop.systemd1",
    "/org/freedesktop/systemd1",
    "org.freedesktop.systemd1.Manager",
];

fn start(slice: &str, properties: &[[String; 3]]) -> Vec<String> {
    let call = ["StartTransientUnit", "ssa(sv)a(sa(sv))", slice, "replace"];
    build_arguments(&call, properties, &["0"])
}

fn set(slice: &str, properties: &[[String; 3]]) -> Vec<String> {
    build_arguments(&["SetUnitProperties", "sba(sv)", slice, "true"], properties, &[])
}

fn build_arguments(call: &[&str], properties: &[[String; 3]], end: &[&str]) -> Vec<String> {
    let texts = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let count = vec![properties.len().to_string()];
    [texts(&MANAGER), texts(call), count, properties.concat(), texts(end)].concat()
}

fn call(program: &str, words: &[String]) -> Result<(), PathError> {
    let path = Path::new(program);
    let mut call = ChildProgram::new(path, Path::new("/"));
    call.argv = [path.as_os_str()].into_iter().chain(words.iter().map(OsStr::new)).collect();
    call.timeout = Some(TIMEOUT);
    let finished =
        call.run().map_err(|error| PathError::new("execute", path, io::Error::other(error)))?;
    if finished.end == ProgramEnd::Exited(0) {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&finished.stderr).trim().to_owned();
    let said = if said.is_empty() { finished.end.to_string() } else { said };
    Err(PathError::new(
        "limit the job's containers through systemd with",
        path,
        io::Error::other(said),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_below_the_slices_of_their_prefix() {
        assert_eq!(directory("system.slice"), "system.slice");
        assert_eq!(directory("a-b-c.slice"), "a.slice/a-b.slice/a-b-c.slice");
    }

    #[test]
    fn systemd_gets_properties_for_the_limits() {
        let limits = GroupLimits {
            memory_bytes: Some(1 << 30),
            nano_cpus: Some(1_500_000_000),
            pids: Some(77),
        };
        let words = start(&name("1a"), &properties(&limits)).join(" ");
        assert!(words.starts_with("call org.freedesktop.systemd1 "), "{words}");
        assert!(
            words.ends_with(
                "StartTransientUnit ssa(sv)a(sa(sv)) ocihooks-1a.slice replace 4 MemoryMax t 1073741824 \
                 MemorySwapMax t 1073741824 CPUQuotaPerSecUSec t 1500000 TasksMax t 77 0"
            ),
            "{words}"
        );
        let words = set(&name("1a"), &properties(&limits)).join(" ");
        assert!(
            words.contains("SetUnitProperties sba(sv) ocihooks-1a.slice true 4 MemoryMax t "),
            "{words}"
        );
    }
}
