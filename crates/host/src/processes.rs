//! Lists the processes in `/proc` with their parents and environments, and sends them signals. Programs find with it
//! the descendants of a process.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::identity::ProcessIdentity;

/// Maximum size of an environment that is read. The environment of a process is smaller unless its stack limit is far
/// above the default.
const ENVIRONMENT_BYTES: u64 = 8 << 20;

/// The state of a process when `/proc/PID/stat` was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessSnapshot {
    pub pid: u32,
    pub parent: u32,
    pub group: u32,
    /// Start time in clock ticks since the boot.
    pub start: u64,
    /// Set if the process has ended but was not reaped.
    pub is_zombie: bool,
    /// Set if a signal or a tracer has stopped the process.
    pub is_stopped: bool,
    /// Set if the process is in an uninterruptible wait (state `D`), so that a stop signal takes
    /// effect only after it; also set if the first thread has ended before others, as the state of
    /// the others is then unknown.
    pub is_blocked: bool,
    /// Set if the process is exiting.
    pub(crate) is_exiting: bool,
}

/// `PF_EXITING` of Linux: the thread is exiting.
const EXITING: u64 = 4;

impl ProcessSnapshot {
    /// Returns the PID and the start time, which are the same in each snapshot of the process.
    pub fn identity(&self) -> ProcessIdentity {
        ProcessIdentity { pid: self.pid, start: self.start }
    }

    /// Returns the process with this PID, if it exists.
    pub fn of(pid: u32) -> Option<Self> {
        ProcessSnapshot::in_proc(Path::new("/proc"), pid)
    }

    /// Returns the process with this PID in a file system of type `proc`, if it exists.
    pub(crate) fn in_proc(proc: &Path, pid: u32) -> Option<Self> {
        let mut file = File::open(proc.join(format!("{pid}/stat"))).ok()?;
        // Larger than the file, which a single call then reads.
        let mut buffer = [0; 1024];
        let length = file.read(&mut buffer).ok()?;
        parse(pid, &String::from_utf8_lossy(&buffer[..length]))
    }

    /// Returns all processes that are visible in `/proc`.
    pub fn list_all() -> Vec<Self> {
        ProcessSnapshot::ids().filter_map(ProcessSnapshot::of).collect()
    }

    /// Returns the PIDs of all visible processes; a process may have ended by the time its PID is used.
    pub fn ids() -> impl Iterator<Item = u32> {
        let entries = fs::read_dir("/proc").into_iter().flatten();
        entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
    }

    /// Returns the PIDs of the children of a process, for each of its threads in the order of creation.
    /// Empty on kernels without [lists of children](Self::has_lists_of_children).
    pub fn children_of(pid: u32) -> Vec<u32> {
        let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
        let lists: Vec<String> = threads
            .filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("children")).ok())
            .collect();
        let words = lists.iter().flat_map(|list| list.split_ascii_whitespace());
        words.filter_map(|pid| pid.parse().ok()).collect()
    }

    /// Returns whether the kernel lists the children of processes (`CONFIG_PROC_CHILDREN`).
    pub fn has_lists_of_children() -> bool {
        Path::new("/proc/thread-self/children").exists()
    }

    /// Returns whether the process exists and is not a zombie.
    pub fn is_running(&self) -> bool {
        self.identity().is_running()
    }

    /// Returns the environment with which the process was executed, unless the process overwrote it; `None` if it is
    /// not readable, as that of another user's process.
    pub fn environment(&self) -> Option<Vec<u8>> {
        let dir = PathBuf::from(format!("/proc/{}", self.pid));
        let environment = read_environment(&dir.join("environ"));
        if environment.as_ref().is_some_and(|bytes| !bytes.is_empty()) {
            return environment;
        }
        // The first thread may have ended before others.
        let threads = fs::read_dir(dir.join("task")).into_iter().flatten().flatten();
        let mut others = threads.filter_map(|it| read_environment(&it.path().join("environ")));
        others.find(|bytes| !bytes.is_empty()).or(environment)
    }

    /// Returns whether the kernel drops these signals: the process is the first of a PID namespace just below that of
    /// `/proc`, and neither catches nor blocks any of them.
    pub fn drops(&self, signals: &[i32]) -> bool {
        drops(&read_lossy(format!("/proc/{}/status", self.pid)).unwrap_or_default(), signals)
    }

    /// Sends a signal to this process, and never to a later process with the same PID. Returns whether the process
    /// existed.
    ///
    /// # Errors
    ///
    /// `EPERM` if the process belongs to another user.
    pub fn signal(&self, signal: Signal) -> io::Result<bool> {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        let Some(pid) = pid else { return Ok(false) };
        let fd = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(fd) => fd,
            Err(Errno::SRCH | Errno::INVAL) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        // Compared after opening: a pidfd always refers to the same process.
        if !self.is_running() {
            return Ok(false);
        }
        match pidfd_send_signal(&fd, signal) {
            Ok(()) => Ok(true),
            Err(Errno::SRCH) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

fn read_environment(path: &Path) -> Option<Vec<u8>> {
    read_at_most(path, ENVIRONMENT_BYTES).ok()
}

/// Returns at most this many bytes of a file whose size another process chooses: `/proc/PID/cmdline` and
/// `/proc/PID/environ` show as much memory as a process declares (`PR_SET_MM_MAP`), even terabytes of zeros.
pub fn read_at_most(path: impl AsRef<Path>, bytes: u64) -> io::Result<Vec<u8>> {
    let mut read = Vec::new();
    File::open(path)?.take(bytes).read_to_end(&mut read)?;
    Ok(read)
}

/// Returns the text of a file in `/proc`. A process chooses its name, which need not be UTF-8.
pub(crate) fn read_lossy(path: impl AsRef<Path>) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&fs::read(path)?).into_owned())
}

/// Returns the roots and all their descendants among the given processes.
pub fn add_descendants(all: &[ProcessSnapshot], roots: &HashSet<u32>) -> HashSet<u32> {
    let mut found = roots.clone();
    // Parents may come after children: each round adds one generation.
    loop {
        let before = found.len();
        let children = all.iter().filter(|process| found.contains(&process.parent));
        let children: Vec<u32> = children.map(|process| process.pid).collect();
        found.extend(children);
        if found.len() == before {
            return found;
        }
    }
}

/// Parses `/proc/PID/stat`, see proc_pid_stat(5); `None` if it is malformed. The command name is in
/// parentheses and may contain any character.
fn parse(pid: u32, stat: &str) -> Option<ProcessSnapshot> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ');
    let state = fields.next()?;
    let has_ended = matches!(state, "Z" | "X");
    let parent = fields.next()?.parse().ok()?;
    let group = fields.next()?.parse().ok()?;
    let flags: u64 = fields.nth(3)?.parse().ok()?;
    let threads: u32 = fields.nth(10)?.parse().ok()?;
    let start = fields.nth(1)?.parse().ok()?;
    // State and flags are those of the first thread, which may end before others.
    let is_zombie = has_ended && threads <= 1;
    let is_stopped = matches!(state, "T" | "t");
    let is_blocked = state == "D" || has_ended && !is_zombie;
    let is_exiting = flags & EXITING != 0 && (threads <= 1 || !has_ended);
    Some(ProcessSnapshot {
        pid,
        parent,
        group,
        start,
        is_zombie,
        is_stopped,
        is_blocked,
        is_exiting,
    })
}

/// Returns whether a process of any user is in a PID namespace below that of `/proc`, such as a container's.
pub fn is_in_nested_namespace(pid: u32) -> bool {
    let status = read_lossy(format!("/proc/{pid}/status")).unwrap_or_default();
    status_field(&status, "NSpid").is_some_and(|ids| ids.split_whitespace().count() > 1)
}

/// Returns whether a process is the first of a PID namespace just below that of `/proc`, given its status.
pub(crate) fn is_first_of_namespace(status: &str) -> bool {
    let ids = status_field(status, "NSpid").unwrap_or_default();
    matches!(ids.split_whitespace().collect::<Vec<_>>()[..], [_, "1"])
}

/// Returns the value of a field in `/proc/PID/status`, see proc_pid_status(5).
pub(crate) fn status_field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = status.lines().filter_map(|line| line.split_once(':'));
    lines.find(|(found, _)| *found == name).map(|(_, value)| value.trim())
}

fn drops(status: &str, signals: &[i32]) -> bool {
    let mask = |name| u64::from_str_radix(status_field(status, name)?, 16).ok();
    let (Some(caught), Some(blocked)) = (mask("SigCgt"), mask("SigBlk")) else { return false };
    is_first_of_namespace(status)
        && signals.iter().all(|signal| (caught | blocked) & (1 << (signal - 1)) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_is_parsed_whatever_its_name() {
        let text = "12 (a) Z (b) S 1 34 35 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 5678 0 0\n";
        let found = parse(12, text).unwrap();
        let expected = ProcessSnapshot {
            pid: 12,
            parent: 1,
            group: 34,
            start: 5678,
            is_zombie: false,
            is_stopped: false,
            is_blocked: false,
            is_exiting: false,
        };
        assert_eq!(found, expected);
        for (state, stopped, blocked) in
            [("T", true, false), ("t", true, false), ("D", false, true)]
        {
            let found = parse(12, &text.replace(") S", &format!(") {state}"))).unwrap();
            assert_eq!((found.is_stopped, found.is_blocked), (stopped, blocked), "{state}");
        }
        let zombie = text.replace(") S", ") Z");
        assert!(parse(12, &zombie).unwrap().is_zombie);
        let threads = zombie.replace("20 0 1 0 5678", "20 0 2 0 5678");
        let found = parse(12, &threads).unwrap();
        assert!(!found.is_zombie && found.is_blocked, "others of its threads go on");
    }

    #[test]
    fn this_process_is_among_the_running_ones() {
        let own = ProcessSnapshot::of(std::process::id()).unwrap();
        let all = ProcessSnapshot::list_all();
        assert!(own.is_running() && all.iter().any(|it| it.identity() == own.identity()));
        assert!(own.environment().is_some());
        assert!(!ProcessSnapshot { start: own.start + 1, ..own }.is_running());
        assert!(!ProcessSnapshot { start: own.start + 1, ..own }.signal(Signal::KILL).unwrap());
    }

    #[test]
    fn descendants_are_found_in_any_order() {
        let process = |pid, parent| ProcessSnapshot {
            pid,
            parent,
            group: 0,
            start: 0,
            is_zombie: false,
            is_stopped: false,
            is_blocked: false,
            is_exiting: false,
        };
        let all = [process(5, 4), process(4, 3), process(9, 1), process(3, 2), process(2, 1)];
        assert_eq!(add_descendants(&all, &HashSet::from([3])), HashSet::from([3, 4, 5]));
    }

    #[test]
    fn the_first_process_of_a_namespace_drops_signals_that_it_does_not_handle() {
        let status = "Name:\tsleep\nNSpid:\t4711\t1\nSigBlk:\t0000000000000000\n\
                      SigIgn:\t0000000000000006\nSigCgt:\t0000000000000000\n";
        assert!(drops(status, &[2, 15]));
        assert!(!drops(&status.replace("4711\t1", "4711\t7"), &[2]), "an ordinary process");
        assert!(!drops(&status.replace("4711\t1", "1"), &[2]), "in no namespace below");
        assert!(!drops(&status.replace("4711\t1", "4711\t7\t1"), &[2]), "of a nested container");
        let caught = status.replace("SigCgt:\t0000000000000000", "SigCgt:\t0000000000004000");
        assert!(drops(&caught, &[2]) && !drops(&caught, &[2, 15]));
        let blocked = status.replace("SigBlk:\t0000000000000000", "SigBlk:\t0000000000000002");
        assert!(!drops(&blocked, &[2, 15]));
        assert!(!drops("", &[2]));
        assert!(!is_in_nested_namespace(std::process::id()) && !is_in_nested_namespace(u32::MAX));
    }
}
