//! Finding and ending all processes of a job, those included that left its process groups.
//!
//! A process is a job's if it is in its cgroup, in a process group of one of its commands, has the job's mark
//! in its environment, or is a descendant of one that is. Where this process adopts orphans, one that has
//! wiped all that off is a job's too, if no other ran meanwhile.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, test_kill_process_group};
use rustix::time::{ClockId, clock_gettime};
use tracing::debug;

use crate::sys::cgroup::{Below, remove_recorded};
use crate::sys::fs::{random_u64, read_bounded};
use crate::sys::orphans;
use crate::sys::processes::{Process, with_descendants};

/// The environment variable by which processes of a job are known: the marks of the job, and of those in
/// which its step-runner is started, separated by `:`.
pub const MARK: &str = "STEP_RUNNER_JOB";

/// How long killed processes are waited for. Longer means that they hang in the kernel.
const KILL_TIMEOUT: Duration = Duration::from_secs(1);

/// How long new processes are killed that turn up instead of those that were.
const KILL_LIMIT: Duration = Duration::from_secs(10);

/// How often processes that were killed are looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// How often it is looked for processes, while none is found but others end.
const LOOKS: usize = 50;

/// How often new processes are looked for, while those that were found are stopped.
const ROUNDS: usize = 50;

/// Clock ticks per second in `/proc`, on all architectures.
const TICKS: u64 = 100;

/// How many jobs run in this process, and since when there is any, in clock ticks since the boot.
static BUSY: Mutex<(usize, u64)> = Mutex::new((0, 0));

/// What the processes of a job are known by.
#[derive(Debug, Default)]
struct Family {
    /// Only processes that started since are its own, in clock ticks since the boot.
    since: u64,
    mark: Option<String>,
    /// Process groups: id, and start of their leader.
    groups: Vec<(u32, u64)>,
    cgroup: Option<Below>,
    /// Whether the job runs in this process; if not, in one that is gone.
    busy: Option<Busy>,
}

/// A job that runs in this process, until this is dropped.
#[derive(Debug)]
struct Busy(());

impl Busy {
    pub(super) fn new() -> Self {
        let mut busy = BUSY.lock().unwrap_or_else(PoisonError::into_inner);
        if busy.0 == 0 {
            busy.1 = now();
        }
        busy.0 += 1;
        Busy(())
    }

    /// Returns since when only this job has run, if no other does now.
    fn alone_since(&self) -> Option<u64> {
        let (count, since) = *BUSY.lock().unwrap_or_else(PoisonError::into_inner);
        (count == 1).then_some(since)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        BUSY.lock().unwrap_or_else(PoisonError::into_inner).0 -= 1;
    }
}

/// Returns the time in clock ticks since the boot.
fn now() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    let part = u64::try_from(time.tv_nsec).unwrap_or_default() / (1_000_000_000 / TICKS);
    u64::try_from(time.tv_sec).unwrap_or_default() * TICKS + part
}

impl Family {
    /// Returns its processes that have not ended.
    pub fn left(&self) -> Vec<Process> {
        self.find(None)
    }

    /// Finds its processes, and has those that are known by themselves get a signal at once.
    fn find(&self, signal: Option<Signal>) -> Vec<Process> {
        let adopts = self.busy.is_some() && orphans::are_adopted();
        let mut settled = HashSet::new();
        for _ in 0..LOOKS {
            if adopts && orphans::has_no_children() {
                break;
            }
            let (found, is_sure) = self.look(adopts, signal, &mut settled);
            if !found.is_empty() || is_sure {
                return found;
            }
        }
        Vec::new()
    }

    /// Looks once at the descendants of this process if it adopts orphans, else at all processes.
    ///
    /// Returns also whether none ended meanwhile, which may have started another where it was looked already,
    /// and none became another program, which says nothing of itself for a moment. Those that were found so
    /// at an earlier look are settled.
    fn look(
        &self,
        adopts: bool,
        signal: Option<Signal>,
        settled: &mut HashSet<(u32, u64)>,
    ) -> (Vec<Process>, bool) {
        let own_pid = std::process::id();
        let own = Process::of(own_pid);
        let alone_since = self.busy.as_ref().and_then(Busy::alone_since).filter(|_| adopts);
        let descends = adopts && Process::has_lists_of_children();
        let mut is_sure = true;
        let mut all = Vec::new();
        let mut found: HashSet<u32> = HashSet::new();
        let mut lost = Vec::new();
        let mut pids: Vec<u32> = if descends {
            Process::children_of(own_pid)
        } else {
            Process::ids().filter(|pid| *pid != own_pid).collect()
        };
        // The newest first: they may be the ones that are soon gone.
        while let Some(pid) = pids.pop() {
            let Some(process) = Process::of(pid) else {
                is_sure = false;
                continue;
            };
            let is_new = process.start >= self.since;
            if is_new {
                all.push(process);
            }
            if process.is_zombie {
                is_sure &= !is_new || !settled.insert((pid, process.start));
                continue;
            }
            if is_new {
                let is_lost = || {
                    alone_since.is_some_and(|since| process.start >= since)
                        && own.is_some_and(|own| orphans::is_adopted(&process, &own))
                };
                match process.environment().as_deref().and_then(marks) {
                    Some(marks) if self.is_marked(marks) => {
                        // It may be about to start another.
                        signal.map(|signal| process.signal(signal));
                        found.insert(pid);
                    }
                    // What the command beside a server left, or another job.
                    Some(_) => {}
                    None if is_lost() => lost.push(pid),
                    None => {
                        is_sure &= process.is_running();
                        is_sure &= !settled.insert((pid, process.start));
                    }
                }
            }
            if descends {
                // Of one that is stopped, there come no more.
                pids.extend(Process::children_of(pid));
            }
        }
        if let Some(cgroup) = &self.cgroup {
            found.extend(cgroup.members());
            is_sure &= cgroup.is_empty();
        }
        found.extend(lost);
        found.extend(all.iter().filter(|it| self.has_group(it, &all)).map(|it| it.pid));
        found = with_descendants(&all, &found);
        all.retain(|process| found.contains(&process.pid) && !process.is_zombie);
        (all, is_sure)
    }

    /// Returns whether a process is in a group of the job, whose id was not given again.
    fn has_group(&self, process: &Process, all: &[Process]) -> bool {
        self.groups.iter().any(|(group, start)| {
            // Members start after their leader. An existing leader is the recorded one, or the id was reused.
            process.group == *group
                && process.start >= *start
                && all.iter().all(|other| other.pid != *group || other.start == *start)
        })
    }

    fn is_marked(&self, marks: &[u8]) -> bool {
        let Some(mark) = &self.mark else { return false };
        marks.split(|byte| *byte == b':').any(|found| found == mark.as_bytes())
    }

    /// Kills all its processes, and collects those that became children of this one.
    fn kill(&self) {
        let last = Instant::now() + KILL_LIMIT;
        let mut end = Instant::now() + KILL_TIMEOUT;
        let mut seen = HashSet::new();
        loop {
            if let Some(cgroup) = &self.cgroup {
                cgroup.kill();
            }
            let known = seen.len();
            let mut killed = self.stop(&mut seen);
            if killed.is_empty() {
                break;
            }
            if seen.len() > known {
                end = last.min(Instant::now() + KILL_TIMEOUT);
            }
            debug!(count = killed.len(), "kill what a job left");
            // Those of other users are beyond our means. One that had ended by then may have started another.
            killed.retain(|process| process.signal(Signal::KILL).is_ok_and(|sent| sent));
            thread::sleep(POLL_INTERVAL);
            while Instant::now() < end && killed.iter().any(Process::is_running) {
                thread::sleep(POLL_INTERVAL);
            }
            if Instant::now() >= end {
                break;
            }
        }
        // Of a job in another process, they became no children of this one.
        if self.busy.is_some() {
            seen.into_iter().for_each(orphans::forget);
        }
    }

    /// Stops its processes until there are no more: who forks faster than it is found does not escape.
    fn stop(&self, seen: &mut HashSet<u32>) -> Vec<Process> {
        let mut stopped: Vec<Process> = Vec::new();
        for _ in 0..ROUNDS {
            let mut new = self.find(Some(Signal::STOP));
            new.retain(|process| !stopped.contains(process));
            if new.is_empty() {
                break;
            }
            for process in &new {
                seen.insert(process.pid);
                let _ = process.signal(Signal::STOP);
            }
            // One that left the family in the meantime is to be killed still.
            stopped.extend(new);
        }
        stopped
    }
}

/// Returns the marks in an environment.
fn marks(environment: &[u8]) -> Option<&[u8]> {
    let mut variables = environment.split(|byte| *byte == 0);
    variables.find_map(|variable| variable.strip_prefix(MARK.as_bytes())?.strip_prefix(b"="))
}

/// File in a job's directory with what its processes are known by: a line for its mark, its cgroup, and
/// each of its process groups.
const RECORD: &str = "groups";

/// Limit of a record that is read in bytes: that of millions of commands.
const RECORD_BYTES: u64 = 64 << 20;

/// What names of cgroups begin with.
const CGROUP: &str = "step-runner-";

/// Poll interval for the exit of processes that were signalled.
const EXIT_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The processes of a job.
#[derive(Debug)]
pub struct Groups {
    record: File,
    mark: String,
    family: Family,
}

impl Groups {
    pub(super) fn new(scratch: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let mut record =
            options.append(true).create(true).mode(0o600).open(scratch.join(RECORD))?;
        let mark = format!("{:016x}", random_u64());
        let since = now();
        writeln!(record, "mark {mark} {since}")?;
        let cgroup = Below::make(&format!("{CGROUP}{mark}"));
        if let Some(path) = cgroup.as_ref().and_then(|cgroup| cgroup.path().to_str()) {
            writeln!(record, "cgroup {path}")?;
        }
        let family = Family {
            since,
            mark: Some(mark.clone()),
            groups: Vec::new(),
            cgroup,
            busy: Some(Busy::new()),
        };
        Ok(Groups { record, mark, family })
    }

    /// Returns the variable by which processes of the job are known, given its value outside of it.
    pub fn mark(&self, outside: Option<&String>) -> (String, String) {
        let value = match outside {
            Some(outside) if !outside.is_empty() => format!("{outside}:{}", self.mark),
            _ => self.mark.clone(),
        };
        (MARK.to_owned(), value)
    }

    /// Returns the file by which a process enters the cgroup of the job, if it has one.
    pub fn cgroup(&self) -> Option<OwnedFd> {
        self.family.cgroup.as_ref()?.procs().try_clone().ok()
    }

    /// Records a new group.
    pub fn record(&mut self, leader: Pid) -> io::Result<()> {
        let pid = leader.as_raw_nonzero().get().cast_unsigned();
        let start = Process::of(pid).map_or(0, |leader| leader.start);
        self.family.groups.push((pid, start));
        // One call, so that a line is written completely or not at all.
        self.record.write_all(format!("{pid} {start}\n").as_bytes())
    }

    /// Forgets a group whose leader has been reaped, unless it has other members.
    pub fn leave(&mut self, group: Pid) {
        if test_kill_process_group(group).is_err() {
            let group = group.as_raw_nonzero().get().cast_unsigned();
            self.family.groups.retain(|(known, _)| *known != group);
        }
    }

    /// Returns the processes of the job that have not ended.
    pub fn left(&self) -> Vec<Process> {
        self.family.left()
    }

    /// Kills the processes of the job that are left.
    pub fn kill(&self) {
        self.family.kill();
    }
}

/// Sends a signal to processes.
pub fn signal_all(processes: &[Process], signal: Signal) {
    for process in processes {
        // It is gone, or another user's.
        let _ = process.signal(signal);
    }
}

/// Kills the processes that are recorded in the directory of a job whose server crashed, unless their ids
/// were reused. The caller must make sure that the record is of this boot.
pub fn kill_recorded(scratch: &Path) {
    // A job may have put anything there.
    let Ok(record) = read_bounded(&scratch.join(RECORD), RECORD_BYTES) else { return };
    let record = String::from_utf8_lossy(&record);
    let mut family = Family::default();
    for line in record.lines() {
        match line.split_once(' ') {
            Some(("cgroup", path)) => {
                // It is gone, or none of ours.
                let _ = remove_recorded(Path::new(path), CGROUP);
            }
            Some(("mark", rest)) => {
                if let Some((mark, Ok(since))) =
                    rest.split_once(' ').map(|(mark, since)| (mark, since.parse()))
                {
                    family.since = since;
                    family.mark = Some(mark.to_owned());
                }
            }
            Some((group, start)) => {
                if let (Ok(group), Ok(start)) = (group.parse(), start.parse()) {
                    family.groups.push((group, start));
                }
            }
            None => {}
        }
    }
    family.kill();
}

/// Polls `done` until it returns true or the deadline is over.
pub fn wait_until(deadline: Instant, mut done: impl FnMut(Duration) -> bool) {
    while !done(EXIT_POLL_INTERVAL.min(deadline.saturating_duration_since(Instant::now()))) {
        if Instant::now() >= deadline {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_told_from_other_variables() {
        let environment = b"A=1\0STEP_RUNNER_JOBS=x\0STEP_RUNNER_JOB=a:b\0C=STEP_RUNNER_JOB=c\0";
        assert_eq!(marks(environment), Some(&b"a:b"[..]));
        assert_eq!(marks(b"C=STEP_RUNNER_JOB=c"), None);
        let family = Family { mark: Some("b".to_owned()), ..Family::default() };
        assert!(family.is_marked(b"a:b") && family.is_marked(b"b"));
        assert!(!family.is_marked(b"a:bb") && !family.is_marked(b""));
    }

    #[test]
    fn a_process_starts_now() {
        let before = now();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let start = Process::of(child.id()).unwrap().start;
        assert!((before..=now()).contains(&start), "{before} {start} {}", now());
        child.wait().unwrap();
    }
}
