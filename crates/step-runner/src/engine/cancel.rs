//! Stopping a job from another thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

/// A handle that cancels a job from another thread: the first call stops it gracefully, the second kills it.
#[derive(Clone, Debug)]
pub struct CancelHandle {
    events: Arc<CancelEvents>,
}

/// The reason for which a job is cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CancelReason {
    Requested,
    /// The job exceeded its maximum run time.
    Timeout,
}

#[derive(Debug)]
struct CancelEvents {
    /// Eventfd, readable once the job is to stop.
    stop: OwnedFd,
    /// Eventfd, readable once the job is to be killed.
    kill: OwnedFd,
    reason: OnceLock<CancelReason>,
}

impl CancelHandle {
    /// Returns a handle for a job that is not cancelled.
    pub fn new() -> io::Result<Self> {
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let events = CancelEvents { stop: event()?, kill: event()?, reason: OnceLock::new() };
        Ok(CancelHandle { events: Arc::new(events) })
    }

    /// Cancels the job: the running command gets `SIGTERM` and, after the grace period, `SIGKILL`; steps
    /// with `always()` or `cancelled()` in their condition still run. A second call kills everything.
    pub fn cancel(&self, reason: CancelReason) {
        let event = match self.events.reason.set(reason) {
            Ok(()) => &self.events.stop,
            Err(_) => &self.events.kill,
        };
        signal(event);
    }

    /// Stops the job gracefully, unless it is cancelled already.
    pub fn stop(&self, reason: CancelReason) {
        if self.events.reason.set(reason).is_ok() {
            signal(&self.events.stop);
        }
    }

    /// Returns the reason of the cancellation, or `None` if the job is not cancelled.
    pub fn reason(&self) -> Option<CancelReason> {
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
