//! Runs closures on new threads: to change thread attributes that cannot be reset, and for concurrent work.

use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, Builder, Scope, ScopedJoinHandle};

use tracing::Span;

/// Calls `work` on a new thread, and returns its result. The thread can change its own namespaces,
/// groups and user ids. Its `tracing` events belong to the caller's span.
pub(super) fn run<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let span = Span::current();
    let result = thread::scope(|scope| scope.spawn(|| span.in_scope(work)).join());
    result.unwrap_or_else(|panic| resume_unwind(panic))
}

/// A closure that was passed to [`spawn_or_call`], or its result.
pub enum ConcurrentWork<'scope, T> {
    Running(ScopedJoinHandle<'scope, T>),
    Done(T),
}

/// Calls `work` on a new thread or, if no thread can be created, on the calling one: a job that uses up the host's
/// limit of processes must not prevent the removal of containers.
pub fn spawn_or_call<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> ConcurrentWork<'scope, T> {
    spawn_or_call_with(Builder::new(), scope, work)
}

fn spawn_or_call_with<'scope, T: Send + 'scope>(
    builder: Builder,
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> ConcurrentWork<'scope, T> {
    let span = Span::current();
    // If the thread cannot be created, the closure passed to it is dropped.
    let shared = Arc::new(Mutex::new(Some(work)));
    let take = |shared: &Mutex<Option<_>>| {
        shared.lock().unwrap_or_else(PoisonError::into_inner).take().expect("it is done once")
    };
    let theirs = Arc::clone(&shared);
    match builder.spawn_scoped(scope, move || span.in_scope(take(&theirs))) {
        Ok(thread) => ConcurrentWork::Running(thread),
        Err(_) => ConcurrentWork::Done(take(&shared)()),
    }
}

impl<T> ConcurrentWork<'_, T> {
    /// Waits for the closure, and returns its result.
    pub fn join(self) -> T {
        match self {
            ConcurrentWork::Running(thread) => {
                thread.join().unwrap_or_else(|panic| resume_unwind(panic))
            }
            ConcurrentWork::Done(result) => result,
        }
    }
}

#[test]
fn work_runs_on_this_thread_if_no_other_can_start() {
    let here = thread::current().id();
    let threads = [Builder::new(), Builder::new().stack_size(1 << 50)].map(|builder| {
        thread::scope(|scope| spawn_or_call_with(builder, scope, || thread::current().id()).join())
    });
    assert_ne!(threads[0], here);
    assert_eq!(threads[1], here);
}
