//! What all parts of one fetch share: whether it goes on, and why not.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use super::super::super::interrupt::Interrupt;
use crate::sys::fs::PathError;

/// Time between looks at whether a fetch is to go on.
pub const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A fetch under way. Clones share the state.
#[derive(Clone, Debug, Default)]
pub struct Transfer {
    stop: Arc<AtomicBool>,
    /// The first error of the connection: libraries would wrap it in words of theirs.
    fault: Arc<OnceLock<String>>,
}

impl Transfer {
    /// Calls a function with a transfer that stops at the deadline, or once the interrupt is set.
    pub fn run<T>(
        interrupt: &Interrupt,
        deadline: Instant,
        call: impl FnOnce(&Transfer) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let transfer = Transfer::default();
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let watch = || {
                while !over.load(Ordering::SeqCst) {
                    if interrupt.is_set() || Instant::now() >= deadline {
                        transfer.stop.store(true, Ordering::SeqCst);
                        return;
                    }
                    thread::park_timeout(POLL_INTERVAL);
                }
            };
            let watcher = thread::Builder::new().spawn_scoped(scope, watch);
            let watcher = watcher.map_err(|error| Failure::Message(error.to_string()))?;
            // Also if the call panics: the scope waits for the thread.
            let _end = OnDrop(|| {
                over.store(true, Ordering::SeqCst);
                watcher.thread().unpark();
            });
            call(&transfer)
        })
    }

    /// Returns the flag for libraries that look by themselves.
    pub fn flag(&self) -> &AtomicBool {
        &self.stop
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    /// Fails if the fetch is to stop.
    pub fn check(&self) -> Result<(), Failure> {
        if self.is_stopped() { Err(Failure::Stopped) } else { Ok(()) }
    }

    /// Notes an error of the connection; the first one counts.
    pub fn set_fault(&self, fault: &str) {
        // Later ones follow from it.
        let _ = self.fault.set(shown(fault));
    }

    /// Returns why an operation failed whose own error is this.
    pub fn failure(&self, error: impl ToString) -> Failure {
        if self.is_stopped() {
            return Failure::Stopped;
        }
        Failure::Message(self.fault.get().cloned().unwrap_or_else(|| shown(&error.to_string())))
    }
}

/// Calls a function when it goes out of scope.
struct OnDrop<F: Fn()>(F);

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// An error in fetching.
#[derive(Debug)]
pub enum Failure {
    /// The time is over, or nobody waits any more.
    Stopped,
    /// The server does not know the protocol.
    Outdated,
    /// The server rejects what is asked for, in its words.
    Rejected(String),
    /// Anything else of the server, its data or the connection.
    Message(String),
    /// A file cannot be written.
    Path(PathError),
}

impl From<PathError> for Failure {
    fn from(error: PathError) -> Self {
        Failure::Path(error)
    }
}

/// Returns an error of data that a server sent.
pub fn malformed(error: impl ToString) -> Failure {
    Failure::Message(shown(&error.to_string()))
}

/// Returns a text of a server as part of a line, without what would do something to a terminal.
pub fn shown(text: &str) -> String {
    let line = text.trim().lines().next().unwrap_or_default();
    let shown: String = line.chars().filter(|c| !c.is_control()).take(500).collect();
    if shown.is_empty() { "no error message".to_owned() } else { shown }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transfer_stops_at_its_deadline_and_by_its_interrupt() {
        let hour = || Instant::now() + Duration::from_secs(3600);
        let interrupt = Interrupt::new().unwrap();
        let wait = |transfer: &Transfer| -> Result<(), Failure> {
            while !transfer.is_stopped() {
                thread::yield_now();
            }
            transfer.check()
        };
        let ended = Transfer::run(&interrupt, Instant::now(), wait);
        assert!(matches!(ended, Err(Failure::Stopped)));
        assert!(Transfer::run(&interrupt, hour(), |_| Ok(())).is_ok());
        let other = interrupt.clone();
        let setter = thread::spawn(move || other.set());
        assert!(matches!(Transfer::run(&interrupt, hour(), wait), Err(Failure::Stopped)));
        setter.join().unwrap();
    }
}
