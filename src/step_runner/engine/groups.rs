//! What the processes of a job are recorded by, so that the next server ends them if this one cannot.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, test_kill_process_group};

use super::family::{self, Busy, Family, MARK};
use crate::sys::cgroup::{Below, remove_recorded};
use crate::sys::fs::{random_u64, read_bounded};
use crate::sys::processes::Process;

/// File in a job's directory with what its processes are known by: a line for its mark, its cgroup, and
/// each of its process groups.
const RECORD: &str = "groups";

/// Limit of a record that is read in bytes: that of millions of commands.
const RECORD_BYTES: u64 = 64 << 20;

/// What names of cgroups begin with.
const CGROUP: &str = "step-runner-";

/// Poll interval for the exit of processes that were signalled.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The processes of a job.
#[derive(Debug)]
pub(super) struct Groups {
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
        let since = family::now();
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
    pub(super) fn mark(&self, outside: Option<&String>) -> (String, String) {
        let value = match outside {
            Some(outside) if !outside.is_empty() => format!("{outside}:{}", self.mark),
            _ => self.mark.clone(),
        };
        (MARK.to_owned(), value)
    }

    /// Returns the file by which a process enters the cgroup of the job, if it has one.
    pub(super) fn cgroup(&self) -> Option<OwnedFd> {
        self.family.cgroup.as_ref()?.procs().try_clone().ok()
    }

    /// Records a new group.
    pub(super) fn record(&mut self, leader: Pid) -> io::Result<()> {
        let pid = leader.as_raw_nonzero().get().cast_unsigned();
        let start = Process::of(pid).map_or(0, |leader| leader.start);
        self.family.groups.push((pid, start));
        // One call, so that a line is written completely or not at all.
        self.record.write_all(format!("{pid} {start}\n").as_bytes())
    }

    /// Forgets a group whose leader has been reaped, unless it has other members.
    pub(super) fn leave(&mut self, group: Pid) {
        if test_kill_process_group(group).is_err() {
            let group = group.as_raw_nonzero().get().cast_unsigned();
            self.family.groups.retain(|(known, _)| *known != group);
        }
    }

    /// Returns the processes of the job that have not ended.
    pub(super) fn left(&self) -> Vec<Process> {
        self.family.left()
    }

    /// Kills the processes of the job that are left.
    pub(super) fn kill(&self) {
        self.family.kill();
    }
}

/// Sends a signal to processes.
pub(super) fn signal(processes: &[Process], signal: Signal) {
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
pub(super) fn wait(deadline: Instant, mut done: impl FnMut(Duration) -> bool) {
    while !done(POLL_INTERVAL.min(deadline.saturating_duration_since(Instant::now()))) {
        if Instant::now() >= deadline {
            return;
        }
    }
}
