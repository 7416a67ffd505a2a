//! Waits for containers to end, stops them, and reports their exit codes.

use std::fs::OpenOptions;
use std::thread;
use std::time::{Duration, Instant};

use oci_hooks_files::error::chain;
use oci_hooks_files::fs::PathContext as _;
use oci_hooks_files::retry::retry_for;
use oci_hooks_host::identity;
use oci_hooks_host::thread::spawn_or_call;

use super::engine::Engine;
use super::error::ContainerError;
use super::record::{ContainerAction, ContainerRecord, ContainerRole};

/// Timeout for the monitor to record the end of a container whose process has exited.
const WRITING: Duration = Duration::from_secs(10);

/// Result of waiting for a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitOutcome {
    Running,
    Ended {
        /// Exit code, or 128 plus the signal that ended it; `None` without a monitor.
        code: Option<i32>,
    },
}

impl Engine {
    /// Sends a signal, such as `TERM` or `9`, to the first process of a container.
    pub fn kill(&self, record: &ContainerRecord, signal: &str) -> Result<(), ContainerError> {
        Ok(record.runtime.kill(&record.id, signal)?)
    }

    /// Waits for the end of a container's first process, at most for a timeout.
    pub fn wait(
        &self,
        record: &ContainerRecord,
        timeout: Duration,
    ) -> Result<WaitOutcome, ContainerError> {
        if let Some(process) = record.process.and_then(|process| process.open()) {
            let path = self.directory(&record.id);
            if !identity::wait(&process, timeout)
                .with_path("wait for the container of", path.path())?
            {
                return Ok(WaitOutcome::Running);
            }
        }
        Ok(WaitOutcome::Ended { code: self.code(record) })
    }

    /// Returns whether a started container is running or has ended, without waiting.
    pub fn state(&self, record: &ContainerRecord) -> WaitOutcome {
        let has_ended = match record.process {
            Some(process) => !process.is_running(),
            // The process ended before it could be recorded, or was never started.
            None => self.directory(&record.id).end().is_some(),
        };
        if has_ended {
            WaitOutcome::Ended { code: self.code(record) }
        } else {
            WaitOutcome::Running
        }
    }

    /// Returns whether this is the first call that reports a container's end.
    pub fn mark_end_reported(&self, record: &ContainerRecord) -> bool {
        let told = self.directory(&record.id).path().join("told");
        OpenOptions::new().write(true).create_new(true).open(told).is_ok()
    }

    /// Returns the exit code of an ended container, if it had a monitor.
    pub(super) fn code(&self, record: &ContainerRecord) -> Option<i32> {
        let directory = self.directory(&record.id);
        let is_watched = record.log_bytes > 0;
        let timeout = if is_watched { WRITING } else { Duration::ZERO };
        retry_for(timeout, || directory.end()).map(|ended| ended.code)
    }
}

impl Engine {
    /// Stops all containers that have a way to stop, and waits until they end or their grace period is over;
    /// sidecars are stopped last. Returns errors, after which the containers can still be removed.
    pub fn stop_all(&self, records: &[ContainerRecord]) -> Vec<String> {
        let (sidecars, others): (Vec<_>, Vec<_>) = records
            .iter()
            .filter(|record| record.stop.is_some())
            .partition(|record| record.role == ContainerRole::Sidecar);
        [others, sidecars].iter().flat_map(|records| self.stop_at_once(records)).collect()
    }

    fn stop_at_once(&self, records: &[&ContainerRecord]) -> Vec<String> {
        thread::scope(|scope| {
            let stopping: Vec<_> =
                records.iter().map(|record| spawn_or_call(scope, || self.stop(record))).collect();
            stopping.into_iter().filter_map(|one| one.join().err()).collect()
        })
    }

    fn stop(&self, record: &ContainerRecord) -> Result<(), String> {
        let said = |what: &str| format!("{} {}: {what}", record.role.name(), record.name);
        let process = record.process.or_else(|| self.directory(&record.id).process(&record.id));
        let (Some(stop), Some(process)) = (&record.stop, process.and_then(|p| p.open())) else {
            return Ok(());
        };
        let end = Instant::now() + stop.grace;
        let left = || end.saturating_duration_since(Instant::now());
        let before = match &stop.before {
            Some(ContainerAction::Sleep(time)) => {
                thread::sleep((*time).min(left()));
                Ok(())
            }
            Some(action) => match self.perform(record, action, left()) {
                Ok(result) => result.map_err(|how| said(&format!("preStop: {how}"))),
                Err(error) => Err(said(&format!("preStop: {}", chain(&error)))),
            },
            None => Ok(()),
        };
        if let Some(signal) = &stop.signal {
            record.runtime.kill(&record.id, signal).map_err(|error| said(&chain(&error)))?;
            let _ = identity::wait(&process, left());
        }
        before
    }
}
