//! Finding and ending all processes of a job, those included that left its process groups.
//!
//! A process is a job's if it is in its cgroup, in a process group of one of its commands, has the job's mark
//! in its environment, or is a descendant of one that is. Where this process adopts orphans, one that has
//! wiped all that off is a job's too, if no other ran meanwhile.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use rustix::time::{ClockId, clock_gettime};
use tracing::debug;

use crate::sys::cgroup::Below;
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
pub(super) struct Family {
    /// Only processes that started since are its own, in clock ticks since the boot.
    pub(super) since: u64,
    pub(super) mark: Option<String>,
    /// Process groups: id, and start of their leader.
    pub(super) groups: Vec<(u32, u64)>,
    pub(super) cgroup: Option<Below>,
    /// Whether the job runs in this process; if not, in one that is gone.
    pub(super) busy: Option<Busy>,
}

/// A job that runs in this process, until this is dropped.
#[derive(Debug)]
pub(super) struct Busy(());

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
pub(super) fn now() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    let part = u64::try_from(time.tv_nsec).unwrap_or_default() / (1_000_000_000 / TICKS);
    u64::try_from(time.tv_sec).unwrap_or_default() * TICKS + part
}

impl Family {
    /// Returns its processes that have not ended.
    pub(super) fn left(&self) -> Vec<Process> {
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
    pub(super) fn kill(&self) {
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
