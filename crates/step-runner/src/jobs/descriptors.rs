//! File descriptors that are reserved for jobs, so that the limit of open files rejects a job before its start
//! instead of failing one of its steps.

use std::fs;

use rustix::process::{Resource, getrlimit};

use super::event::RunError;

/// Number of descriptors reserved for a running job: log, results, cancellation, output, cgroup,
/// and those of a step that starts or is loaded; pipes of two background processes; and the
/// connections of a client.
const RUNNING: u64 = 24;

/// Number of descriptors reserved for a finished job: log, results, cancellation, and the
/// connection of a client.
const FINISHED: u64 = 5;

/// Number of descriptors of a job of an earlier server that are open when the server starts: log
/// and results.
const KEPT: u64 = 2;

/// Number of descriptors that the server opens for itself later: connections, threads, directories.
const SERVER: u64 = 10;

/// The number of file descriptors that jobs may use.
#[derive(Debug)]
pub struct DescriptorBudget {
    limit: u64,
    /// Number of descriptors that are not available to jobs.
    used: u64,
}

impl DescriptorBudget {
    /// Returns the budget of this process: its soft limit of open files, minus the descriptors that
    /// the server opens for itself later and those that are open now, not counting those of `kept`
    /// jobs of an earlier server.
    pub fn of_process(kept: usize) -> Self {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let open = fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        let used = (open as u64 + SERVER).saturating_sub(kept as u64 * KEPT);
        DescriptorBudget { limit, used }
    }

    /// Returns the maximum number of jobs of an earlier server to keep: opening their files leaves
    /// descriptors for a new job. A server with the same limit of open files cannot have had more.
    pub fn kept_jobs(&self) -> usize {
        let free = self.limit.saturating_sub(self.used + RUNNING);
        usize::try_from(free / (KEPT + 1)).unwrap_or(usize::MAX)
    }

    /// Checks that there are enough descriptors for another job beside `running` jobs. `known` is
    /// the number of running and finished jobs.
    pub(super) fn check(&self, running: usize, known: usize) -> Result<(), RunError> {
        let finished = known.saturating_sub(running) as u64 * FINISHED;
        let needed = self.used + finished + (running as u64 + 1) * RUNNING;
        match needed <= self.limit {
            true => Ok(()),
            false => Err(RunError::Descriptors { running, limit: self.limit }),
        }
    }
}
