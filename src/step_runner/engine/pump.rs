//! Reading the output pipes of commands until all writers have closed them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::super::log::{Output, Source, Stream};

/// As large as a pipe is by default, so that one read empties it.
const BUFFER_BYTES: usize = 64 << 10;

/// How much is read of a pipe after its command has exited: what was in it then, but not what a
/// background process continues to write.
const MAX_DRAIN_BYTES: usize = 1 << 20;

/// The pipes of a job's commands.
#[derive(Debug)]
pub(super) struct Pipes {
    open: Vec<Pipe>,
    buffer: Vec<u8>,
}

#[derive(Debug)]
struct Pipe {
    fd: OwnedFd,
    stream: Stream,
}

/// Result of [`Pipes::pump`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PumpEvent {
    /// The event descriptor with this index is readable.
    Readable(usize),
    Timeout,
}

impl Pipes {
    pub(super) fn new() -> Self {
        Pipes { open: Vec::new(), buffer: vec![0; BUFFER_BYTES] }
    }

    pub(super) fn add(&mut self, fd: OwnedFd, stream: Stream) -> io::Result<()> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        self.open.push(Pipe { fd, stream });
        Ok(())
    }

    /// Forwards output until one of these descriptors is readable, or until the deadline.
    pub(super) fn pump(
        &mut self,
        events: &[BorrowedFd<'_>],
        deadline: Option<Instant>,
        output: &mut dyn Output,
    ) -> io::Result<PumpEvent> {
        loop {
            let now = Instant::now();
            let release = output.release(now);
            let next = deadline.into_iter().chain(release).min();
            let left = next.map(|at| at.saturating_duration_since(now));
            let ready = self.poll(events, left)?;
            for index in (0..self.open.len()).rev() {
                if ready[events.len() + index] && !self.read(index, output)? {
                    self.open.swap_remove(index);
                }
            }
            if let Some(index) = ready[..events.len()].iter().position(|ready| *ready) {
                return Ok(PumpEvent::Readable(index));
            }
            if deadline.is_some_and(|deadline| deadline <= now) {
                return Ok(PumpEvent::Timeout);
            }
        }
    }

    fn poll(&self, events: &[BorrowedFd<'_>], left: Option<Duration>) -> io::Result<Vec<bool>> {
        let pipes = self.open.iter().map(|pipe| pipe.fd.as_fd());
        let all = events.iter().copied().chain(pipes);
        let mut fds: Vec<_> = all.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let left = left.map(|left| Timespec::try_from(left).expect("jobs end within ages"));
        match poll(&mut fds, left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(fds.iter().map(|fd| !fd.revents().is_empty()).collect())
    }

    /// Reads a pipe once. Returns whether it is still open.
    fn read(&mut self, index: usize, output: &mut dyn Output) -> io::Result<bool> {
        let pipe = &self.open[index];
        match rustix::io::read(&pipe.fd, self.buffer.as_mut_slice()) {
            Ok(0) => Ok(false),
            Ok(length) => {
                output.write(Source::Step, pipe.stream, &self.buffer[..length]);
                Ok(true)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    /// Forwards what has been written until now, without blocking.
    pub(super) fn drain(&mut self, output: &mut dyn Output) -> io::Result<()> {
        for index in (0..self.open.len()).rev() {
            let mut read = 0;
            loop {
                let pipe = &self.open[index];
                match rustix::io::read(&pipe.fd, self.buffer.as_mut_slice()) {
                    Ok(0) => {
                        self.open.swap_remove(index);
                        break;
                    }
                    Ok(length) => {
                        output.write(Source::Step, pipe.stream, &self.buffer[..length]);
                        read += length;
                        if read >= MAX_DRAIN_BYTES {
                            break;
                        }
                    }
                    Err(Errno::INTR) => {}
                    Err(Errno::AGAIN) => break,
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{PipeWriter, Write, pipe};

    use super::super::super::log::{Masking, Plain};
    use super::*;

    /// Reports on a pipe that a line has come to its end.
    struct Lines(PipeWriter);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if bytes.ends_with(b"\n") {
                self.0.write_all(b"\n")?;
            }
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_that_may_begin_a_secret_is_shown_while_its_command_says_nothing_more() {
        let mut masking = Masking::default();
        masking.add_secret("a-longer-secret");
        let (seen, line) = pipe().unwrap();
        let mut output = Plain::new(Box::new(Lines(line)), Box::new(io::sink()), &masking).unwrap();
        let mut pipes = Pipes::new();
        let (command, mut writes) = pipe().unwrap();
        pipes.add(command.into(), Stream::Out).unwrap();
        writes.write_all(b"this is A-LON\n").unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        let event = pipes.pump(&[seen.as_fd()], Some(deadline), &mut output).unwrap();
        assert_eq!(event, PumpEvent::Readable(0));
    }
}
