//! A container's end: asking for it, and waiting for it.

use std::fs::OpenOptions;
use std::thread;
use std::time::{Duration, Instant};

use super::engine::Engine;
use super::error::ContainerError;
use super::record::{Check, Record, Role};
use crate::sys::error::chain;
use crate::sys::fs::PathContext as _;
use crate::sys::identity;
use crate::sys::thread::beside;

/// How long who watches a container may take to write down how it ended.
const WRITING: Duration = Duration::from_secs(1);

/// How waiting for a container went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    Running,
    Ended {
        /// Its code, or 128 and the signal that ended it; none if nobody watched it.
        code: Option<i32>,
    },
}

impl Engine {
    /// Sends a signal, as `TERM` or `9`, to the first process of a container.
    pub fn kill(&self, record: &Record, signal: &str) -> Result<(), ContainerError> {
        Ok(record.runtime.kill(&record.id, signal)?)
    }

    /// Waits for the end of a container's first process, so long at most.
    pub fn wait(&self, record: &Record, timeout: Duration) -> Result<Wait, ContainerError> {
        if let Some(process) = record.process.and_then(|process| process.open()) {
            let path = self.directory(&record.id);
            if !identity::wait(&process, timeout).at("wait for the container of", path.path())? {
                return Ok(Wait::Running);
            }
        }
        Ok(Wait::Ended { code: self.code(record) })
    }

    /// Returns whether a container that was started has ended, and how.
    pub fn state(&self, record: &Record) -> Wait {
        let has_ended = match record.process {
            Some(process) => !process.is_running(),
            // It may have ended before anybody could look; or it was never started.
            None => self.directory(&record.id).end().is_some(),
        };
        if has_ended { Wait::Ended { code: self.code(record) } } else { Wait::Running }
    }

    /// Returns whether this is the first time that somebody is about to tell of a container's end.
    pub fn tell_end(&self, record: &Record) -> bool {
        let told = self.directory(&record.id).path().join("told");
        OpenOptions::new().write(true).create_new(true).open(told).is_ok()
    }

    /// Returns the code of a container that ended, if somebody watched it.
    pub(super) fn code(&self, record: &Record) -> Option<i32> {
        let directory = self.directory(&record.id);
        let deadline = Instant::now() + WRITING;
        loop {
            let ended = directory.end();
            let is_watched = record.log_bytes > 0;
            if ended.is_some() || !is_watched || Instant::now() > deadline {
                return ended.map(|ended| ended.code);
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Engine {
    /// Asks all those containers to end that were made to be asked, and waits until they have or
    /// their time is up; sidecars come after all others. Returns what went wrong, which is no reason
    /// not to remove them.
    pub fn stop_all(&self, records: &[Record]) -> Vec<String> {
        let (sidecars, others): (Vec<_>, Vec<_>) = records
            .iter()
            .filter(|record| record.stop.is_some())
            .partition(|record| record.role == Role::Sidecar);
        [others, sidecars].iter().flat_map(|records| self.stop_at_once(records)).collect()
    }

    fn stop_at_once(&self, records: &[&Record]) -> Vec<String> {
        thread::scope(|scope| {
            let stopping: Vec<_> =
                records.iter().map(|record| beside(scope, || self.stop(record))).collect();
            stopping.into_iter().filter_map(|one| one.join().err()).collect()
        })
    }

    fn stop(&self, record: &Record) -> Result<(), String> {
        let said = |what: &str| format!("{} {}: {what}", record.role.name(), record.name);
        let process = record.process.or_else(|| self.directory(&record.id).process(&record.id));
        let (Some(stop), Some(process)) = (&record.stop, process.and_then(|p| p.open())) else {
            return Ok(());
        };
        let end = Instant::now() + stop.grace;
        let left = || end.saturating_duration_since(Instant::now());
        let before = match &stop.before {
            Some(Check::Sleep(time)) => {
                thread::sleep((*time).min(left()));
                Ok(())
            }
            Some(check) => match self.check(record, check, left()) {
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
