//! The descendants of a process, found in `/proc`, signalled and killed.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read as _;
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use rustix::fs::{Dir, Mode, OFlags, openat};

use crate::os::{self, SIGCHLD, SIGKILL, SIGSTOP, SignalSet};

/// Time for killing the processes and process groups of a tree one by one. If the tree still
/// creates processes then, all processes of the container are killed, unless others are visible
/// too. Ordinary trees take a millisecond or two.
const PATIENCE: Duration = Duration::from_millis(700);
/// Time limit of killing a tree.
pub const LIMIT: Duration = Duration::from_secs(20);
/// Maximum number of times that a tree is searched for new processes to send a signal to.
const SIGNAL_PASSES: usize = 8;
/// Size of the buffer for `/proc/PID/stat`, whose process name has up to 16 bytes: larger than any.
const STAT_BYTES: usize = 1024;

/// The processes in `/proc`, which is opened before a step can mount over it.
pub struct ProcessTree {
    proc: Option<File>,
    /// Set if all other visible processes belong to this container.
    is_namespace: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct TreeProcess {
    pid: i32,
    parent: i32,
    group: i32,
    state: u8,
    threads: u32,
    /// Start time, which distinguishes the process from a later one with its id.
    start: u64,
}

impl TreeProcess {
    fn identity(&self) -> (i32, u64) {
        (self.pid, self.start)
    }

    /// Returns whether the process is more than a zombie. The state is that of the first thread,
    /// which may exit before others.
    fn is_alive(&self) -> bool {
        !matches!(self.state, b'Z' | b'X') || self.threads > 1
    }

    /// Returns whether the process does nothing until it is continued or killed.
    fn is_stopped(&self) -> bool {
        matches!(self.state, b'T' | b't')
    }
}

impl ProcessTree {
    pub fn open() -> Self {
        ProcessTree { proc: File::open("/proc").ok(), is_namespace: os::process_id() == 1 }
    }

    /// Sends a signal to all descendants of a process, including those created meanwhile.
    pub fn signal(&self, root: i32, signal: i32) {
        let mut done = BTreeSet::new();
        for _ in 0..SIGNAL_PASSES {
            let mut found = self.descendants(root, &[]);
            found.retain(|process| process.is_alive() && done.insert(process.identity()));
            if found.is_empty() {
                return;
            }
            for process in &found {
                self.send(process, signal);
            }
        }
    }

    /// Kills all descendants of a process, except some with their descendants. `has_children` reaps
    /// children, and returns whether there are others than the exceptions. Returns whether all are
    /// dead.
    pub fn kill(&self, root: i32, except: &[i32], mut has_children: impl FnMut() -> bool) -> bool {
        let begun = Instant::now();
        let mut killed = BTreeSet::new();
        let mut multiplies = false;
        while has_children() {
            if begun.elapsed() > LIMIT {
                return false;
            }
            let mut found = self.descendants(root, except);
            let mut alive = found.iter().filter(|process| process.is_alive());
            multiplies |= !killed.is_empty() && alive.any(|p| !killed.contains(&p.identity()));
            if multiplies && self.is_namespace && begun.elapsed() > PATIENCE {
                // Processes that keep moving by forking cannot escape this.
                let _ = os::kill(-1, SIGKILL);
            } else if multiplies {
                found = self.stop(root, except, begun + PATIENCE);
            }
            self.kill_once(root, &found);
            killed.extend(found.iter().map(TreeProcess::identity));
            os::wait_signal(SignalSet::of(&[SIGCHLD]), Some(Duration::from_millis(1)));
        }
        true
    }

    /// Returns whether a process has children other than these.
    pub fn has_children(&self, parent: i32, except: &[i32]) -> bool {
        let is_other = |p: &TreeProcess| p.parent == parent && !except.contains(&p.pid);
        self.all_processes().iter().any(is_other)
    }

    /// Kills processes, and groups of them as a whole: a group cannot fork while it is killed.
    fn kill_once(&self, root: i32, found: &[TreeProcess]) {
        let mut groups: Vec<i32> = found.iter().map(|process| process.group).collect();
        groups.sort_unstable();
        groups.dedup();
        let own = self.read_process(root).map(|process| process.group);
        for group in groups.into_iter().filter(|group| *group > 1 && Some(*group) != own) {
            let _ = os::kill(-group, SIGKILL);
        }
        for process in found.iter().filter(|process| process.is_alive()) {
            self.send(process, SIGKILL);
        }
    }

    /// Stops processes that multiply while they are killed. Returns them once all are stopped, or
    /// at `until`. Stopped processes still count for the limit of processes, which the others then
    /// reach.
    fn stop(&self, root: i32, except: &[i32], until: Instant) -> Vec<TreeProcess> {
        loop {
            let found = self.descendants(root, except);
            let mut running = found.iter().filter(|p| p.is_alive() && !p.is_stopped()).peekable();
            if running.peek().is_none() || Instant::now() > until {
                return found;
            }
            for process in running {
                self.send(process, SIGSTOP);
            }
        }
    }

    /// Sends a signal to a process, unless its id has been reused.
    fn send(&self, process: &TreeProcess, signal: i32) {
        let pid = process.pid.to_string();
        let Some(directory) = self.proc.as_ref().and_then(|proc| open_at(proc, &pid)) else {
            return;
        };
        let now = read_stat_at(&directory, "stat");
        if now.is_some_and(|now| now.identity() == process.identity()) {
            let _ = os::signal_by_directory(directory.as_fd(), signal);
        }
    }

    /// Returns the descendants of a process, except some with their descendants.
    fn descendants(&self, root: i32, except: &[i32]) -> Vec<TreeProcess> {
        let mut all = self.all_processes();
        all.sort_unstable_by_key(|process| process.parent);
        let mut found: Vec<TreeProcess> = Vec::new();
        let mut at = 0;
        let mut parent = root;
        loop {
            let first = all.partition_point(|process| process.parent < parent);
            let children = all[first..].iter().take_while(|process| process.parent == parent);
            found
                .extend(children.filter(|child| child.pid != root && !except.contains(&child.pid)));
            // A cycle is only possible if a process id was reused meanwhile.
            let Some(next) = found.get(at).filter(|_| found.len() <= all.len()) else { break };
            parent = next.pid;
            at += 1;
        }
        found
    }

    fn all_processes(&self) -> Vec<TreeProcess> {
        let mut all = Vec::new();
        let Some(entries) = self.proc.as_ref().and_then(|proc| Dir::read_from(proc).ok()) else {
            return all;
        };
        // The caller looks again until no process is left.
        for entry in entries.map_while(Result::ok) {
            let pid = entry.file_name().to_str().ok().and_then(|name| name.parse().ok());
            all.extend(pid.and_then(|pid| self.read_process(pid)));
        }
        all
    }

    fn read_process(&self, pid: i32) -> Option<TreeProcess> {
        read_stat_at(self.proc.as_ref()?, &format!("{pid}/stat"))
    }
}

fn open_at(directory: &File, path: &str) -> Option<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    openat(directory, path, flags, Mode::empty()).ok().map(File::from)
}

fn read_stat_at(directory: &File, path: &str) -> Option<TreeProcess> {
    let mut text = [0; STAT_BYTES];
    let count = open_at(directory, path)?.read(&mut text).ok()?;
    parse_stat(&text[..count])
}

/// Parses `PID (NAME) STATE PARENT GROUP SESSION …`, where the name may contain any character.
fn parse_stat(text: &[u8]) -> Option<TreeProcess> {
    let open = text.iter().position(|byte| *byte == b'(')?;
    let close = text.iter().rposition(|byte| *byte == b')')?;
    let pid = str::from_utf8(text.get(..open)?).ok()?.trim().parse().ok()?;
    let mut fields = str::from_utf8(text.get(close + 1..)?).ok()?.split_ascii_whitespace();
    let state = *fields.next()?.as_bytes().first()?;
    let parent = fields.next()?.parse().ok()?;
    let group = fields.next()?.parse().ok()?;
    let threads = fields.nth(14)?.parse().ok()?;
    let start = fields.nth(1)?.parse().ok()?;
    Some(TreeProcess { pid, parent, group, state, threads, start })
}
