//! File descriptors that are reserved for jobs, so that the limit of open files rejects a job before its start
//! instead of failing one of its steps.

use std::fs;

use rustix::process::{Resource, getrlimit};

use super::event::RunError;

/// Descriptors of a job that runs: log, results, cancellation, output, cgroup, and those of a step that starts or
/// is loaded; pipes of two background processes; and the connections of a client.
const RUNNING: u64 = 24;

/// Descriptors of a job that has ended: log, results, cancellation, and the connection of a client.
const FINISHED: u64 = 5;

/// Descriptors of a job of an earlier server that are open at the start: log and results.
const KEPT: u64 = 2;

/// Descriptors that the server itself opens later: connections, threads, and directories.
const SERVER: u64 = 10;

/// The number of descriptors that jobs may use.
#[derive(Debug)]
pub struct DescriptorBudget {
    limit: u64,
    /// Descriptors that are not for jobs.
    used: u64,
}

impl DescriptorBudget {
    /// Returns the budget of this process: its soft limit, without the descriptors that are open now, except those
    /// of `kept` jobs of an earlier server.
    pub fn of_process(kept: usize) -> Self {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let open = fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        let used = (open as u64 + SERVER).saturating_sub(kept as u64 * KEPT);
        DescriptorBudget { limit, used }
    }

    /// Returns the maximum number of jobs of an earlier server to open, so that another job can still run. A server
    /// with the same limit cannot have had so many.
    pub fn kept_jobs(&self) -> usize {
        let free = self.limit.saturating_sub(self.used + RUNNING);
        usize::try_from(free / (KEPT + 1)).unwrap_or(usize::MAX)
    }

    /// Checks that another job may run beside `running` jobs; `known` counts finished jobs too.
    pub(super) fn check(&self, running: usize, known: usize) -> Result<(), RunError> {
        let finished = known.saturating_sub(running) as u64 * FINISHED;
        let needed = self.used + finished + (running as u64 + 1) * RUNNING;
        match needed <= self.limit {
            true => Ok(()),
            false => Err(RunError::Descriptors { running, limit: self.limit }),
        }
    }
}
