//! Stopping a job from another thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::OnceLock;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

/// Cancels a job from another thread: the first call stops it gracefully, the second kills it.
#[derive(Clone, Debug)]
pub struct Cancel {
    events: Arc<Events>,
}

/// Why a job is cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    Asked,
    /// The job exceeded its maximum run time.
    Timeout,
}

#[derive(Debug)]
struct Events {
    /// Eventfd, readable once the job is to stop.
    stop: OwnedFd,
    /// Eventfd, readable once the job is to be killed.
    kill: OwnedFd,
    reason: OnceLock<Reason>,
}

impl Cancel {
    /// Returns a handle for a job that is not cancelled.
    pub fn new() -> io::Result<Self> {
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let events = Events { stop: event()?, kill: event()?, reason: OnceLock::new() };
        Ok(Cancel { events: Arc::new(events) })
    }

    /// Cancels the job: the running command gets `SIGTERM` and, after the grace period, `SIGKILL`;
    /// steps whose condition says so (`always()`, `cancelled()`) still run. A second call kills
    /// everything.
    pub fn cancel(&self, reason: Reason) {
        let event = match self.events.reason.set(reason) {
            Ok(()) => &self.events.stop,
            Err(_) => &self.events.kill,
        };
        signal(event);
    }

    /// Stops the job gracefully, unless it is cancelled already.
    pub fn stop(&self, reason: Reason) {
        if self.events.reason.set(reason).is_ok() {
            signal(&self.events.stop);
        }
    }

    /// Returns why the job is cancelled; `None` if it is not.
    pub fn reason(&self) -> Option<Reason> {
        self.events.reason.get().copied()
    }

    /// Returns whether the job was cancelled twice.
    pub(super) fn is_killed(&self) -> bool {
        let mut kill = [PollFd::new(&self.events.kill, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut kill, Some(&now)).is_ok_and(|ready| ready > 0)
    }

    pub(super) fn stop_event(&self) -> BorrowedFd<'_> {
        self.events.stop.as_fd()
    }

    pub(super) fn kill_event(&self) -> BorrowedFd<'_> {
        self.events.kill.as_fd()
    }
}

fn signal(event: &OwnedFd) {
    rustix::io::write(event, &1_u64.to_ne_bytes())
        .expect("a counter of 64 bits is not full after as many calls as there are");
}
