//! The processes of this host, as `/proc` has them: their parents, and the root file systems that they see.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::identity::Identity;

/// Limit of an environment that is read in bytes. That of a process is smaller unless somebody raised the
/// limit of its stack far beyond the usual.
const ENVIRONMENT_BYTES: u64 = 8 << 20;

/// A process at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    pub pid: u32,
    pub parent: u32,
    /// Id of its process group.
    pub group: u32,
    /// Id of its session.
    pub session: u32,
    /// When it started, in clock ticks since the boot.
    pub start: u64,
    /// Whether it has ended, and its parent has not asked how.
    pub is_zombie: bool,
}

impl Process {
    /// Returns the process with this id; none if there is none.
    pub fn of(pid: u32) -> Option<Self> {
        let mut file = File::open(format!("/proc/{pid}/stat")).ok()?;
        // Larger than the file, so that one call reads it.
        let mut buffer = [0; 1024];
        let length = file.read(&mut buffer).ok()?;
        parse(pid, &String::from_utf8_lossy(&buffer[..length]))
    }

    /// Returns all processes that this one can see.
    pub fn all() -> Vec<Self> {
        Process::ids().filter_map(Process::of).collect()
    }

    /// Returns the ids of all processes that this one can see; some may be gone by the time they are asked
    /// for.
    pub fn ids() -> impl Iterator<Item = u32> {
        let entries = fs::read_dir("/proc").into_iter().flatten();
        entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
    }

    /// Returns the ids of the children of a process, in the order in which each of its threads got them.
    /// Empty where the kernel has no lists of them.
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

    /// Returns whether it is there and has not ended.
    pub fn is_running(&self) -> bool {
        Process::of(self.pid).is_some_and(|now| now.start == self.start && !now.is_zombie)
    }

    /// Returns whether it runs, or waits for a CPU or a disk, at this moment: it goes on by itself.
    pub fn is_busy(&self) -> bool {
        let stat = fs::read(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        is_busy(&String::from_utf8_lossy(&stat))
    }

    /// Returns the environment that it was executed with, unless it wrote something else there; none if it
    /// is not to be known, as that of another user's process.
    pub fn environment(&self) -> Option<Vec<u8>> {
        let dir = PathBuf::from(format!("/proc/{}", self.pid));
        let environment = read_environment(&dir.join("environ"));
        if environment.as_ref().is_some_and(|bytes| !bytes.is_empty()) {
            return environment;
        }
        // Its first thread may have ended before others.
        let threads = fs::read_dir(dir.join("task")).into_iter().flatten().flatten();
        let mut others = threads.filter_map(|it| read_environment(&it.path().join("environ")));
        others.find(|bytes| !bytes.is_empty()).or(environment)
    }

    /// Sends a signal to this process, and to none that has its id since. Returns whether it was there.
    ///
    /// # Errors
    ///
    /// `EPERM` if it is another user's.
    pub fn signal(&self, signal: Signal) -> io::Result<bool> {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        let Some(pid) = pid else { return Ok(false) };
        let fd = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(fd) => fd,
            Err(Errno::SRCH | Errno::INVAL) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        // Opened first and compared then: the descriptor stays with the process it was opened for.
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
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(ENVIRONMENT_BYTES).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// Adds the descendants of processes that are among them, of all processes.
pub fn with_descendants(all: &[Process], roots: &HashSet<u32>) -> HashSet<u32> {
    let mut found = roots.clone();
    // Parents have no order: as many rounds as generations are needed.
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

/// See proc_pid_stat(5). The name is in parentheses and may contain any character.
fn parse(pid: u32, stat: &str) -> Option<Process> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ');
    let has_ended = matches!(fields.next()?, "Z" | "X");
    let parent = fields.next()?.parse().ok()?;
    let group = fields.next()?.parse().ok()?;
    let session = fields.next()?.parse().ok()?;
    let threads: u32 = fields.nth(13)?.parse().ok()?;
    let start = fields.nth(1)?.parse().ok()?;
    // The first thread may have ended while others go on.
    let is_zombie = has_ended && threads <= 1;
    Some(Process { pid, parent, group, session, start, is_zombie })
}

fn is_busy(stat: &str) -> bool {
    stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with(['R', 'D']))
}

/// Returns whether the root file system of a process is below a directory of this name, in whatever mount
/// namespace: its overlay's upper directory, or the directory itself.
///
/// A process cannot change that without `CAP_SYS_ADMIN`, and not to another container's at all.
pub fn is_rooted_in(pid: u32, name: &str) -> bool {
    let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
    root(&mounts).is_some_and(|line| line.split(['/', ',', ' ', '=', ':']).any(|part| part == name))
}

/// Returns the processes that [are](is_rooted_in) below a directory of this name.
pub fn rooted_in(name: &str) -> io::Result<Vec<Identity>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Ok(Ok(pid)) = entry?.file_name().into_string().map(|name| name.parse()) else {
            continue;
        };
        // Looked up first: another process that gets the id meanwhile is none of them.
        let Some(process) = Identity::of(pid) else { continue };
        if is_rooted_in(pid, name) && process.is_running() {
            found.push(process);
        }
    }
    Ok(found)
}

/// Returns what is mounted on `/`, of several the last. See proc_pid_mountinfo(5).
fn root(mounts: &str) -> Option<&str> {
    mounts.lines().rfind(|line| line.split(' ').nth(4) == Some("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_whatever_its_name_is() {
        let text = "12 (a) Z (b) S 1 34 35 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 5678 0 0\n";
        let found = parse(12, text).unwrap();
        let expected =
            Process { pid: 12, parent: 1, group: 34, session: 35, start: 5678, is_zombie: false };
        assert_eq!(found, expected);
        let zombie = text.replace(") S", ") Z");
        assert!(parse(12, &zombie).unwrap().is_zombie);
        let threads = zombie.replace("20 0 1 0 5678", "20 0 2 0 5678");
        assert!(!parse(12, &threads).unwrap().is_zombie, "others of its threads go on");
        assert!(!is_busy(text) && !is_busy(&zombie) && !is_busy(""));
        assert!(is_busy(&text.replace(") S", ") R")) && is_busy(&text.replace(") S", ") D")));
    }

    #[test]
    fn this_process_is_among_those_that_run() {
        let own = Process::of(std::process::id()).unwrap();
        assert!(own.is_running() && Process::all().contains(&own));
        assert!(own.environment().is_some());
        assert!(!Process { start: own.start + 1, ..own }.is_running());
        assert!(!Process { start: own.start + 1, ..own }.signal(Signal::KILL).unwrap());
    }

    #[test]
    fn descendants_are_found_in_whatever_order_they_are() {
        let process =
            |pid, parent| Process { pid, parent, group: 0, session: 0, start: 0, is_zombie: false };
        let all = [process(5, 4), process(4, 3), process(9, 1), process(3, 2), process(2, 1)];
        assert_eq!(with_descendants(&all, &HashSet::from([3])), HashSet::from([3, 4, 5]));
    }

    #[test]
    fn a_root_is_known_by_the_directory_it_is_in() {
        let overlay = "1 1 0:30 / / rw - overlay overlay rw,lowerdir=/l/ab:/l/cd,upperdir=/d/1a/upper,workdir=/d/1a/work";
        let other = "2 1 0:31 / /mnt rw - overlay overlay rw,upperdir=/d/2b/upper";
        let both = format!("{overlay}\n{other}\n");
        assert_eq!(root(&both), Some(overlay));
        assert_eq!(root(other), None);
        let above = "3 1 0:32 /d/3c/rootfs / rw - ext4 /dev/vda rw";
        assert_eq!(root(&format!("{both}{above}")), Some(above));
    }

    #[test]
    fn this_process_is_rooted_in_no_container() {
        assert!(!is_rooted_in(std::process::id(), &"1a".repeat(32)));
        assert_eq!(rooted_in(&"1a".repeat(32)).unwrap(), []);
    }
}
