//! Identifies processes by their PID and start time, because PIDs are reused; waits for them and kills them. All
//! records of running processes use it.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, io};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, geteuid, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use super::processes::{ProcessSnapshot, read_at_most, read_lossy, status_field};

/// Size from which on the command line of a process is skipped in searches, in bytes.
const COMMAND_LINE_BYTES: u64 = 64 << 10;

/// Time to wait for the parent of a process to end, so that this process adopts the orphan.
const ADOPTION: Duration = Duration::from_secs(10);

/// A process, distinguished by its start time from a later process with the same PID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessIdentity {
    pub pid: u32,
    /// Start time in clock ticks since the boot: field 22 of `/proc/PID/stat`.
    pub start: u64,
}

impl ProcessIdentity {
    /// Returns the identity of the process that has this PID now, if it exists.
    pub fn of(pid: u32) -> Option<Self> {
        Some(ProcessSnapshot::of(pid)?.identity())
    }

    /// Returns the identity of a child, or of an orphan that this process has adopted or soon adopts, by the PID
    /// in a file; `None` if the PID belongs to an unrelated process. The PID of a child is not reused before this
    /// process has reaped it.
    pub fn of_child(pid: u32) -> Option<Self> {
        let process = ProcessIdentity::of(pid)?;
        let end = Instant::now() + ADOPTION;
        // If the parent ends meanwhile, the process has a new parent.
        for _ in 0..100 {
            let Some(parent) = process.parent() else { continue };
            if parent.pid == std::process::id() {
                return Some(process);
            }
            // crun exits shortly before its child that is the parent.
            if let Some(parent) = parent.open() {
                wait(&parent, end.saturating_duration_since(Instant::now())).ok()?;
            }
        }
        None
    }

    /// Returns the identity of a container process, given the PID that the runtime wrote, and a
    /// process `first` that is known to be in the container. `None` if either process has ended, or
    /// if the PID now belongs to a process outside of the PID namespace of `first`.
    pub fn of_container(pid: u32, first: ProcessIdentity) -> Option<Self> {
        let process = ProcessIdentity::of(pid)?;
        let namespace = |id: u32| fs::read_link(format!("/proc/{id}/ns/pid")).ok();
        let is_in = namespace(pid).is_some_and(|found| Some(found) == namespace(first.pid));
        // Both still run, so that neither PID was reused in between.
        (is_in && process.is_running() && first.is_running()).then_some(process)
    }

    /// Returns the processes whose command lines contain all of these arguments, in any order.
    /// Command lines of 64 KiB or more are skipped: runtimes and the programs of this project have
    /// shorter ones.
    pub fn with_words(words: &[&OsStr]) -> io::Result<Vec<Self>> {
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc")? {
            let Ok(Ok(pid)) = entry?.file_name().into_string().map(|name| name.parse()) else {
                continue;
            };
            // Before the command line, to notice if the PID is reused meanwhile.
            let Some(process) = ProcessIdentity::of(pid) else { continue };
            let line = read_at_most(format!("/proc/{pid}/cmdline"), COMMAND_LINE_BYTES);
            let Some(line) = line.ok().filter(|line| (line.len() as u64) < COMMAND_LINE_BYTES)
            else {
                continue;
            };
            let has = |word: &&OsStr| line.split(|&byte| byte == 0).any(|it| it == word.as_bytes());
            if words.iter().all(has) && process.is_running() {
                found.push(process);
            }
        }
        Ok(found)
    }

    /// Returns whether the process exists and is not a zombie.
    pub fn is_running(&self) -> bool {
        self.is_running_in(Path::new("/proc"))
    }

    fn is_running_in(&self, proc: &Path) -> bool {
        // An orphan may stay a zombie for seconds if its parent does not reap it at once.
        let now = ProcessSnapshot::in_proc(proc, self.pid);
        now.is_some_and(|now| now.start == self.start && !now.is_zombie)
    }

    /// Returns whether the process runs and is not exiting: a killed process may exist for a while without
    /// running, as until the kernel has removed its network interface.
    pub fn is_working(&self) -> bool {
        let now = ProcessSnapshot::of(self.pid);
        now.is_some_and(|now| now.start == self.start && !now.is_zombie && !now.is_exiting)
    }

    /// Opens a pidfd of the process; `None` if it has ended.
    pub fn open(&self) -> Option<OwnedFd> {
        let pid = Pid::from_raw(i32::try_from(self.pid).ok()?)?;
        let fd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        // Compared after opening: a pidfd always refers to the same process.
        self.is_running().then_some(fd)
    }

    /// Kills the process without waiting for its end.
    pub fn kill_soon(&self) -> io::Result<()> {
        let Some(fd) = self.open() else { return Ok(()) };
        match pidfd_send_signal(&fd, Signal::KILL) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Kills the process and waits for its end.
    ///
    /// # Errors
    ///
    /// `TimedOut` if the process still exists after the timeout.
    pub fn kill(&self, timeout: Duration) -> io::Result<()> {
        let Some(fd) = self.open() else { return Ok(()) };
        match pidfd_send_signal(&fd, Signal::KILL) {
            Ok(()) | Err(Errno::SRCH) => {}
            Err(error) => return Err(error.into()),
        }
        if wait(&fd, timeout)? { Ok(()) } else { Err(io::ErrorKind::TimedOut.into()) }
    }

    /// Returns whether the process runs and all its user ids are this user's. Otherwise its command
    /// line proves nothing: other users can start any program with any arguments, including
    /// set-user-ID programs of this user.
    pub fn is_of_this_user(&self) -> bool {
        let status = read_lossy(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        let own = geteuid().as_raw().to_string();
        let ids = status_field(&status, "Uid");
        ids.is_some_and(|ids| ids.split_whitespace().all(|id| id == own)) && self.is_running()
    }

    /// Returns the path of the program that the process runs, if it is readable.
    pub fn program(&self) -> Option<PathBuf> {
        fs::read_link(format!("/proc/{}/exe", self.pid)).ok()
    }

    /// Returns the parent process.
    pub fn parent(&self) -> Option<Self> {
        ProcessIdentity::of(ProcessSnapshot::of(self.pid)?.parent)
    }

    /// Returns the command name (`comm`) of the process, at most 15 bytes.
    pub fn name(&self) -> Option<String> {
        let text = read_lossy(format!("/proc/{}/comm", self.pid)).ok()?;
        Some(text.trim_end().to_owned())
    }
}

/// The PID namespace in which recorded PIDs are valid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PidNamespace {
    /// The PID namespace of this process.
    #[default]
    Own,
    /// A child namespace, by the identity of its init process in this namespace; it has mounted its own `/proc`.
    Below(ProcessIdentity),
    /// A namespace whose init process has ended, and with it all processes.
    Ended,
}

impl PidNamespace {
    /// Returns whether a process of the namespace exists and is not a zombie.
    pub fn is_running(self, process: ProcessIdentity) -> bool {
        match self {
            PidNamespace::Own => process.is_running(),
            PidNamespace::Below(first) => {
                let proc = format!("/proc/{}/root/proc", first.pid);
                // The init process is checked last, to notice if its PID was reused meanwhile.
                process.is_running_in(Path::new(&proc)) && first.is_running()
            }
            PidNamespace::Ended => false,
        }
    }

    /// Returns whether a process is in this namespace, and not in one nested in it. Its PID is that in the namespace
    /// of the caller.
    pub fn contains(self, process: ProcessIdentity) -> bool {
        let member = match self {
            PidNamespace::Own => ProcessIdentity::of(std::process::id()),
            PidNamespace::Below(first) => Some(first),
            PidNamespace::Ended => None,
        };
        member.is_some_and(|member| {
            ProcessIdentity::of_container(process.pid, member) == Some(process)
        })
    }
}

/// Waits until a descriptor is readable, as a pidfd is once its process has ended; returns whether it is before the
/// timeout.
pub fn wait(file: &OwnedFd, timeout: Duration) -> io::Result<bool> {
    let end = Instant::now() + timeout;
    loop {
        let left = Timespec::try_from(end.saturating_duration_since(Instant::now())).ok();
        match poll(&mut [PollFd::new(file, PollFlags::IN)], left.as_ref()) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Read as _};
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::{Command, Stdio};
    use std::thread;

    use oci_hooks_testsupport::descriptors::with_few_descriptors;
    use rustix::process::{getpid, set_child_subreaper};

    use super::*;

    /// Exceeds the time that a process takes to die on a busy machine.
    const LONG: Duration = Duration::from_secs(600);

    #[test]
    fn killed_process_is_not_running() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let identity = ProcessIdentity::of(child.id()).unwrap();
        assert!(identity.is_working());
        assert!(identity.is_running());
        assert_eq!(identity.parent().unwrap().pid, std::process::id());
        identity.kill(LONG).unwrap();
        // Still a zombie: this process has not reaped the child.
        assert!(!identity.is_running() && !identity.is_working());
        assert!(identity.open().is_none());
        child.wait().unwrap();
        identity.kill(Duration::ZERO).unwrap();
    }

    #[test]
    fn process_is_found_by_words_of_its_command_line() {
        let unique = format!("found-by-its-words-{}", std::process::id());
        let mut child = Command::new("sh");
        let child = child.args(["-c", "echo; read line; :", &unique]);
        let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        // The command line is empty for a moment after the program was executed.
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let find = |words: &[&str]| {
            let words: Vec<_> = words.iter().map(OsStr::new).collect();
            ProcessIdentity::with_words(&words).unwrap()
        };
        let own = ProcessIdentity::of(child.id()).unwrap();
        assert_eq!(find(&[&unique, "-c"]), [own]);
        assert_eq!(find(&[&unique, "create"]), []);
        assert_eq!(find(&[&unique[1..]]), []);
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(find(&[&unique]), []);
    }

    #[test]
    fn process_with_a_name_that_is_not_utf8_is_seen_and_killed() {
        let script = "printf '\\377) Z' >/proc/$$/comm; echo; read line; :";
        let unique = format!("oddly-named-process-{}", std::process::id());
        let mut child = Command::new("sh");
        let child = child.args(["-c", script, &unique]);
        let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        assert_eq!(fs::read(format!("/proc/{}/comm", child.id())).unwrap(), b"\xff) Z\n");
        let process = ProcessIdentity::of(child.id()).unwrap();
        assert_eq!(process.parent().unwrap().pid, std::process::id());
        assert_eq!(process.name().unwrap(), "\u{fffd}) Z");
        assert!(process.is_working() && process.is_of_this_user());
        let words = [unique.as_str(), script].map(OsStr::new);
        assert_eq!(ProcessIdentity::with_words(&words).unwrap(), [process]);
        process.kill(LONG).unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(9));
    }

    #[test]
    fn processes_of_other_users_are_distinguished() {
        let own = ProcessIdentity::of(std::process::id()).unwrap();
        assert!(own.is_of_this_user());
        assert!(!ProcessIdentity { start: own.start + 1, ..own }.is_of_this_user());
        if !geteuid().is_root() {
            // The first process belongs to root.
            assert!(!ProcessIdentity::of(1).is_some_and(|first| first.is_of_this_user()));
            return;
        }
        // `--ruid` changes only the real id, as in a set-user-ID program that another user started.
        for ids in [&["--reuid=65534"][..], &["--ruid=65534"]] {
            let mut child = Command::new("setpriv");
            let child = child.args(ids).args(["sh", "-c", "echo; read line"]);
            let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
            child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
            assert!(!ProcessIdentity::of(child.id()).unwrap().is_of_this_user(), "{ids:?}");
            drop(child.stdin.take());
            child.wait().unwrap();
        }
    }

    #[test]
    fn only_a_child_is_found_as_a_child() {
        let mut child = Command::new("true").spawn().unwrap();
        let identity = ProcessIdentity::of_child(child.id()).expect("it is one, ended or not");
        identity.kill(LONG).unwrap();
        assert_eq!(ProcessIdentity::of_child(child.id()), Some(identity), "it was not collected");
        child.wait().unwrap();
        assert_eq!(ProcessIdentity::of_child(child.id()), None);
        assert_eq!(ProcessIdentity::of_child(u32::MAX), None);
    }

    #[test]
    fn orphan_is_found_immediately() {
        let test = "identity::tests::orphan_is_found_immediately";
        // Orphans become children of the whole test process.
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
            let finding = thread::spawn(move || ProcessIdentity::of_child(pid));
            // `of_child` waits for the parent to end.
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
            assert_eq!(found, ProcessIdentity::of(pid).unwrap());
            found.kill(LONG).unwrap();
            parent.wait().unwrap();
        });
    }

    #[test]
    fn process_of_another_namespace_is_not_in_the_container() {
        let own = ProcessIdentity::of(std::process::id()).unwrap();
        assert_eq!(ProcessIdentity::of_container(own.pid, own), Some(own));
        assert_eq!(ProcessIdentity::of_container(u32::MAX, own), None);
        if !geteuid().is_root() {
            // Only root can create a PID namespace without a user namespace.
            return;
        }
        let mut first = Command::new("unshare");
        let mut first = first.args(["--pid", "--fork", "sleep", "1000"]).spawn().unwrap();
        let children = format!("/proc/{0}/task/{0}/children", first.id());
        let inner = loop {
            let text = fs::read_to_string(&children).unwrap();
            if let Some(Ok(pid)) = text.split_whitespace().next().map(str::parse) {
                break ProcessIdentity::of(pid).unwrap();
            }
            thread::yield_now();
        };
        assert_eq!(ProcessIdentity::of_container(own.pid, inner), None);
        assert_eq!(ProcessIdentity::of_container(inner.pid, inner), Some(inner));
        assert!(PidNamespace::Own.contains(own) && !PidNamespace::Own.contains(inner));
        let below = PidNamespace::Below(inner);
        assert!(
            below.contains(inner) && !below.contains(own) && !PidNamespace::Ended.contains(own)
        );
        inner.kill(LONG).unwrap();
        assert_eq!(ProcessIdentity::of_container(inner.pid, inner), None);
        first.wait().unwrap();
    }

    #[test]
    fn first_process_sees_processes_of_nested_namespaces() {
        let own = ProcessIdentity::of(std::process::id()).unwrap();
        assert!(PidNamespace::Own.is_running(own) && !PidNamespace::Ended.is_running(own));
        // The process has the same `/proc` as the test.
        let mut first = Command::new("sleep").arg("1000").spawn().unwrap();
        let below = PidNamespace::Below(ProcessIdentity::of(first.id()).unwrap());
        assert!(below.is_running(own));
        assert!(!below.is_running(ProcessIdentity { start: own.start + 1, ..own }));
        first.kill().unwrap();
        first.wait().unwrap();
        assert!(!below.is_running(own), "all ended with it");
    }

    #[test]
    fn another_start_time_means_another_process() {
        let own = ProcessIdentity::of(std::process::id()).unwrap();
        assert!(own.is_running());
        assert!(!ProcessIdentity { start: own.start + 1, ..own }.is_running());
    }
}
