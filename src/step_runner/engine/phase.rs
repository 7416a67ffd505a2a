//! Work that may block in the kernel, as on a mount that does not answer: on a thread of its own, without
//! which a job goes on when it is cancelled.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use tracing::Span;

use super::super::resolve::Interrupt;
use crate::sys::arrival;

/// How long work that nobody wants any more is waited for, so that it can clean up.
pub(super) const PATIENCE: Duration = Duration::from_millis(500);

/// Work on a thread of its own. If this is dropped first, the thread is left alone: what it returns is
/// dropped when it does.
#[derive(Debug)]
pub(super) struct Phase<T> {
    thread: JoinHandle<T>,
    interrupt: Interrupt,
    /// Eventfd, readable once the work is done.
    done: Arc<OwnedFd>,
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PhaseError {
    /// The job was cancelled, or its maximum run time is over.
    #[error("interrupted")]
    Interrupted,
    #[error("timed out after {} s", .0.as_secs())]
    /// It took longer than this.
    TooLong(Duration),
    /// The process is out of threads or file descriptors.
    #[error(transparent)]
    Start(#[from] io::Error),
}

impl<T: Send + 'static> Phase<T> {
    pub(super) fn start(work: impl FnOnce(&Interrupt) -> T + Send + 'static) -> io::Result<Self> {
        let interrupt = Interrupt::new()?;
        let done = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (theirs, end) = (interrupt.clone(), Announce(done.clone()));
        let span = Span::current();
        let thread = thread::Builder::new().name("phase".to_owned()).spawn(move || {
            // A panic is the end as well.
            let _end = end;
            // What it starts must not inherit what is blocked in the thread that reads pipes.
            arrival::unblock();
            span.in_scope(|| work(&theirs))
        })?;
        Ok(Phase { thread, interrupt, done })
    }

    /// Tells the work that nobody waits for it any more.
    pub(super) fn interrupt(&self) {
        self.interrupt.set();
    }

    /// Returns a descriptor that is readable once the work is done.
    pub(super) fn done(&self) -> BorrowedFd<'_> {
        self.done.as_fd()
    }

    /// Returns the result of work that is done.
    pub(super) fn take(self) -> T {
        self.thread.join().unwrap_or_else(|panic| resume_unwind(panic))
    }
}

/// Makes an eventfd readable on drop.
struct Announce(Arc<OwnedFd>);

impl Drop for Announce {
    fn drop(&mut self) {
        // It cannot fail: this is the only write.
        let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }
}
