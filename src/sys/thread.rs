//! Work on a thread of its own: where what is set for a thread cannot be set back, and beside other
//! work.

use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, Builder, Scope, ScopedJoinHandle};

use tracing::Span;

/// Returns what `work` returns, which runs on a new thread that ends with it: its namespaces, groups
/// and user ids are nobody else's. Its events belong to the caller's span.
pub(super) fn run<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let span = Span::current();
    let result = thread::scope(|scope| scope.spawn(|| span.in_scope(work)).join());
    result.unwrap_or_else(|panic| resume_unwind(panic))
}

/// Work that was given to [`beside`].
pub(crate) enum Beside<'scope, T> {
    Running(ScopedJoinHandle<'scope, T>),
    Done(T),
}

/// Does work on a further thread or, where there can be none, on this one before it returns: a job that
/// fills the host with processes must not keep containers from being removed.
pub(crate) fn beside<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Beside<'scope, T> {
    beside_by(Builder::new(), scope, work)
}

fn beside_by<'scope, T: Send + 'scope>(
    builder: Builder,
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Beside<'scope, T> {
    let span = Span::current();
    // The thread that could not be made takes what it was given with it.
    let shared = Arc::new(Mutex::new(Some(work)));
    let take = |shared: &Mutex<Option<_>>| {
        shared.lock().unwrap_or_else(PoisonError::into_inner).take().expect("it is done once")
    };
    let theirs = Arc::clone(&shared);
    match builder.spawn_scoped(scope, move || span.in_scope(take(&theirs))) {
        Ok(thread) => Beside::Running(thread),
        Err(_) => Beside::Done(take(&shared)()),
    }
}

impl<T> Beside<'_, T> {
    /// Waits for what the work returns.
    pub fn join(self) -> T {
        match self {
            Beside::Running(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
            Beside::Done(result) => result,
        }
    }
}

#[test]
fn without_a_further_thread_work_is_done_on_this_one() {
    let here = thread::current().id();
    let threads = [Builder::new(), Builder::new().stack_size(1 << 50)].map(|builder| {
        thread::scope(|scope| beside_by(builder, scope, || thread::current().id()).join())
    });
    assert_ne!(threads[0], here);
    assert_eq!(threads[1], here);
}
