//! Runs work that may block in the kernel, for example on a mount that does not respond, in another thread,
//! so that a cancelled job can continue without it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::thread::set_name;
use tracing::Span;

use super::super::resolve::Interrupt;

/// Time to wait for interrupted work, so that it can clean up.
pub const INTERRUPT_TIMEOUT: Duration = Duration::from_millis(500);

/// Maximum number of idle threads that are kept.
const MAX_IDLE: usize = 8;

/// Threads without work.
static IDLE: Mutex<Vec<WorkThread>> = Mutex::new(Vec::new());

/// A thread that runs tasks one after another. On drop, it ends once all of them have returned.
#[derive(Debug)]
pub struct WorkThread {
    tasks: mpsc::Sender<WorkTask>,
}

type WorkTask = Box<dyn FnOnce() + Send>;

/// A handle of work in a [`WorkThread`]. If it is dropped, so is the result, once the work returns.
#[derive(Debug)]
pub struct WorkHandle<T> {
    result: mpsc::Receiver<thread::Result<T>>,
    interrupt: Interrupt,
    /// Eventfd, readable once the work is done.
    done: Arc<OwnedFd>,
}

/// Reasons for which work has no result.
#[derive(Debug, thiserror::Error)]
pub enum WorkError {
    /// The job was cancelled, or its maximum run time is over.
    #[error("interrupted: the job was cancelled or exceeded its maximum run time")]
    Interrupted,
    #[error("timed out after {} s", .0.as_secs())]
    /// The work took longer than its time limit.
    TooLong(Duration),
    /// The process is out of threads or file descriptors.
    #[error(transparent)]
    Start(#[from] io::Error),
}

impl WorkThread {
    /// Returns an idle thread, or else a new one.
    pub(super) fn take() -> io::Result<Self> {
        let idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        idle.map_or_else(WorkThread::start, Ok)
    }

    /// Keeps the thread for other jobs. Its work must be done.
    pub(super) fn return_to_pool(self) {
        let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MAX_IDLE {
            idle.push(self);
        }
    }

    fn start() -> io::Result<Self> {
        let (tasks, received) = mpsc::channel::<WorkTask>();
        let run = move || {
            for task in received {
                // The names are for debuggers.
                let _ = set_name(c"work");
                task();
                let _ = set_name(c"idle");
            }
        };
        thread::Builder::new().name("idle".to_owned()).spawn(run)?;
        Ok(WorkThread { tasks })
    }

    /// Runs work in the thread, once the work of earlier calls has returned.
    pub(super) fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Interrupt) -> T + Send + 'static,
    ) -> io::Result<WorkHandle<T>> {
        let interrupt = Interrupt::new()?;
        let done = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (theirs, end) = (interrupt.clone(), DoneSignal(done.clone()));
        let (send, result) = mpsc::channel();
        let span = Span::current();
        let task = move || {
            // Dropped last: the result is sent by then.
            let _end = end;
            let result = catch_unwind(AssertUnwindSafe(|| span.in_scope(|| work(&theirs))));
            // The receiver is gone if the work was abandoned.
            let _ = send.send(result);
        };
        self.tasks.send(Box::new(task)).expect("the thread catches panics, and ends after this");
        Ok(WorkHandle { result, interrupt, done })
    }
}

/// Runs work that needs no interrupt. If it takes longer than `limit`, it is abandoned, and its result dropped.
pub fn run_within<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let thread = WorkThread::take()?;
    let done = thread.run(|_| work())?.take_within(limit).ok_or(io::ErrorKind::TimedOut)?;
    thread.return_to_pool();
    Ok(done)
}

impl<T> WorkHandle<T> {
    /// Signals the work that its result is no longer needed.
    pub fn interrupt(&self) {
        self.interrupt.set();
    }

    /// Returns a descriptor that is readable once the work is done.
    pub fn done_fd(&self) -> BorrowedFd<'_> {
        self.done.as_fd()
    }

    /// Returns the result of completed work.
    pub fn take(self) -> T {
        let result = self.result.recv().expect("work that is done has sent its result");
        result.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Returns the result if the work is done within a time limit, else `None`.
    pub(super) fn take_within(self, limit: Duration) -> Option<T> {
        let result = self.result.recv_timeout(limit).ok()?;
        Some(result.unwrap_or_else(|panic| resume_unwind(panic)))
    }
}

/// An eventfd that becomes readable on drop.
struct DoneSignal(Arc<OwnedFd>);

impl Drop for DoneSignal {
    fn drop(&mut self) {
        // Cannot fail: this is the only write.
        let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};
    use std::path::Path;
    use std::time::Instant;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::super::super::log::{LogStream, OutputSink, OutputSource};
    use super::super::cancel::{CancelHandle, CancelReason};
    use super::super::command::CommandRunner;
    use super::super::job_processes::JobProcesses;
    use super::*;

    struct NullOutput;

    impl OutputSink for NullOutput {
        fn write(&mut self, _: OutputSource, _: LogStream, _: &[u8]) {}
        fn flush(&mut self) {}
        fn mask(&mut self, _: &str) {}
    }

    /// A result that sends a message on drop.
    struct TrackedResult(mpsc::Sender<()>);

    impl Drop for TrackedResult {
        fn drop(&mut self) {
            self.0.send(()).unwrap();
        }
    }

    /// Returns work that blocks in the kernel until `release` is called: it opens a FIFO without a writer.
    fn hanging_work(
        dir: &Path,
        results: mpsc::Sender<()>,
    ) -> impl FnOnce(&Interrupt) -> TrackedResult + 'static {
        let fifo = dir.join("fifo");
        mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        move |_| {
            let result = TrackedResult(results);
            File::open(fifo).unwrap();
            result
        }
    }

    fn fail(_: &Interrupt) {
        panic!("for this test")
    }

    fn release(dir: &Path) {
        OpenOptions::new().write(true).open(dir.join("fifo")).unwrap();
    }

    #[test]
    fn hanging_work_is_abandoned_and_its_late_result_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let cancel = CancelHandle::new().unwrap();
        let groups = JobProcesses::new(dir.path()).unwrap();
        let mut commands =
            CommandRunner::new(groups, &cancel, Duration::from_secs(1), None).unwrap();
        let (results, dropped) = mpsc::channel();
        cancel.cancel(CancelReason::Requested);
        let hour = Duration::from_secs(3600);
        let error = commands.run_blocking(hour, &mut NullOutput, hanging_work(dir.path(), results));
        assert!(matches!(error, Err(WorkError::Interrupted)));
        assert!(dropped.try_recv().is_err());
        release(dir.path());
        dropped.recv().unwrap();
    }

    #[test]
    fn work_is_limited_by_its_timeout_and_that_of_the_job() {
        for (limit, deadline) in [(0, None), (3600, Some(Instant::now()))] {
            let dir = tempfile::tempdir().unwrap();
            let cancel = CancelHandle::new().unwrap();
            let groups = JobProcesses::new(dir.path()).unwrap();
            let mut commands =
                CommandRunner::new(groups, &cancel, Duration::ZERO, deadline).unwrap();
            let (results, dropped) = mpsc::channel();
            let limit = Duration::from_secs(limit);
            let error =
                commands.run_blocking(limit, &mut NullOutput, hanging_work(dir.path(), results));
            match error.map(drop).unwrap_err() {
                WorkError::TooLong(time) => assert_eq!((time, deadline), (limit, None)),
                WorkError::Interrupted => assert_eq!(cancel.reason(), Some(CancelReason::Timeout)),
                WorkError::Start(error) => panic!("{error}"),
            }
            release(dir.path());
            dropped.recv().unwrap();
        }
    }

    #[test]
    fn thread_takes_work_after_a_panic() {
        let thread = WorkThread::start().unwrap();
        let id = |_: &Interrupt| thread::current().id();
        let first = thread.run(id).unwrap().take();
        let panics = AssertUnwindSafe(|| thread.run(fail).unwrap().take());
        assert!(catch_unwind(panics).is_err());
        assert_eq!(thread.run(id).unwrap().take(), first);
    }

    #[test]
    fn interrupted_work_returns_its_result() {
        let dir = tempfile::tempdir().unwrap();
        let cancel = CancelHandle::new().unwrap();
        let groups = JobProcesses::new(dir.path()).unwrap();
        let mut commands = CommandRunner::new(groups, &cancel, Duration::ZERO, None).unwrap();
        let hour = Duration::from_secs(3600);
        let other = cancel.clone();
        let asks = move |interrupt: &Interrupt| {
            other.cancel(CancelReason::Requested);
            interrupt.pause(hour).is_err()
        };
        assert!(commands.run_blocking(hour, &mut NullOutput, asks).unwrap());
    }
}
