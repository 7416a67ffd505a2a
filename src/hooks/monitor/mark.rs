//! A mark in the stream of events: once it is seen, so is all that happened before it.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use notify::{Event, INotifyWatcher, RecursiveMode, Watcher};
use rustix::fs::{MemfdFlags, Mode, fchmod, memfd_create};

/// A mark takes microseconds, and a full queue of events before it milliseconds.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// A file in memory that is watched like all else: the kernel queues events in their order. Without
/// `/proc` it has no path and is not watched; then what happened just before a call may be taken note of
/// after it.
pub(super) struct Mark {
    file: OwnedFd,
    path: PathBuf,
    state: Mutex<State>,
    seen: Condvar,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Unwatched,
    Seen,
    Awaited,
}

impl Mark {
    pub(super) fn new() -> Result<Self, io::Error> {
        let file = memfd_create("monitor", MemfdFlags::CLOEXEC)?;
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        Ok(Mark { file, path, state: Mutex::new(State::Unwatched), seen: Condvar::new() })
    }

    pub(super) fn watch(&self, notify: &mut INotifyWatcher) {
        if notify.watch(&self.path, RecursiveMode::NonRecursive).is_ok() {
            self.set(State::Seen);
        }
    }

    /// Returns whether an event is the mark, which is seen then.
    pub(super) fn take(&self, event: &Event) -> bool {
        let is_mark = event.paths.first() == Some(&self.path);
        // Where events were dropped, the mark may be among them.
        if is_mark || event.need_rescan() {
            self.set(State::Seen);
            self.seen.notify_all();
        }
        is_mark
    }

    /// Waits until all events so far were handled, and returns whether they were. If not, they are taken
    /// note of later.
    pub(super) fn wait(&self) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if *state == State::Unwatched {
            return false;
        }
        *state = State::Awaited;
        // Since Linux 6.14 what is written by such a descriptor is no event.
        if fchmod(&self.file, Mode::RUSR | Mode::WUSR).is_err() {
            return false;
        }
        let waited = self.seen.wait_timeout_while(state, LONGEST_WAIT, |it| *it == State::Awaited);
        waited.is_ok_and(|(_, waited)| !waited.timed_out())
    }

    fn set(&self, state: State) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }
}
