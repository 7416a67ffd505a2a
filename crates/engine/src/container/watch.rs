//! Follows a process of a container until it ends, and passes its output on.

use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};

use oci_hooks_host::identity::ProcessIdentity;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, WaitOptions, WaitStatus, pidfd_open, wait};

use super::logs::{LogWriter, StdStream};

/// Limit of each wait for output after the process has ended, if another process holds the streams
/// open.
const DRAIN_PAUSE: Duration = Duration::from_secs(1);
/// Limit of the whole time of reading output after the process has ended.
const DRAIN: Duration = Duration::from_secs(5);

/// Receiver of a process's output, which also sets the process's deadline.
pub trait OutputReceiver {
    /// Receives output of the process.
    fn take(&mut self, stream: StdStream, bytes: &[u8]);

    /// Returns when to kill the process if it still runs; called again after each output.
    fn deadline(&self) -> Option<Instant> {
        None
    }
}

/// Writes output to the log. Errors are ignored, because they must not block the container.
impl OutputReceiver for LogWriter {
    fn take(&mut self, stream: StdStream, bytes: &[u8]) {
        let _ = self.add(stream, bytes);
    }
}

/// A process and its output streams. The process must be a child of this one, or adopted by it.
pub struct ProcessWatch {
    /// `None` if the process ended before it could be identified.
    pub process: Option<ProcessIdentity>,
    pub streams: [Option<OwnedFd>; 2],
}

impl ProcessWatch {
    /// Reads until the process has ended and its streams are closed, or its deadline has passed. Returns
    /// whether it has ended; if so, `on_end` gets its exit code, or 128 plus the signal that ended it.
    pub fn read_until_end(
        mut self,
        receiver: &mut impl OutputReceiver,
        mut on_end: impl FnMut(i32),
    ) -> Result<bool, Errno> {
        for stream in self.streams.iter().flatten() {
            fcntl_setfl(stream, OFlags::NONBLOCK)?;
        }
        // A zombie can be opened too: its descriptor is then readable at once.
        let pid = self.process.and_then(|process| Pid::from_raw(i32::try_from(process.pid).ok()?));
        let mut pidfd = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        let mut drain_end = None;
        if pidfd.is_none() {
            self.collect(&mut on_end);
            drain_end = Some(Instant::now() + DRAIN);
        }
        while pidfd.is_some() || self.streams.iter().any(Option::is_some) {
            let now = Instant::now();
            let until = match drain_end {
                Some(drain_end) => Some(drain_end.min(now + DRAIN_PAUSE)),
                None => receiver.deadline(),
            };
            let left = until.map(|until| until.saturating_duration_since(now));
            let timeout = left.and_then(|left| Timespec::try_from(left).ok());
            let mut polled: Vec<_> = self
                .streams
                .iter()
                .flatten()
                .map(|stream| PollFd::new(stream, PollFlags::IN))
                .collect();
            polled.extend(pidfd.as_ref().map(|fd| PollFd::new(fd, PollFlags::IN)));
            match poll(&mut polled, timeout.as_ref()) {
                Ok(0) => break,
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => break,
            }
            let has_ended =
                pidfd.is_some() && polled.last().is_some_and(|last| !last.revents().is_empty());
            drop(polled);
            self.read(receiver);
            // Also if there is always output.
            if !has_ended && until.is_some_and(|until| until <= now) {
                break;
            }
            if has_ended {
                pidfd = None;
                self.collect(&mut on_end);
                drain_end = Some(Instant::now() + DRAIN);
            }
        }
        Ok(pidfd.is_none())
    }

    fn read(&mut self, receiver: &mut impl OutputReceiver) {
        let mut buffer = [0; 64 << 10];
        for (slot, stream) in self.streams.iter_mut().zip([StdStream::Stdout, StdStream::Stderr]) {
            let Some(fd) = slot else { continue };
            match rustix::io::read(fd.as_fd(), &mut buffer) {
                Ok(0) => *slot = None,
                Ok(count) => receiver.take(stream, &buffer[..count]),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(_) => *slot = None,
            }
        }
    }

    /// Reaps all ended children, the process included.
    fn collect(&self, on_end: &mut impl FnMut(i32)) {
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            let is_it = self.process.is_some_and(|process| {
                u32::try_from(pid.as_raw_nonzero().get()) == Ok(process.pid)
            });
            if is_it {
                on_end(code(status));
            }
        }
    }
}

/// Returns the exit code that shells use for a status.
fn code(status: WaitStatus) -> i32 {
    status
        .exit_status()
        .or_else(|| status.terminating_signal().map(|signal| 128 + signal))
        .unwrap_or(1)
}
