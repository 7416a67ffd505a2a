//! Which process a number means: ids are given again, so a record keeps the start time too.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

/// Where the processes are that this process sees.
const PROC: &str = "/proc";

/// How long it may take until a process becomes our child whose parent is about to end.
const ADOPTION: Duration = Duration::from_secs(10);

/// A process, told from a later one with the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    pub pid: u32,
    /// When it started, in clock ticks since the boot: field 22 of `/proc/PID/stat`.
    pub start: u64,
}

impl Identity {
    /// Returns the identity of the process that has this id now; none if there is none.
    pub fn of(pid: u32) -> Option<Self> {
        let Stat { start, .. } = stat(Path::new(PROC), pid)?;
        Some(Identity { pid, start })
    }

    /// Returns the identity of a child, or of an orphan that is adopted now or soon, by the id that
    /// somebody wrote down; none if the id is that of a process elsewhere. Nobody else gets the id of a
    /// child before this process has collected it.
    pub fn of_child(pid: u32) -> Option<Self> {
        let process = Identity::of(pid)?;
        let end = Instant::now() + ADOPTION;
        // A parent that ends meanwhile has to be looked for again.
        for _ in 0..100 {
            let Some(parent) = process.parent() else { continue };
            if parent.pid == std::process::id() {
                return Some(process);
            }
            // crun ends a moment before the process of its that is the parent.
            if let Some(parent) = parent.open() {
                wait(&parent, end.saturating_duration_since(Instant::now())).ok()?;
            }
        }
        None
    }

    /// Returns the identity of a process of a container by the id that the runtime wrote down; none if
    /// it has ended, and the id is that of a process elsewhere by now.
    pub fn of_container(pid: u32, first: Identity) -> Option<Self> {
        let process = Identity::of(pid)?;
        let namespace = |id: u32| fs::read_link(format!("/proc/{id}/ns/pid")).ok();
        let is_in = namespace(pid).is_some_and(|found| Some(found) == namespace(first.pid));
        // They were those processes all along.
        (is_in && process.is_running() && first.is_running()).then_some(process)
    }

    /// Returns the processes whose command lines have all of these words, in whatever order.
    pub fn with_words(words: &[&OsStr]) -> io::Result<Vec<Self>> {
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc")? {
            let Ok(Ok(pid)) = entry?.file_name().into_string().map(|name| name.parse()) else {
                continue;
            };
            // Looked up first: another process that gets the id meanwhile is none of them.
            let Some(process) = Identity::of(pid) else { continue };
            let Ok(line) = fs::read(format!("/proc/{pid}/cmdline")) else { continue };
            let has = |word: &&OsStr| line.split(|&byte| byte == 0).any(|it| it == word.as_bytes());
            if words.iter().all(has) && process.is_running() {
                found.push(process);
            }
        }
        Ok(found)
    }

    /// Returns whether the process is there and has not ended.
    pub fn is_running(&self) -> bool {
        self.is_running_in(Path::new(PROC))
    }

    fn is_running_in(&self, proc: &Path) -> bool {
        // An orphan may stay a zombie for seconds where nobody is quick to collect it.
        stat(proc, self.pid).is_some_and(|now| now.start == self.start && !now.has_ended)
    }

    /// Returns whether the process runs and is not about to end: one that was killed may be there for a while,
    /// as until the kernel has taken away its network interface, and does nothing.
    pub fn is_working(&self) -> bool {
        let now = stat(Path::new(PROC), self.pid);
        now.is_some_and(|now| now.start == self.start && !now.has_ended && !now.is_ending)
    }

    /// Opens a descriptor of the process; none if it is gone.
    pub fn open(&self) -> Option<OwnedFd> {
        let pid = Pid::from_raw(i32::try_from(self.pid).ok()?)?;
        let fd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        // Opened first and compared then: the descriptor stays with the process it was opened for.
        self.is_running().then_some(fd)
    }

    /// Has the process killed, and does not wait until it ended.
    pub fn kill_soon(&self) -> io::Result<()> {
        let Some(fd) = self.open() else { return Ok(()) };
        match pidfd_send_signal(&fd, Signal::KILL) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Kills the process and waits until it ended.
    ///
    /// # Errors
    ///
    /// `TimedOut` when it is still there after the timeout.
    pub fn kill(&self, timeout: Duration) -> io::Result<()> {
        let Some(fd) = self.open() else { return Ok(()) };
        match pidfd_send_signal(&fd, Signal::KILL) {
            Ok(()) | Err(Errno::SRCH) => {}
            Err(error) => return Err(error.into()),
        }
        if wait(&fd, timeout)? { Ok(()) } else { Err(io::ErrorKind::TimedOut.into()) }
    }

    /// Returns the path of the program that the process runs, if it may be known.
    pub fn program(&self) -> Option<PathBuf> {
        fs::read_link(format!("/proc/{}/exe", self.pid)).ok()
    }

    /// Returns the process's parent.
    pub fn parent(&self) -> Option<Self> {
        let text = fs::read_to_string(format!("/proc/{}/stat", self.pid)).ok()?;
        let parent = text.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()?;
        Identity::of(parent)
    }

    /// Returns the name that the kernel has for the process, at most 15 bytes of its program's.
    pub fn name(&self) -> Option<String> {
        let text = fs::read_to_string(format!("/proc/{}/comm", self.pid)).ok()?;
        Some(text.trim_end().to_owned())
    }
}

/// Where the numbers of processes are from that a record has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProcessView {
    /// The process namespace of this process.
    #[default]
    Own,
    /// One below, by its first process as this process sees it, which has mounted a `/proc` of its own.
    Below(Identity),
    /// One that has ended, with all that was in it.
    Ended,
}

impl ProcessView {
    /// Returns whether a process of that namespace is there and has not ended.
    pub fn is_running(self, process: Identity) -> bool {
        match self {
            ProcessView::Own => process.is_running(),
            ProcessView::Below(first) => {
                let proc = format!("/proc/{}/root/proc", first.pid);
                // The first one is asked last: until then it was no other's `/proc`.
                process.is_running_in(Path::new(&proc)) && first.is_running()
            }
            ProcessView::Ended => false,
        }
    }
}

/// Waits until a process ended, given its descriptor; returns whether it did in time.
pub fn wait(pidfd: &OwnedFd, timeout: Duration) -> io::Result<bool> {
    let end = Instant::now() + timeout;
    loop {
        let left = Timespec::try_from(end.saturating_duration_since(Instant::now())).ok();
        match poll(&mut [PollFd::new(pidfd, PollFlags::IN)], left.as_ref()) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// `PF_EXITING` of Linux: the process runs nothing any more.
const EXITING: u64 = 4;

struct Stat {
    start: u64,
    /// Whether none of its threads goes on.
    has_ended: bool,
    is_ending: bool,
}

/// See proc_pid_stat(5).
fn stat(proc: &Path, pid: u32) -> Option<Stat> {
    let text = fs::read_to_string(proc.join(pid.to_string()).join("stat")).ok()?;
    // The program's name may hold anything; what follows its last parenthesis begins with field 3.
    let mut fields = text.rsplit_once(") ")?.1.split(' ');
    // State and flags are those of its first thread, which may end before others.
    let state = *fields.next()?.as_bytes().first()?;
    let flags: u64 = fields.nth(5)?.parse().ok()?;
    let is_last = fields.nth(10)?.parse::<u32>().ok()? <= 1;
    let start = fields.nth(1)?.parse().ok()?;
    Some(Stat {
        start,
        has_ended: state == b'Z' && is_last,
        is_ending: flags & EXITING != 0 && (is_last || state != b'Z'),
    })
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Read as _};
    use std::process::{Command, Stdio};
    use std::thread;

    use rustix::process::{getpid, set_child_subreaper};

    use super::*;
    use crate::sys::tests::with_few_descriptors;

    #[test]
    fn a_killed_process_is_not_running() {
        let mut child = Command::new("sleep").arg("100").spawn().unwrap();
        let identity = Identity::of(child.id()).unwrap();
        assert!(identity.is_working());
        assert!(identity.is_running());
        assert_eq!(identity.parent().unwrap().pid, std::process::id());
        identity.kill(Duration::from_secs(10)).unwrap();
        // Still a zombie: this process has not waited for it.
        assert!(!identity.is_running() && !identity.is_working());
        assert!(identity.open().is_none());
        child.wait().unwrap();
        identity.kill(Duration::ZERO).unwrap();
    }

    #[test]
    fn a_process_is_found_by_words_of_its_command_line() {
        let unique = format!("found-by-its-words-{}", std::process::id());
        let mut child = Command::new("sh");
        let child = child.args(["-c", "echo; read line; :", &unique]);
        let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        // It has no command line for a moment after it was executed.
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let find = |words: &[&str]| {
            let words: Vec<_> = words.iter().map(OsStr::new).collect();
            Identity::with_words(&words).unwrap()
        };
        let own = Identity::of(child.id()).unwrap();
        assert_eq!(find(&[&unique, "-c"]), [own]);
        assert_eq!(find(&[&unique, "create"]), []);
        assert_eq!(find(&[&unique[1..]]), []);
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(find(&[&unique]), []);
    }

    #[test]
    fn only_a_child_is_found_as_one() {
        let mut child = Command::new("true").spawn().unwrap();
        let identity = Identity::of_child(child.id()).expect("it is one, ended or not");
        identity.kill(Duration::from_secs(10)).unwrap();
        assert_eq!(Identity::of_child(child.id()), Some(identity), "it was not collected");
        child.wait().unwrap();
        assert_eq!(Identity::of_child(child.id()), None);
        assert_eq!(Identity::of_child(u32::MAX), None);
    }

    #[test]
    fn an_orphan_is_found_as_soon_as_it_is_one() {
        let test = "sys::identity::tests::an_orphan_is_found_as_soon_as_it_is_one";
        // What becomes an orphan is the whole process's child.
        with_few_descriptors(test, || {
            set_child_subreaper(Some(getpid())).unwrap();
            let mut parent = Command::new("sh")
                .args(["-c", "sleep 1000 <&- & echo $!; read line"])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut line = String::new();
            BufReader::new(parent.stdout.take().unwrap()).read_line(&mut line).unwrap();
            let pid = line.trim().parse().unwrap();
            let finding = thread::spawn(move || Identity::of_child(pid));
            // It waits for the parent to end.
            let waits = || {
                fs::read_dir("/proc/self/fd").unwrap().flatten().any(|fd| {
                    fs::read_link(fd.path()).is_ok_and(|to| to.to_string_lossy().contains("pidfd"))
                })
            };
            while !waits() {
                thread::yield_now();
            }
            assert!(!finding.is_finished());
            drop(parent.stdin.take());
            let found = finding.join().unwrap().expect("it is ours now");
            assert_eq!(found, Identity::of(pid).unwrap());
            found.kill(Duration::from_secs(10)).unwrap();
            parent.wait().unwrap();
        });
    }

    #[test]
    fn a_process_elsewhere_is_none_of_the_container() {
        let own = Identity::of(std::process::id()).unwrap();
        assert_eq!(Identity::of_container(own.pid, own), Some(own));
        assert_eq!(Identity::of_container(u32::MAX, own), None);
        if !rustix::process::geteuid().is_root() {
            // Nobody else makes a process namespace without more ado.
            return;
        }
        let mut first = Command::new("unshare");
        let mut first = first.args(["--pid", "--fork", "sleep", "100"]).spawn().unwrap();
        let children = format!("/proc/{0}/task/{0}/children", first.id());
        let inner = loop {
            let text = fs::read_to_string(&children).unwrap();
            if let Some(Ok(pid)) = text.split_whitespace().next().map(str::parse) {
                break Identity::of(pid).unwrap();
            }
            thread::yield_now();
        };
        assert_eq!(Identity::of_container(own.pid, inner), None);
        assert_eq!(Identity::of_container(inner.pid, inner), Some(inner));
        inner.kill(Duration::from_secs(10)).unwrap();
        assert_eq!(Identity::of_container(inner.pid, inner), None);
        first.wait().unwrap();
    }

    #[test]
    fn processes_of_a_namespace_below_are_seen_by_its_first_one() {
        let own = Identity::of(std::process::id()).unwrap();
        assert!(ProcessView::Own.is_running(own) && !ProcessView::Ended.is_running(own));
        // Its `/proc` is ours as well.
        let mut first = Command::new("sleep").arg("100").spawn().unwrap();
        let view = ProcessView::Below(Identity::of(first.id()).unwrap());
        assert!(view.is_running(own));
        assert!(!view.is_running(Identity { start: own.start + 1, ..own }));
        first.kill().unwrap();
        first.wait().unwrap();
        assert!(!view.is_running(own), "all ended with it");
    }

    #[test]
    fn another_start_is_another_process() {
        let own = Identity::of(std::process::id()).unwrap();
        assert!(own.is_running());
        assert!(!Identity { start: own.start + 1, ..own }.is_running());
    }
}
