//! Access to the host's network for a process in the network namespace of a pause process: one of its threads stays in
//! the host's network. Threads and programs that this thread starts are in the host's network too.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Sender, channel, sync_channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::Builder;

/// A closure to run in the host's network.
type HostWork = Box<dyn FnOnce() + Send>;

static HOST_THREAD: OnceLock<Sender<HostWork>> = OnceLock::new();

/// Starts a thread that stays in the current network namespace, before the calling thread enters another.
pub(super) fn keep_namespace() -> io::Result<()> {
    let (sender, receiver) = channel::<HostWork>();
    Builder::new().name("host-network".to_owned()).spawn(move || {
        for work in receiver {
            // Run closures concurrently, or one after the other if no thread can be created.
            let shared = Arc::new(Mutex::new(Some(work)));
            let theirs = Arc::clone(&shared);
            let take = |shared: &Mutex<Option<HostWork>>| shared.lock().ok()?.take();
            let spawned = Builder::new().spawn(move || {
                if let Some(work) = take(&theirs) {
                    work();
                }
            });
            if spawned.is_err()
                && let Some(work) = take(&shared)
            {
                work();
            }
        }
    })?;
    // A process enters a pause process only once.
    let _ = HOST_THREAD.set(sender);
    Ok(())
}

/// Calls `work` in the host's network, and returns its result: on a new thread, or on the calling thread if this
/// process never left the host's network.
pub fn run<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let Some(resident) = HOST_THREAD.get() else { return work() };
    let (tell, told) = sync_channel(1);
    let span = tracing::Span::current();
    let job: Box<dyn FnOnce() + Send + '_> = Box::new(move || {
        let result = span.in_scope(|| catch_unwind(AssertUnwindSafe(work)));
        // The receiver waits for the result.
        let _ = tell.send(result);
    });
    #[expect(unsafe_code, reason = "threads that are there already take nothing that is borrowed")]
    // SAFETY: borrows of the closure live until this function returns, which happens only after the closure has
    // run or was dropped: both close the channel.
    let job = unsafe { std::mem::transmute::<Box<dyn FnOnce() + Send + '_>, HostWork>(job) };
    if resident.send(job).is_err() {
        unreachable!("the thread waits for work as long as the process lives");
    }
    match told.recv() {
        Ok(Ok(result)) => result,
        Ok(Err(panic)) => resume_unwind(panic),
        Err(_) => unreachable!("work that begins says how it ended"),
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn borrowing_work_runs_on_the_host_thread_if_it_exists() {
        let here = thread::current().id();
        let text = String::from("borrowed");
        assert_eq!(run(|| (thread::current().id(), text.len())), (here, 8));
        keep_namespace().unwrap();
        let (there, length) = run(|| (thread::current().id(), text.len()));
        assert!(there != here && length == 8);
        let both = thread::scope(|scope| {
            let one = scope.spawn(|| run(|| text.len()));
            (run(|| run(|| 1)), one.join().unwrap())
        });
        assert_eq!(both, (1, 8));
        let panic = catch_unwind(AssertUnwindSafe(|| run(|| panic!("seen"))));
        assert!(panic.is_err());
    }
}
