//! Finds and kills all processes of a job, even if they left its process groups.
//!
//! A process belongs to a job if it is in the job's cgroup, is in a process group of one of its commands,
//! has the job's mark in its environment, or descends from such a process. An orphan that the launcher has adopted
//! and that has none of these belongs to the job too, provided that no other job runs.

use std::collections::{BTreeSet, HashSet};
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use oci_hooks_files::fs::random_u64;
use oci_hooks_host::cgroup::{ChildCgroup, remove_recorded};
use oci_hooks_host::processes::{ProcessSnapshot, add_descendants};
use oci_hooks_init::launch::LaunchRequest;
use rustix::fs::OFlags;
use rustix::process::{Pid, Signal, test_kill_process_group};
use rustix::time::{ClockId, clock_gettime};
use tracing::debug;

use super::launcher::{LaunchedChild, Launcher};

/// Environment variable that identifies the job of a process. Its value is the random mark of the
/// job, preceded by the marks of the jobs in which its step-runner itself runs, separated by `:`.
pub const MARK: &str = "STEP_RUNNER_JOB";

/// Time to wait for killed processes to exit. Processes that take longer hang in the kernel.
const KILL_TIMEOUT: Duration = Duration::from_secs(1);

/// Limit of the total time for killing the processes of a job, if new ones keep appearing.
const KILL_LIMIT: Duration = Duration::from_secs(10);

/// Poll interval while killed processes exit.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Maximum number of scans of `/proc` for the processes of a job. A scan that finds none is
/// repeated if it may have missed one, because a process exited or executed another program
/// meanwhile.
const MAX_SCANS: usize = 50;

/// Maximum number of searches for new processes of a job, while those found are being stopped.
const MAX_STOP_SCANS: usize = 50;

/// Clock ticks per second in `/proc`, on all architectures.
const TICKS: u64 = 100;

/// Number of jobs that run in this process, and the time since which at least one has run, in clock ticks since boot.
static BUSY: Mutex<(usize, u64)> = Mutex::new((0, 0));

/// The properties by which processes of a job, or of all jobs of a crashed server, are recognized.
#[derive(Debug, Default)]
struct ProcessMatcher {
    /// Start of the first job, in clock ticks since boot; processes that started before belong to no job.
    since: u64,
    marks: HashSet<Vec<u8>>,
    /// Process groups of commands: id, and start time of the leader in clock ticks since boot.
    groups: BTreeSet<(u32, u64)>,
    cgroup: Option<ChildCgroup>,
    /// Set if the job runs in this process; `None` for jobs of a crashed server.
    busy: Option<RunningJob>,
}

/// A job that runs in this process, with the launcher of its processes. `BUSY` counts it until drop.
#[derive(Debug)]
struct RunningJob {
    launcher: Arc<Launcher>,
}

impl RunningJob {
    fn new(launcher: Arc<Launcher>) -> Self {
        let mut busy = BUSY.lock().unwrap_or_else(PoisonError::into_inner);
        if busy.0 == 0 {
            busy.1 = current_ticks();
        }
        busy.0 += 1;
        RunningJob { launcher }
    }

    /// Returns the time since which at least one job has run, if no other job runs now.
    fn running_alone_since(&self) -> Option<u64> {
        let (count, since) = *BUSY.lock().unwrap_or_else(PoisonError::into_inner);
        (count == 1).then_some(since)
    }
}

impl Drop for RunningJob {
    fn drop(&mut self) {
        BUSY.lock().unwrap_or_else(PoisonError::into_inner).0 -= 1;
    }
}

/// Returns the time in clock ticks since boot.
fn current_ticks() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    let part = u64::try_from(time.tv_nsec).unwrap_or_default() / (1_000_000_000 / TICKS);
    u64::try_from(time.tv_sec).unwrap_or_default() * TICKS + part
}

impl ProcessMatcher {
    /// Finds the job's processes. A scan of `/proc` sends `signal` to each process with the job's
    /// mark as soon as it finds it.
    fn find(&self, signal: Option<Signal>) -> Vec<ProcessSnapshot> {
        let mut settled = HashSet::new();
        for _ in 0..MAX_SCANS {
            if let Some(found) = self.find_quickly() {
                return found;
            }
            let (found, is_sure) = self.scan_processes(signal, &mut settled);
            if !found.is_empty() || is_sure {
                return found;
            }
        }
        Vec::new()
    }

    /// Finds the job's processes without a scan of `/proc`, after its commands have ended: those in
    /// its cgroup, or none if the cgroup is empty and there are no orphans. Else returns `None`: a
    /// scan is needed.
    fn find_quickly(&self) -> Option<Vec<ProcessSnapshot>> {
        let members = self.cgroup.as_ref().map(ChildCgroup::members).unwrap_or_default();
        let mut found: Vec<_> = members.into_iter().filter_map(ProcessSnapshot::of).collect();
        found.retain(|process| !process.is_zombie);
        if !found.is_empty() {
            return Some(found);
        }
        // No member of the list is left. Before it exited, one may have started a process that is
        // not in the list.
        let is_empty = self.cgroup.as_ref().is_none_or(ChildCgroup::is_empty);
        (is_empty && self.orphans().is_some_and(|orphans| orphans.is_empty())).then(Vec::new)
    }

    /// Returns the orphans of all running jobs; `None` if the launcher cannot list them, and for
    /// jobs of a crashed server.
    fn orphans(&self) -> Option<Vec<u32>> {
        self.busy.as_ref().and_then(|job| job.launcher.orphans())
    }

    /// Scans `/proc` once for the job's processes, among the orphans of all jobs and their
    /// descendants. If the orphans are unknown, scans the descendants of the launcher, or else all
    /// processes, as for jobs of a crashed server.
    ///
    /// Also returns whether the result is certain: no process exited during the scan (it may have
    /// started another in a part already scanned), and none executed another program (its
    /// environment is empty for a moment). Processes that do either are added to `settled`, and do
    /// not make later scans uncertain.
    fn scan_processes(
        &self,
        signal: Option<Signal>,
        settled: &mut HashSet<(u32, u64)>,
    ) -> (Vec<ProcessSnapshot>, bool) {
        let launcher = self.busy.as_ref().and_then(|job| job.launcher.pid());
        let running_alone_since = || self.busy.as_ref().and_then(RunningJob::running_alone_since);
        let running_alone_before = running_alone_since();
        let orphans = self.orphans();
        let root = launcher.filter(|_| ProcessSnapshot::has_lists_of_children());
        let descends = orphans.is_some() || root.is_some();
        let mut is_sure = true;
        let mut all = Vec::new();
        let mut found: HashSet<u32> = HashSet::new();
        let mut lost = Vec::new();
        let others = [Some(std::process::id()), launcher];
        let mut pids: Vec<u32> = match (orphans, root) {
            (Some(orphans), _) => orphans,
            (None, Some(root)) => ProcessSnapshot::children_of(root),
            (None, None) => {
                ProcessSnapshot::ids().filter(|pid| !others.contains(&Some(*pid))).collect()
            }
        };
        // Newest first, as they may exit soonest.
        while let Some(pid) = pids.pop() {
            let Some(process) = ProcessSnapshot::of(pid) else {
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
                let is_unmarked_orphan = || {
                    running_alone_before.is_some_and(|since| process.start >= since)
                        && launcher == Some(process.parent)
                };
                match process.environment().as_deref().and_then(marks) {
                    Some(marks) if self.is_marked(marks) => {
                        // Signalled at once: the process may be about to start another.
                        signal.map(|signal| process.signal(signal));
                        found.insert(pid);
                    }
                    // The marks are of another job, or of a step-runner beside this one.
                    Some(_) => {}
                    None if is_unmarked_orphan() => lost.push(pid),
                    None => {
                        is_sure &= process.is_running();
                        is_sure &= !settled.insert((pid, process.start));
                    }
                }
            }
            if descends {
                // A stopped process starts no more children.
                pids.extend(ProcessSnapshot::children_of(pid));
            }
        }
        if let Some(cgroup) = &self.cgroup {
            found.extend(cgroup.members());
            is_sure &= cgroup.is_empty();
        }
        // If another job began meanwhile, these processes may be its own.
        if running_alone_since() == running_alone_before {
            found.extend(lost);
        }
        found.extend(all.iter().filter(|it| self.has_group(it)).map(|it| it.pid));
        found = add_descendants(&all, &found);
        all.retain(|process| found.contains(&process.pid) && !process.is_zombie);
        (all, is_sure)
    }

    /// Returns whether a process is in a process group of the job, and not in a later group with the same id.
    fn has_group(&self, process: &ProcessSnapshot) -> bool {
        // Members start after their leader. An existing leader is the recorded one, or the id was reused.
        let recorded = (process.group, 0)..=(process.group, process.start);
        self.groups.range(recorded).next().is_some()
            && ProcessSnapshot::of(process.group)
                .is_none_or(|leader| self.groups.contains(&(leader.pid, leader.start)))
    }

    fn is_marked(&self, marks: &[u8]) -> bool {
        marks.split(|byte| *byte == b':').any(|mark| self.marks.contains(mark))
    }

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
            debug!(count = killed.len(), "killing leftover processes of a job");
            // Wait only for processes that got the signal: not for those of other users. The next scan finds
            // processes that they have started.
            killed.retain(|process| process.signal(Signal::KILL).is_ok_and(|sent| sent));
            thread::sleep(POLL_INTERVAL);
            while Instant::now() < end && killed.iter().any(ProcessSnapshot::is_running) {
                thread::sleep(POLL_INTERVAL);
            }
            if Instant::now() >= end {
                break;
            }
        }
    }

    /// Stops the job's processes with `SIGSTOP` until no more are found, so that a process cannot escape by
    /// forking.
    fn stop(&self, seen: &mut HashSet<u32>) -> Vec<ProcessSnapshot> {
        let mut stopped: Vec<ProcessSnapshot> = Vec::new();
        for _ in 0..MAX_STOP_SCANS {
            let mut new = self.find(Some(Signal::STOP));
            new.retain(|it| stopped.iter().all(|one| one.identity() != it.identity()));
            if new.is_empty() {
                break;
            }
            for process in &new {
                seen.insert(process.pid);
                let _ = process.signal(Signal::STOP);
            }
            // Includes processes that no longer belong to the job: they are killed too.
            stopped.extend(new);
        }
        stopped
    }
}

/// Returns the value of the variable [`MARK`] in the environment of a process, a list of NUL-separated variables.
fn marks(environment: &[u8]) -> Option<&[u8]> {
    let mut variables = environment.split(|byte| *byte == 0);
    variables.find_map(|variable| variable.strip_prefix(MARK.as_bytes())?.strip_prefix(b"="))
}

/// File in a job's directory that identifies its processes: a line for its mark, its cgroup, and each of
/// its process groups.
const RECORD: &str = "groups";

/// Maximum number of bytes that are read of one record, enough for 50 000 commands. A job of the
/// same user may have changed the record.
const RECORD_BYTES: u64 = 1 << 20;

/// Maximum number of bytes that are read of all records of a crashed server.
const ALL_RECORD_BYTES: u64 = 64 << 20;

/// Prefix of the names of jobs' cgroups.
const CGROUP: &str = "step-runner-";

/// Maximum poll interval of [`wait_until`].
const EXIT_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// All processes of a job: its commands, and those that they started.
#[derive(Debug)]
pub struct JobProcesses {
    record: File,
    mark: String,
    family: ProcessMatcher,
}

impl JobProcesses {
    pub(super) fn new(scratch: &Path) -> io::Result<Self> {
        let launcher = Launcher::shared()?;
        let mut options = OpenOptions::new();
        let mut record =
            options.append(true).create(true).mode(0o600).open(scratch.join(RECORD))?;
        let mark = format!("{:016x}", random_u64());
        let since = current_ticks();
        writeln!(record, "mark {mark} {since}")?;
        let cgroup = ChildCgroup::make(&format!("{CGROUP}{mark}"));
        if let Some(path) = cgroup.as_ref().and_then(|cgroup| cgroup.path().to_str()) {
            writeln!(record, "cgroup {path}")?;
        }
        let family = ProcessMatcher {
            since,
            marks: HashSet::from([mark.clone().into_bytes()]),
            groups: BTreeSet::new(),
            cgroup,
            busy: Some(RunningJob::new(launcher)),
        };
        Ok(JobProcesses { record, mark, family })
    }

    /// Returns name and value of the variable [`MARK`] for processes of the job. `outside` is the
    /// value in the environment of the step, to which the job's mark is appended.
    pub fn mark(&self, outside: Option<&String>) -> (String, String) {
        let value = match outside {
            Some(outside) if !outside.is_empty() => format!("{outside}:{}", self.mark),
            _ => self.mark.clone(),
        };
        (MARK.to_owned(), value)
    }

    /// Starts a process of the job.
    pub(super) fn launch(
        &self,
        request: &LaunchRequest,
        streams: [BorrowedFd<'_>; 2],
    ) -> io::Result<LaunchedChild> {
        let job = self.family.busy.as_ref().expect("the job runs in this process");
        let cgroup = self.family.cgroup.as_ref().map(ChildCgroup::directory);
        job.launcher.launch(request, streams, cgroup)
    }

    /// Records the process group of a command that has started, in memory and on disk.
    pub fn record(&mut self, leader: Pid) -> io::Result<()> {
        let pid = leader.as_raw_nonzero().get().cast_unsigned();
        let start = ProcessSnapshot::of(pid).map_or(0, |leader| leader.start);
        self.family.groups.insert((pid, start));
        // One call, so that a line is written completely or not at all.
        self.record.write_all(format!("{pid} {start}\n").as_bytes())
    }

    /// Forgets the process group of a command that has ended, unless other processes are in it.
    pub fn leave(&mut self, group: Pid) {
        if test_kill_process_group(group).is_err() {
            let group = group.as_raw_nonzero().get().cast_unsigned();
            self.family.groups.retain(|(known, _)| *known != group);
        }
    }

    /// Returns the processes of the job that have not exited.
    pub fn remaining_processes(&self) -> Vec<ProcessSnapshot> {
        self.family.find(None)
    }

    /// Kills the remaining processes of the job.
    pub fn kill(&self) {
        self.family.kill();
    }
}

/// Sends a signal to processes.
pub fn signal_all(processes: &[ProcessSnapshot], signal: Signal) {
    for process in processes {
        // The process has exited, or belongs to another user.
        let _ = process.signal(signal);
    }
}

/// The processes of jobs whose server crashed, from the records in the directories of the jobs.
#[derive(Debug, Default)]
pub struct RecordedProcesses {
    family: Option<ProcessMatcher>,
    cgroups: BTreeSet<PathBuf>,
    read_bytes: u64,
}

impl RecordedProcesses {
    /// Adds the record of processes in the scratch directory of a job. It must be from this boot:
    /// process ids from before a reboot identify other processes.
    pub fn add(&mut self, scratch: &Path) {
        // A job may have created anything at this path.
        let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
        let opened = OpenOptions::new().read(true).custom_flags(flags).open(scratch.join(RECORD));
        let Ok(file) = opened else { return };
        let mut record = Vec::new();
        let limit = RECORD_BYTES.min(ALL_RECORD_BYTES - self.read_bytes);
        let _ = file.take(limit).read_to_end(&mut record);
        self.read_bytes += record.len() as u64;
        let record = String::from_utf8_lossy(&record);
        // Without the last line, which may be incomplete.
        let record = record.rsplit_once('\n').map_or("", |(lines, _)| lines);
        let (mut cgroup, mut mark) = (None, None);
        let family = self
            .family
            .get_or_insert(ProcessMatcher { since: u64::MAX, ..ProcessMatcher::default() });
        for line in record.lines() {
            match line.split_once(' ') {
                Some(("cgroup", path)) => cgroup = cgroup.or(Some(path)),
                Some(("mark", rest)) => mark = mark.or(rest.split_once(' ')),
                Some((group, start)) => {
                    if let (Ok(group), Ok(start)) = (group.parse(), start.parse()) {
                        family.groups.insert((group, start));
                    }
                }
                None => {}
            }
        }
        let mark = mark.filter(|(mark, _)| !mark.is_empty());
        family.marks.extend(mark.map(|(mark, _)| mark.as_bytes().to_vec()));
        let since = mark.and_then(|(_, since)| since.parse().ok());
        family.since = family.since.min(since.unwrap_or_default());
        self.cgroups.extend(cgroup.map(PathBuf::from));
    }

    /// Kills the processes of all records, unless their ids were reused.
    pub fn kill(self) {
        for cgroup in &self.cgroups {
            // The cgroup is gone, or was not created by a step-runner.
            let _ = remove_recorded(cgroup, CGROUP);
        }
        if let Some(family) = self.family {
            family.kill();
        }
    }
}

/// Polls `done` until it returns true or the deadline is over. `done` gets the time for which it
/// should wait.
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
    fn job_markers_are_distinguished_from_other_variables() {
        let environment = b"A=1\0STEP_RUNNER_JOBS=x\0STEP_RUNNER_JOB=a:b\0C=STEP_RUNNER_JOB=c\0";
        assert_eq!(marks(environment), Some(&b"a:b"[..]));
        assert_eq!(marks(b"C=STEP_RUNNER_JOB=c"), None);
        let family =
            ProcessMatcher { marks: HashSet::from([b"b".to_vec()]), ..ProcessMatcher::default() };
        assert!(family.is_marked(b"a:b") && family.is_marked(b"b"));
        assert!(!family.is_marked(b"a:bb") && !family.is_marked(b""));
    }

    #[test]
    fn start_time_of_a_new_process_is_now() {
        let before = current_ticks();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let start = ProcessSnapshot::of(child.id()).unwrap().start;
        assert!(
            (before..=current_ticks()).contains(&start),
            "{before} {start} {}",
            current_ticks()
        );
        child.wait().unwrap();
    }
}
