//! Work on a thread of its own, where what is set for a thread cannot be set back.

use std::panic::resume_unwind;
use std::thread;

use tracing::Span;

/// Returns what `work` returns, which runs on a new thread that ends with it: its namespaces, groups
/// and user ids are nobody else's. Its events belong to the caller's span.
pub(super) fn run<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let span = Span::current();
    let result = thread::scope(|scope| scope.spawn(|| span.in_scope(work)).join());
    result.unwrap_or_else(|panic| resume_unwind(panic))
}
