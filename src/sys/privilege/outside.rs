//! The network of the host, for a process that is in the network namespace of a holder: one of its threads
//! never entered that. What starts threads and programs from there has them in the host's network too.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Sender, channel, sync_channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::Builder;

/// What is to be done outside.
type Work = Box<dyn FnOnce() + Send>;

static RESIDENT: OnceLock<Sender<Work>> = OnceLock::new();

/// Leaves a thread in the network namespace that the calling thread is in, before that enters another.
pub(super) fn stay() -> io::Result<()> {
    let (sender, receiver) = channel::<Work>();
    Builder::new().name("outside".to_owned()).spawn(move || {
        for work in receiver {
            // Several may be waited for at once; where there can be no thread, one after the other.
            let shared = Arc::new(Mutex::new(Some(work)));
            let theirs = Arc::clone(&shared);
            let take = |shared: &Mutex<Option<Work>>| shared.lock().ok()?.take();
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
    // There is one door, which is passed once.
    let _ = RESIDENT.set(sender);
    Ok(())
}

/// Returns what `work` returns, which runs in the host's network: on a thread of its own there, or on this
/// one if this process never left it.
pub fn run<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let Some(resident) = RESIDENT.get() else { return work() };
    let (tell, told) = sync_channel(1);
    let span = tracing::Span::current();
    let job: Box<dyn FnOnce() + Send + '_> = Box::new(move || {
        let result = span.in_scope(|| catch_unwind(AssertUnwindSafe(work)));
        // Somebody waits for it.
        let _ = tell.send(result);
    });
    #[expect(unsafe_code, reason = "threads that are there already take nothing that is borrowed")]
    // SAFETY: what the work borrows lives until this function returns, and it does so only when the work has
    // been done, or dropped without being done: both end the channel.
    let job = unsafe { std::mem::transmute::<Box<dyn FnOnce() + Send + '_>, Work>(job) };
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
    fn work_may_borrow_and_is_done_on_another_thread_once_there_is_one() {
        let here = thread::current().id();
        let text = String::from("borrowed");
        assert_eq!(run(|| (thread::current().id(), text.len())), (here, 8));
        stay().unwrap();
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
