//! The processes that hold a pipe open, and whether they may still write to it.
//!
//! At the end of a job, `tee` is about to print its last lines, and a server that was started for the
//! tests is not; both sleep and hold the pipe. What they wait for tells them apart. A process is heard out
//! unless it is certain that it sleeps for longer than that, or it is a service: it listens on a socket,
//! so others have to ask it for something. A process that waits for its children, or reads a pipe, goes
//! on if one of those does at the other end. All else may write at any moment.
//!
//! See proc_pid_stat(5), proc_pid_syscall(5) and proc_pid_net(5). What cannot be read, as without
//! permission, counts as about to write.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Frequency of the start times in `/proc/PID/stat`: `USER_HZ`, the same on all architectures.
const TICKS_PER_SECOND: u64 = 100;

/// Flag of `clock_nanosleep`: until a time, not for a duration.
const TIMER_ABSTIME: u64 = 1;

/// Column of the state in `/proc/net/tcp`, and a socket that listens.
const TCP_LISTEN: (usize, &str) = (3, "0A");

/// Column of the flags in `/proc/net/unix`, and a socket that listens.
const UNIX_LISTEN: (usize, &str) = (3, "00010000");

/// Returns whether any process but this one may write to one of these pipes within this time.
pub(super) fn may_write<'a>(pipes: impl Iterator<Item = BorrowedFd<'a>>, within: Duration) -> bool {
    let inodes: BTreeSet<u64> =
        pipes.filter_map(|pipe| Some(rustix::fs::fstat(pipe.as_fd()).ok()?.st_ino)).collect();
    let processes = processes();
    let is_holder = |process: &Process| process.pipes.values().any(|pipe| inodes.contains(pipe));
    let mut view = View { processes: &processes, within, asleep: BTreeSet::new() };
    processes.values().filter(|process| is_holder(process)).any(|process| !view.sleeps(process))
}

/// A process that is not a zombie.
#[derive(Debug)]
struct Process {
    pid: i32,
    parent: i32,
    is_sleeping: bool,
    /// Time since boot when it was started.
    start: Duration,
    /// Inodes of pipes by descriptor.
    pipes: BTreeMap<u64, u64>,
    /// Inodes of sockets.
    sockets: BTreeSet<u64>,
}

struct View<'a> {
    processes: &'a BTreeMap<i32, Process>,
    within: Duration,
    /// Processes that sleep unless one that they wait for does not: those that wait for each other do.
    asleep: BTreeSet<i32>,
}

impl View<'_> {
    /// Returns whether a process certainly says nothing for now.
    fn sleeps(&mut self, process: &Process) -> bool {
        if !process.is_sleeping {
            return false;
        }
        if !self.asleep.insert(process.pid) {
            return true;
        }
        let threads = threads(process.pid);
        if is_service(process) {
            return threads.iter().all(|thread| {
                stat(&thread_dir(process.pid, *thread)).is_some_and(|stat| stat.is_sleeping)
            });
        }
        let [thread] = threads[..] else { return false };
        let Some(call) = Call::of(&thread_dir(process.pid, thread)) else { return false };
        if let Some(wakes) = call.wakes(process) {
            return wakes > self.within;
        }
        let processes = self.processes.values();
        let others: Vec<&Process> = if call.is_wait() {
            processes.filter(|other| other.parent == process.pid).collect()
        } else if call.number == libc::SYS_read {
            let Some(pipe) = process.pipes.get(&call.arguments[0]) else { return false };
            processes
                .filter(|other| other.pid != process.pid && other.pipes.values().any(|p| p == pipe))
                .collect()
        } else {
            return false;
        };
        // Without any, it is about to learn that there are none.
        !others.is_empty() && others.into_iter().all(|other| self.sleeps(other))
    }
}

/// The system call in which a thread sleeps.
struct Call {
    number: libc::c_long,
    arguments: [u64; 4],
}

impl Call {
    fn of(thread: &str) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("{thread}/syscall")).ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_ascii_whitespace();
        let number = words.next()?.parse().ok()?;
        let mut arguments = [0; 4];
        for argument in &mut arguments {
            *argument = u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()?;
        }
        Some(Call { number, arguments })
    }

    fn is_wait(&self) -> bool {
        // The last is how dash waits.
        [libc::SYS_wait4, libc::SYS_waitid, libc::SYS_rt_sigsuspend].contains(&self.number)
    }

    /// Returns after what time a process that just sleeps goes on, at the earliest.
    fn wakes(&self, process: &Process) -> Option<Duration> {
        #[cfg(target_arch = "x86_64")]
        if self.number == libc::SYS_pause {
            return Some(Duration::MAX);
        }
        let [clock, flags, time, _] = self.arguments;
        let (clock, time) = match self.number {
            libc::SYS_nanosleep => (None, clock),
            libc::SYS_clock_nanosleep if flags == TIMER_ABSTIME => (Some(clock), time),
            libc::SYS_clock_nanosleep => (None, time),
            _ => return None,
        };
        let time = timespec(process.pid, time)?;
        let (begun, clock) = match clock {
            // It began when the process did, or later.
            None => (process.start, ClockId::Boottime),
            Some(0) => (Duration::ZERO, ClockId::Realtime),
            Some(1) => (Duration::ZERO, ClockId::Monotonic),
            Some(_) => return None,
        };
        Some(begun.saturating_add(time).saturating_sub(now(clock)))
    }
}

fn now(clock: ClockId) -> Duration {
    Duration::try_from(clock_gettime(clock)).unwrap_or_default()
}

/// Reads a `struct timespec` of a process with the same width of words.
fn timespec(pid: i32, address: u64) -> Option<Duration> {
    let mut bytes = [0; size_of::<[libc::c_long; 2]>()];
    File::open(format!("/proc/{pid}/mem")).ok()?.read_exact_at(&mut bytes, address).ok()?;
    let (seconds, nanoseconds) = bytes.split_at(size_of::<libc::c_long>());
    let number = |bytes: &[u8]| Some(libc::c_long::from_ne_bytes(bytes.try_into().ok()?));
    let (seconds, nanoseconds) = (number(seconds)?, number(nanoseconds)?);
    let nanoseconds = u32::try_from(nanoseconds).ok().filter(|part| *part < 1_000_000_000)?;
    Some(Duration::new(u64::try_from(seconds).ok()?, nanoseconds))
}

/// Returns all processes but this one whose descriptors can be read.
fn processes() -> BTreeMap<i32, Process> {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    let pids = numbers("/proc").into_iter().filter(|pid| *pid != own);
    pids.filter_map(|pid| Some((pid, process(pid)?))).collect()
}

fn process(pid: i32) -> Option<Process> {
    let Stat { parent, start, is_sleeping } = stat(&format!("/proc/{pid}"))?;
    let (mut pipes, mut sockets) = (BTreeMap::new(), BTreeSet::new());
    for entry in fs::read_dir(format!("/proc/{pid}/fd")).ok()? {
        let Ok(entry) = entry else { continue };
        let Ok(target) = fs::read_link(entry.path()) else { continue };
        let Some((kind, inode)) = target.to_str().and_then(|target| target.split_once(":[")) else {
            continue;
        };
        let Some(inode) = inode.strip_suffix(']').and_then(|inode| inode.parse().ok()) else {
            continue;
        };
        match kind {
            "pipe" => {
                let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
                pipes.extend(number.map(|number| (number, inode)));
            }
            "socket" => {
                sockets.insert(inode);
            }
            _ => {}
        }
    }
    Some(Process { pid, parent, is_sleeping, start, pipes, sockets })
}

fn numbers(dir: &str) -> Vec<i32> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

fn threads(pid: i32) -> Vec<i32> {
    numbers(&format!("/proc/{pid}/task"))
}

fn thread_dir(pid: i32, thread: i32) -> String {
    format!("/proc/{pid}/task/{thread}")
}

#[derive(Debug, PartialEq, Eq)]
struct Stat {
    parent: i32,
    start: Duration,
    is_sleeping: bool,
}

/// Reads the state of a process or thread; none if it has ended.
fn stat(dir: &str) -> Option<Stat> {
    parse_stat(&String::from_utf8_lossy(&fs::read(format!("{dir}/stat")).ok()?))
}

/// The name is in parentheses and may contain any character.
fn parse_stat(text: &str) -> Option<Stat> {
    let mut fields = text.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    let parent = fields.next()?.parse().ok()?;
    let ticks: u64 = fields.nth(17)?.parse().ok()?;
    let start = Duration::from_millis(ticks.saturating_mul(1000 / TICKS_PER_SECOND));
    Some(Stat { parent, start, is_sleeping: state == "S" })
}

/// Returns whether a process listens on a socket of its network namespace.
fn is_service(process: &Process) -> bool {
    let listens = |name: &str, (column, value): (usize, &str), inode: usize| {
        let Ok(table) = fs::read_to_string(format!("/proc/{}/net/{name}", process.pid)) else {
            return false;
        };
        table.lines().skip(1).any(|line| {
            let mut words = line.split_ascii_whitespace();
            let is_listening = words.nth(column) == Some(value);
            let inode = words.nth(inode - column - 1).and_then(|inode| inode.parse().ok());
            is_listening && inode.is_some_and(|inode: u64| process.sockets.contains(&inode))
        })
    };
    !process.sockets.is_empty()
        && (listens("tcp", TCP_LISTEN, 9)
            || listens("tcp6", TCP_LISTEN, 9)
            || listens("unix", UNIX_LISTEN, 6))
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::process::CommandExt as _;
    use std::process::{Command, Stdio};
    use std::time::Instant;

    use super::*;

    const WITHIN: Duration = Duration::from_secs(5);

    /// A shell that holds a pipe; it and what it started are killed in the end.
    struct Holder {
        pipe: OwnedFd,
        shell: std::process::Child,
    }

    impl Holder {
        fn start(program: &str, arguments: &[&str]) -> Self {
            let mut shell = Command::new(program);
            let shell = shell.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped());
            let mut shell = shell.process_group(0).spawn().unwrap();
            Holder { pipe: shell.stdout.take().unwrap().into(), shell }
        }

        fn may_write(&self) -> bool {
            may_write([self.pipe.as_fd()].into_iter(), WITHIN)
        }
    }

    impl Drop for Holder {
        fn drop(&mut self) {
            let group = rustix::process::Pid::from_child(&self.shell);
            rustix::process::kill_process_group(group, rustix::process::Signal::KILL).unwrap();
            self.shell.wait().unwrap();
        }
    }

    #[track_caller]
    fn wait_until(mut is_true: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(120);
        while !is_true() {
            assert!(Instant::now() < deadline);
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }

    #[test]
    fn who_sleeps_for_longer_or_waits_for_one_who_does_says_nothing() {
        for script in [
            "exec sleep 1000",
            "sleep 1000; echo never",
            "sleep 1000 & wait; echo never",
            "sleep 1000 | cat",
            "(sleep 1000; echo never) 2>&1 | cat | cat",
        ] {
            let holder = Holder::start("sh", &["-c", script]);
            wait_until(|| !holder.may_write());
        }
    }

    #[test]
    fn who_listens_says_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let script = "import socket, sys\n\
             s = socket.socket(socket.AF_UNIX)\n\
             s.bind(sys.argv[1])\n\
             s.listen()\n\
             s.accept()";
        let holder = Holder::start("python3", &["-c", script, path.to_str().unwrap()]);
        wait_until(|| !holder.may_write());
        let script = "import socket\n\
             s = socket.create_server(('127.0.0.1', 0))\n\
             s.accept()";
        let holder = Holder::start("python3", &["-c", script]);
        wait_until(|| !holder.may_write());
    }

    #[test]
    fn who_works_or_wakes_in_time_is_heard() {
        // As long as they live: 100 times each.
        for script in [
            "while :; do :; done",
            "while :; do sleep 0.01; done",
            "while :; do sleep 0.01; done | cat",
            "sleep 4; exec sleep 4",
        ] {
            let holder = Holder::start("sh", &["-c", script]);
            for _ in 0..20 {
                assert!(holder.may_write(), "{script}");
            }
        }
    }

    #[test]
    fn a_pipe_that_nobody_holds_is_not_written_to() {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(writer);
        assert!(!may_write([reader.as_fd()].into_iter(), WITHIN));
    }

    #[test]
    fn a_process_is_known_whatever_its_name_is() {
        let text = "12 (a) Z (b) S 1 34 34 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 5678 0 0\n";
        let start = Duration::from_millis(56_780);
        assert_eq!(parse_stat(text), Some(Stat { parent: 1, start, is_sleeping: true }));
        assert_eq!(parse_stat("12 (a) Z 1 34"), None);
        assert_eq!(parse_stat("nonsense"), None);
    }
}
