//! Staying with a process of a container until it ends, and keeping what it writes.

use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, WaitOptions, WaitStatus, pidfd_open, wait};

use super::logs::{LogWriter, Stream};
use crate::sys::identity::Identity;

/// How long the output of a process that ended is waited for when another one still holds it.
const DRAIN: Duration = Duration::from_secs(1);

/// Who is given what a process writes, and says how long it may run.
pub trait Attendant {
    /// Takes what the process wrote.
    fn take(&mut self, stream: Stream, bytes: &[u8]);

    /// When the process is killed if it still runs; asked again after each thing it writes.
    fn deadline(&self) -> Option<Instant> {
        None
    }
}

/// A log that cannot be written must not block the container.
impl Attendant for LogWriter {
    fn take(&mut self, stream: Stream, bytes: &[u8]) {
        let _ = self.add(stream, bytes);
    }
}

/// A process and the streams it writes to. The process must be a child of this one or have been
/// adopted by it.
pub struct Watch {
    /// None if it had ended before anybody could look.
    pub process: Option<Identity>,
    /// Its standard output and standard error.
    pub streams: [Option<OwnedFd>; 2],
}

impl Watch {
    /// Reads until the process has ended and nobody holds its streams, or its time is over;
    /// returns whether it has ended. When it has, `on_end` gets its code, or 128 and the signal that
    /// ended it.
    pub fn until_the_end(
        mut self,
        attendant: &mut impl Attendant,
        mut on_end: impl FnMut(i32),
    ) -> Result<bool, Errno> {
        for stream in self.streams.iter().flatten() {
            fcntl_setfl(stream, OFlags::NONBLOCK)?;
        }
        // Opened when it is a zombie already, too: then it is readable at once.
        let pid = self.process.and_then(|process| Pid::from_raw(i32::try_from(process.pid).ok()?));
        let mut pidfd = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        if pidfd.is_none() {
            self.collect(&mut on_end);
        }
        while pidfd.is_some() || self.streams.iter().any(Option::is_some) {
            let left = if pidfd.is_some() {
                let deadline = attendant.deadline();
                deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))
            } else {
                Some(DRAIN)
            };
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
            self.read(attendant);
            if has_ended {
                pidfd = None;
                self.collect(&mut on_end);
            }
        }
        Ok(pidfd.is_none())
    }

    /// Reads what there is.
    fn read(&mut self, attendant: &mut impl Attendant) {
        let mut buffer = [0; 64 << 10];
        for (slot, stream) in self.streams.iter_mut().zip([Stream::Stdout, Stream::Stderr]) {
            let Some(fd) = slot else { continue };
            match rustix::io::read(fd.as_fd(), &mut buffer) {
                Ok(0) => *slot = None,
                Ok(count) => attendant.take(stream, &buffer[..count]),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(_) => *slot = None,
            }
        }
    }

    /// Collects all that ended; the process is among them.
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

/// Returns a status as shells do.
fn code(status: WaitStatus) -> i32 {
    status
        .exit_status()
        .or_else(|| status.terminating_signal().map(|signal| 128 + signal))
        .unwrap_or(1)
}
