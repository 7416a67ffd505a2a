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

/// How long work that nobody wants any more is waited for, so that it can clean up.
pub const PATIENCE: Duration = Duration::from_millis(500);

/// Work on a thread of its own. If this is dropped first, the thread is left alone: what it returns is
/// dropped when it does.
#[derive(Debug)]
pub struct Phase<T> {
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
            span.in_scope(|| work(&theirs))
        })?;
        Ok(Phase { thread, interrupt, done })
    }

    /// Tells the work that nobody waits for it any more.
    pub fn interrupt(&self) {
        self.interrupt.set();
    }

    /// Returns a descriptor that is readable once the work is done.
    pub fn done(&self) -> BorrowedFd<'_> {
        self.done.as_fd()
    }

    /// Returns the result of work that is done.
    pub fn take(self) -> T {
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

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};
    use std::path::Path;
    use std::sync::mpsc;
    use std::time::Instant;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::super::super::log::{Output, Source, Stream};
    use super::super::cancel::{Cancel, Reason};
    use super::super::command::Processes;
    use super::super::family::Groups;
    use super::*;

    struct Nothing;

    impl Output for Nothing {
        fn write(&mut self, _: Source, _: Stream, _: &[u8]) {}
        fn flush(&mut self) {}
        fn mask(&mut self, _: &str) {}
    }

    /// Says that it was dropped.
    struct Result(mpsc::Sender<()>);

    impl Drop for Result {
        fn drop(&mut self) {
            self.0.send(()).unwrap();
        }
    }

    /// Does what hangs in the kernel until `release` is called: a FIFO is opened that nobody writes to.
    fn hangs(dir: &Path, results: mpsc::Sender<()>) -> impl FnOnce(&Interrupt) -> Result + 'static {
        let fifo = dir.join("fifo");
        mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        move |_| {
            let result = Result(results);
            File::open(fifo).unwrap();
            result
        }
    }

    fn release(dir: &Path) {
        OpenOptions::new().write(true).open(dir.join("fifo")).unwrap();
    }

    #[test]
    fn work_that_hangs_is_left_alone_and_its_result_dropped_when_it_comes() {
        let dir = tempfile::tempdir().unwrap();
        let cancel = Cancel::new().unwrap();
        let groups = Groups::new(dir.path()).unwrap();
        let mut processes = Processes::new(groups, &cancel, Duration::from_secs(1), None).unwrap();
        let (results, dropped) = mpsc::channel();
        cancel.cancel(Reason::Asked);
        let hour = Duration::from_secs(3600);
        let error = processes.beside(hour, &mut Nothing, hangs(dir.path(), results));
        assert!(matches!(error, Err(PhaseError::Interrupted)));
        assert!(dropped.try_recv().is_err());
        release(dir.path());
        dropped.recv().unwrap();
    }

    #[test]
    fn work_has_a_limit_and_the_maximum_run_time_of_the_job() {
        for (limit, deadline) in [(0, None), (3600, Some(Instant::now()))] {
            let dir = tempfile::tempdir().unwrap();
            let cancel = Cancel::new().unwrap();
            let groups = Groups::new(dir.path()).unwrap();
            let mut processes = Processes::new(groups, &cancel, Duration::ZERO, deadline).unwrap();
            let (results, dropped) = mpsc::channel();
            let limit = Duration::from_secs(limit);
            let error = processes.beside(limit, &mut Nothing, hangs(dir.path(), results));
            match error.map(drop).unwrap_err() {
                PhaseError::TooLong(time) => assert_eq!((time, deadline), (limit, None)),
                PhaseError::Interrupted => assert_eq!(cancel.reason(), Some(Reason::Timeout)),
                PhaseError::Start(error) => panic!("{error}"),
            }
            release(dir.path());
            dropped.recv().unwrap();
        }
    }

    #[test]
    fn work_that_asks_is_told_and_its_result_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        let cancel = Cancel::new().unwrap();
        let groups = Groups::new(dir.path()).unwrap();
        let mut processes = Processes::new(groups, &cancel, Duration::ZERO, None).unwrap();
        let hour = Duration::from_secs(3600);
        let other = cancel.clone();
        let asks = move |interrupt: &Interrupt| {
            other.cancel(Reason::Asked);
            interrupt.pause(hour).is_err()
        };
        assert!(processes.beside(hour, &mut Nothing, asks).unwrap());
    }
}
