//! Threads of tests.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Repeats something in another thread until some work ends, even by a panic.
pub fn repeat_during<T>(mut repeated: impl FnMut() + Send, work: impl FnOnce() -> T) -> T {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                repeated();
            }
        });
        let _end = EndOfWork(&is_over);
        work()
    })
}

struct EndOfWork<'a>(&'a AtomicBool);

impl Drop for EndOfWork<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
