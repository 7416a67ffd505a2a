//! A container's end: asking for it, and waiting for it.

use std::fs::OpenOptions;
use std::thread;
use std::time::{Duration, Instant};

use super::engine::Engine;
use super::error::ContainerError;
use super::record::Record;
use crate::sys::fs::PathContext as _;
use crate::sys::identity;

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
