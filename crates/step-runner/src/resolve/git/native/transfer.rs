//! The state of one fetch: whether it is stopped, and its first error.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use oci_hooks_files::fs::PathError;

use super::super::super::interrupt::Interrupt;

/// Interval for checking whether a fetch is stopped.
pub const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A fetch under way. Clones share the state.
#[derive(Clone, Debug, Default)]
pub struct GitTransfer {
    stop: Arc<AtomicBool>,
    /// The first error of the connection, which libraries would wrap in their own messages.
    fault: Arc<OnceLock<String>>,
}

impl GitTransfer {
    /// Calls a function with a transfer that stops at the deadline, or once the interrupt is set.
    pub fn run<T>(
        interrupt: &Interrupt,
        deadline: Instant,
        call: impl FnOnce(&GitTransfer) -> Result<T, TransferError>,
    ) -> Result<T, TransferError> {
        let transfer = GitTransfer::default();
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
            let watcher = watcher.map_err(|error| TransferError::Message(error.to_string()))?;
            // Runs even if `call` panics, as the scope waits for the thread.
            let _end = OnDrop(|| {
                over.store(true, Ordering::SeqCst);
                watcher.thread().unpark();
            });
            call(&transfer)
        })
    }

    /// Returns the flag for libraries that poll it.
    pub fn flag(&self) -> &AtomicBool {
        &self.stop
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    /// Fails if the fetch is stopped.
    pub fn check(&self) -> Result<(), TransferError> {
        if self.is_stopped() { Err(TransferError::Stopped) } else { Ok(()) }
    }

    /// Records an error of the connection; the first one counts.
    pub fn set_fault(&self, fault: &str) {
        // Later errors are consequences of the first.
        let _ = self.fault.set(shorten_line(fault));
    }

    /// Returns the cause of an operation's error: a stopped fetch, or an error of the connection, or else
    /// this error.
    pub fn failure(&self, error: impl ToString) -> TransferError {
        if self.is_stopped() {
            return TransferError::Stopped;
        }
        TransferError::Message(
            self.fault.get().cloned().unwrap_or_else(|| shorten_line(&error.to_string())),
        )
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
pub enum TransferError {
    /// The fetch is stopped: its deadline is over, or the job is cancelled.
    Stopped,
    /// The server does not know the protocol.
    Outdated,
    /// The server rejects the request with this message.
    Rejected(String),
    /// Another error of the server, its data or the connection.
    Message(String),
    /// A file cannot be written.
    Path(PathError),
}

impl From<PathError> for TransferError {
    fn from(error: PathError) -> Self {
        TransferError::Path(error)
    }
}

/// Returns the error for malformed data of a server.
pub fn malformed_error(error: impl ToString) -> TransferError {
    TransferError::Message(shorten_line(&error.to_string()))
}

/// Returns the first line of a server's text, shortened and without control characters.
pub fn shorten_line(text: &str) -> String {
    let line = text.trim().lines().next().unwrap_or_default();
    let shown: String = line.chars().filter(|c| !c.is_control()).take(500).collect();
    if shown.is_empty() { "no error message".to_owned() } else { shown }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfer_stops_at_its_deadline_or_interrupt() {
        let hour = || Instant::now() + Duration::from_secs(3600);
        let interrupt = Interrupt::new().unwrap();
        let wait = |transfer: &GitTransfer| -> Result<(), TransferError> {
            while !transfer.is_stopped() {
                thread::yield_now();
            }
            transfer.check()
        };
        let ended = GitTransfer::run(&interrupt, Instant::now(), wait);
        assert!(matches!(ended, Err(TransferError::Stopped)));
        assert!(GitTransfer::run(&interrupt, hour(), |_| Ok(())).is_ok());
        let other = interrupt.clone();
        let setter = thread::spawn(move || other.set());
        assert!(matches!(GitTransfer::run(&interrupt, hour(), wait), Err(TransferError::Stopped)));
        setter.join().unwrap();
    }
}
