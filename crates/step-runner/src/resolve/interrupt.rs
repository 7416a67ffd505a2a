//! An interrupt, with which another thread stops long work such as fetching a step.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

use super::error::ResolveError;

/// A flag that stops long work, such as fetching a step. Clones share the state; once set, it stays set.
///
/// The work checks the flag between its parts, or polls [`event`](Self::event) together with its own
/// descriptors. The caller waits a moment for the work to stop, and then continues without it.
#[derive(Clone, Debug)]
pub struct Interrupt {
    shared: Arc<InterruptState>,
}

#[derive(Debug)]
struct InterruptState {
    is_set: AtomicBool,
    /// Eventfd, readable once the interrupt is set.
    event: OwnedFd,
}

impl Interrupt {
    /// Returns an interrupt that is not set.
    ///
    /// # Errors
    ///
    /// Fails if the process is out of file descriptors.
    pub fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Interrupt { shared: Arc::new(InterruptState { is_set: AtomicBool::new(false), event }) })
    }

    /// Sets the interrupt, for all clones.
    pub fn set(&self) {
        if !self.shared.is_set.swap(true, Ordering::SeqCst) {
            rustix::io::write(&self.shared.event, &1_u64.to_ne_bytes())
                .expect("a counter of 64 bits is not full after one write");
        }
    }

    /// Returns whether the interrupt is set.
    pub fn is_set(&self) -> bool {
        self.shared.is_set.load(Ordering::SeqCst)
    }

    /// Fails with [`ResolveError::Interrupted`] if the interrupt is set.
    pub fn check(&self) -> Result<(), ResolveError> {
        if self.is_set() { Err(ResolveError::Interrupted) } else { Ok(()) }
    }

    /// Waits for a time; returns earlier, with an error, once the interrupt is set.
    pub fn pause(&self, time: Duration) -> Result<(), ResolveError> {
        let time = Timespec::try_from(time).ok();
        match poll(&mut [PollFd::new(&self.shared.event, PollFlags::IN)], time.as_ref()) {
            Ok(_) | Err(Errno::INTR) => self.check(),
            // Out of memory: the caller only polls too often.
            Err(_) => self.check(),
        }
    }

    /// Returns a descriptor that becomes and stays readable once the interrupt is set. It must only be
    /// polled.
    pub fn event(&self) -> BorrowedFd<'_> {
        self.shared.event.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn interrupt_reaches_all_clones_and_wakes_waiters() {
        let interrupt = Interrupt::new().unwrap();
        assert!(interrupt.check().is_ok() && interrupt.pause(Duration::ZERO).is_ok());
        let other = interrupt.clone();
        let waits = thread::spawn(move || other.pause(Duration::from_secs(3600)));
        interrupt.set();
        interrupt.set();
        assert!(matches!(waits.join().unwrap(), Err(ResolveError::Interrupted)));
        assert!(matches!(interrupt.check(), Err(ResolveError::Interrupted)));
    }
}
