//! Stopping a job from another thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::OnceLock;

use rustix::event::{EventfdFlags, eventfd};

/// Stops a job from another thread: first kindly, at a second call at once.
#[derive(Clone, Debug)]
pub struct Cancel {
    events: Arc<Events>,
}

/// Why a job is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Somebody asked for it.
    Asked,
    /// It ran longer than it may.
    Timeout,
}

#[derive(Debug)]
struct Events {
    /// Readable once the job is to stop.
    stop: OwnedFd,
    /// Readable once it is to stop without cleaning up.
    kill: OwnedFd,
    reason: OnceLock<Reason>,
}

impl Cancel {
    /// Returns one that has not been used.
    pub fn new() -> io::Result<Self> {
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let events = Events { stop: event()?, kill: event()?, reason: OnceLock::new() };
        Ok(Cancel { events: Arc::new(events) })
    }

    /// Stops the job: the running command gets `SIGTERM` and, after the job's grace, `SIGKILL`;
    /// steps that ask for it by their condition (`always()`, `cancelled()`) still run. At a second
    /// call everything is killed.
    pub fn cancel(&self, reason: Reason) {
        let event = match self.events.reason.set(reason) {
            Ok(()) => &self.events.stop,
            Err(_) => &self.events.kill,
        };
        rustix::io::write(event, &1_u64.to_ne_bytes())
            .expect("a counter of 64 bits is not full after two calls");
    }

    /// Returns why the job is to stop; none if it is not.
    pub fn reason(&self) -> Option<Reason> {
        self.events.reason.get().copied()
    }

    pub(super) fn stop_event(&self) -> BorrowedFd<'_> {
        self.events.stop.as_fd()
    }

    pub(super) fn kill_event(&self) -> BorrowedFd<'_> {
        self.events.kill.as_fd()
    }
}
