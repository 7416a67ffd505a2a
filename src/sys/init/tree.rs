//! The processes below a process, as `/proc` has them: found, signalled, killed.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::os::{self, SIGCHLD, SIGKILL, SIGSTOP, Signals};

/// How long a tree is killed process by process and group by group before everything else in the
/// container is killed with it, if it becomes more meanwhile. Ordinary trees take a millisecond or two.
const PATIENCE: Duration = Duration::from_millis(700);
/// How long a tree is killed at all.
pub const LIMIT: Duration = Duration::from_millis(2500);
/// How often a signal is sent to those that came up while it was sent.
const SIGNAL_PASSES: usize = 8;
/// The longest line that says what a process is, with a name of 16 bytes, is shorter.
const STAT_BYTES: usize = 1024;

/// The file system of processes, opened before any step can mount something over it.
pub struct Tree {
    proc: Option<File>,
    /// Whether all other processes that we see are of this container.
    is_namespace: bool,
}

/// A process when it was looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Process {
    pid: i32,
    parent: i32,
    group: i32,
    state: u8,
    threads: u32,
    /// When it started, which distinguishes it from a later one of its number.
    start: u64,
}

impl Process {
    fn identity(&self) -> (i32, u64) {
        (self.pid, self.start)
    }

    /// Returns whether it is not only waiting to be collected. Its first thread, whose the state is, may have
    /// ended before others.
    fn is_alive(&self) -> bool {
        !matches!(self.state, b'Z' | b'X') || self.threads > 1
    }

    /// Returns whether it does nothing before it is continued or killed.
    fn is_stopped(&self) -> bool {
        matches!(self.state, b'T' | b't')
    }
}

impl Tree {
    pub(crate) fn open() -> Self {
        Tree { proc: File::open("/proc").ok(), is_namespace: os::process_id() == 1 }
    }

    /// Sends a signal to every process below one, and to those that they make meanwhile.
    pub fn signal(&self, root: i32, signal: i32) {
        let mut done = BTreeSet::new();
        for _ in 0..SIGNAL_PASSES {
            let mut found = self.below(root, &[]);
            found.retain(|process| process.is_alive() && done.insert(process.identity()));
            if found.is_empty() {
                return;
            }
            for process in &found {
                self.send(process, signal);
            }
        }
    }

    /// Kills every process below one, except for some with all that is below them. `has_children`
    /// collects what ended, and returns whether there are children besides those. Returns whether
    /// all are dead.
    pub fn kill(&self, root: i32, except: &[i32], mut has_children: impl FnMut() -> bool) -> bool {
        let begun = Instant::now();
        let mut killed = BTreeSet::new();
        let mut multiplies = false;
        while has_children() {
            if begun.elapsed() > LIMIT {
                return false;
            }
            let mut found = self.below(root, except);
            let mut alive = found.iter().filter(|process| process.is_alive());
            multiplies |= !killed.is_empty() && alive.any(|p| !killed.contains(&p.identity()));
            if multiplies && self.is_namespace && begun.elapsed() > PATIENCE {
                // Whoever is never where it was seen cannot get out of the way of this.
                let _ = os::kill(-1, SIGKILL);
            } else if multiplies {
                found = self.stop(root, except, begun + PATIENCE);
            }
            self.kill_once(root, &found);
            killed.extend(found.iter().map(Process::identity));
            os::wait_signal(Signals::of(&[SIGCHLD]), Some(Duration::from_millis(1)));
        }
        true
    }

    /// Returns whether a process has children but for these.
    pub fn has_children(&self, parent: i32, except: &[i32]) -> bool {
        let is_other = |p: &Process| p.parent == parent && !except.contains(&p.pid);
        self.all().iter().any(is_other)
    }

    /// Kills processes, and groups of them as a whole: a group cannot fork while it is killed.
    fn kill_once(&self, root: i32, found: &[Process]) {
        let mut groups: Vec<i32> = found.iter().map(|process| process.group).collect();
        groups.sort_unstable();
        groups.dedup();
        let own = self.look(root).map(|process| process.group);
        for group in groups.into_iter().filter(|group| *group > 1 && Some(*group) != own) {
            let _ = os::kill(-group, SIGKILL);
        }
        for process in found.iter().filter(|process| process.is_alive()) {
            self.send(process, SIGKILL);
        }
    }

    /// Stops processes that become more while they are killed, until all are, and returns them: those
    /// that are stopped keep their places, so that the others run against the limit of processes.
    fn stop(&self, root: i32, except: &[i32], until: Instant) -> Vec<Process> {
        loop {
            let found = self.below(root, except);
            let mut running = found.iter().filter(|p| p.is_alive() && !p.is_stopped()).peekable();
            if running.peek().is_none() || Instant::now() > until {
                return found;
            }
            for process in running {
                self.send(process, SIGSTOP);
            }
        }
    }

    /// Sends a signal to a process, unless its number is another's by now.
    fn send(&self, process: &Process, signal: i32) {
        let Some(directory) = self.directory(process.pid) else { return };
        if read_stat(directory.as_fd()).is_some_and(|now| now.identity() == process.identity()) {
            let _ = os::signal_by_directory(directory.as_fd(), signal);
        }
    }

    /// Returns the processes below one, except for some with all that is below them.
    fn below(&self, root: i32, except: &[i32]) -> Vec<Process> {
        let mut all = self.all();
        all.sort_unstable_by_key(|process| process.parent);
        let mut found: Vec<Process> = Vec::new();
        let mut at = 0;
        let mut parent = root;
        loop {
            let first = all.partition_point(|process| process.parent < parent);
            let children = all[first..].iter().take_while(|process| process.parent == parent);
            found
                .extend(children.filter(|child| child.pid != root && !except.contains(&child.pid)));
            // A loop is not possible but for one process that took the number of another meanwhile.
            let Some(next) = found.get(at).filter(|_| found.len() <= all.len()) else { break };
            parent = next.pid;
            at += 1;
        }
        found
    }

    fn all(&self) -> Vec<Process> {
        let mut all = Vec::new();
        // Each time anew, since a directory has a position.
        let Some(proc) = self.open_at(c".") else { return all };
        os::each_number(proc.as_fd(), |pid| all.extend(self.look(pid)));
        all
    }

    fn look(&self, pid: i32) -> Option<Process> {
        read_stat_at(self.proc.as_ref()?.as_fd(), &format!("{pid}/stat"))
    }

    fn directory(&self, pid: i32) -> Option<OwnedFd> {
        self.open_at(&CString::new(pid.to_string()).ok()?)
    }

    fn open_at(&self, path: &std::ffi::CStr) -> Option<OwnedFd> {
        os::open_at(self.proc.as_ref()?.as_fd(), path).ok()
    }
}

fn read_stat(directory: BorrowedFd<'_>) -> Option<Process> {
    read_stat_at(directory, "stat")
}

fn read_stat_at(directory: BorrowedFd<'_>, path: &str) -> Option<Process> {
    let mut file = File::from(os::open_at(directory, &CString::new(path).ok()?).ok()?);
    let mut text = [0; STAT_BYTES];
    let count = file.read(&mut text).ok()?;
    parse_stat(&text[..count])
}

/// Reads `PID (NAME) STATE PARENT GROUP SESSION …`, where a name may have anything in it.
fn parse_stat(text: &[u8]) -> Option<Process> {
    let open = text.iter().position(|byte| *byte == b'(')?;
    let close = text.iter().rposition(|byte| *byte == b')')?;
    let pid = str::from_utf8(text.get(..open)?).ok()?.trim().parse().ok()?;
    let mut fields = str::from_utf8(text.get(close + 1..)?).ok()?.split_ascii_whitespace();
    let state = *fields.next()?.as_bytes().first()?;
    let parent = fields.next()?.parse().ok()?;
    let group = fields.next()?.parse().ok()?;
    let threads = fields.nth(14)?.parse().ok()?;
    let start = fields.nth(1)?.parse().ok()?;
    Some(Process { pid, parent, group, state, threads, start })
}
