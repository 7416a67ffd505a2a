//! Reads the output pipes of commands until all writers have closed them.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use super::super::log::{LogStream, OutputSink, OutputSource};

/// Maximum number of bytes read from one pipe before others have their turn: the default capacity
/// of a pipe.
const READ_BYTES: usize = 64 << 10;

/// Maximum number of bytes read from each pipe after a command has exited, as a background process
/// may write forever. This includes all output of the command: by default (`pipe-max-size`), only
/// root can create a larger pipe.
const MAX_DRAIN_BYTES: usize = 1 << 20;

/// The pipes of a job's commands.
///
/// Pipes are read in the order in which they become readable. Bytes of one pipe stay in order. Output
/// written to two pipes before either is read arrives as two pieces, one for each pipe.
#[derive(Debug)]
pub struct OutputPipes {
    open: Vec<Pipe>,
    /// Reports readable pipes, the longest waiting first.
    epoll: OwnedFd,
    buffer: Vec<u8>,
}

#[derive(Debug)]
struct Pipe {
    fd: OwnedFd,
    stream: LogStream,
}

/// Reason for which [`OutputPipes::pump`] returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PumpEvent {
    /// The descriptor with this index in `events` is readable.
    Readable(usize),
    Timeout,
}

impl OutputPipes {
    pub(super) fn new() -> io::Result<Self> {
        Ok(OutputPipes {
            open: Vec::new(),
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            buffer: Vec::with_capacity(READ_BYTES),
        })
    }

    /// Creates a pipe for a stream of a command, and returns its write end.
    pub fn add(&mut self, stream: LogStream) -> io::Result<OwnedFd> {
        let (fd, writer) = pipe_with(PipeFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&fd, true)?;
        epoll::add(&self.epoll, &fd, key_of(&fd), epoll::EventFlags::IN)?;
        self.open.push(Pipe { fd, stream });
        Ok(writer)
    }

    /// Forwards output until one of `events` is readable, or the deadline is over.
    pub fn pump(
        &mut self,
        events: &[BorrowedFd<'_>],
        deadline: Option<Instant>,
        output: &mut dyn OutputSink,
    ) -> io::Result<PumpEvent> {
        loop {
            if let Some(event) = self.poll_once(events, deadline, output)? {
                return Ok(event);
            }
        }
    }

    /// Forwards output until all pipes are closed, one of `events` is readable, or the deadline is
    /// over. Returns whether all pipes are closed.
    pub fn pump_rest(
        &mut self,
        events: &[BorrowedFd<'_>],
        deadline: Instant,
        output: &mut dyn OutputSink,
    ) -> io::Result<bool> {
        while !self.open.is_empty() {
            if self.poll_once(events, Some(deadline), output)?.is_some() {
                break;
            }
        }
        Ok(self.open.is_empty())
    }

    fn poll_once(
        &mut self,
        events: &[BorrowedFd<'_>],
        deadline: Option<Instant>,
        output: &mut dyn OutputSink,
    ) -> io::Result<Option<PumpEvent>> {
        let now = Instant::now();
        let release = output.release(now);
        let next = deadline.into_iter().chain(release).min();
        let left = next.map(|at| at.saturating_duration_since(now));
        let left = left.map(|left| Timespec::try_from(left).expect("jobs end within ages"));
        let all = events.iter().copied().chain([self.epoll.as_fd()]);
        let mut fds: Vec<_> = all.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        match poll(&mut fds, left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let event = fds[..events.len()].iter().position(|fd| !fd.revents().is_empty());
        if !fds[events.len()].revents().is_empty() {
            self.read_once(output)?;
        }
        if let Some(index) = event {
            return Ok(Some(PumpEvent::Readable(index)));
        }
        Ok(deadline.filter(|deadline| *deadline <= now).map(|_| PumpEvent::Timeout))
    }

    /// Forwards the output written so far, without blocking.
    pub fn drain(&mut self, output: &mut dyn OutputSink) -> io::Result<()> {
        for _ in 0..MAX_DRAIN_BYTES.div_ceil(READ_BYTES) {
            if !self.read_once(output)? {
                break;
            }
        }
        Ok(())
    }

    /// Reads each readable pipe once. Returns whether any pipe was readable.
    fn read_once(&mut self, output: &mut dyn OutputSink) -> io::Result<bool> {
        if self.open.is_empty() {
            return Ok(false);
        }
        let mut ready = Vec::with_capacity(self.open.len());
        match epoll::wait(&self.epoll, spare_capacity(&mut ready), Some(&Timespec::default())) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(true),
            Err(error) => return Err(error.into()),
        }
        for event in &ready {
            let key = event.data;
            let is_it = |pipe: &Pipe| key_of(&pipe.fd).u64() == key.u64();
            let Some(index) = self.open.iter().position(is_it) else { continue };
            let Pipe { fd, stream } = &self.open[index];
            self.buffer.clear();
            match rustix::io::read(fd, spare_capacity(&mut self.buffer)) {
                Ok(0) => {
                    epoll::delete(&self.epoll, fd)?;
                    self.open.remove(index);
                }
                Ok(_) => {
                    output.write(OutputSource::Step, *stream, &self.buffer);
                }
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(!ready.is_empty())
    }
}

/// Returns whether a deadline is set and over.
pub fn is_over(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| deadline <= Instant::now())
}

/// Returns the key under which epoll reports that a pipe is readable.
fn key_of(fd: &OwnedFd) -> epoll::EventData {
    epoll::EventData::new_u64(u64::from(fd.as_raw_fd().cast_unsigned()))
}

#[cfg(test)]
mod tests {
    use std::io::{PipeWriter, Write, pipe};
    use std::time::Duration;

    use oci_hooks_testsupport::program::DEADLINE;

    use super::super::super::log::{Masking, PlainOutput};
    use super::*;

    /// Writes a byte to a pipe at the end of each line.
    struct LineSignal(PipeWriter);

    impl Write for LineSignal {
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
    fn possible_start_of_a_secret_is_shown_while_the_command_is_silent() {
        let mut masking = Masking::default();
        masking.add_secret("a-longer-secret");
        let (seen, line) = pipe().unwrap();
        let mut output =
            PlainOutput::new(Box::new(LineSignal(line)), Box::new(io::sink()), &masking).unwrap();
        let mut pipes = OutputPipes::new().unwrap();
        let command = pipes.add(LogStream::Out).unwrap();
        rustix::io::write(&command, b"this is A-LON\n").unwrap();
        let deadline = Instant::now() + DEADLINE;
        let event = pipes.pump(&[seen.as_fd()], Some(deadline), &mut output).unwrap();
        assert_eq!(event, PumpEvent::Readable(0));
    }

    /// Joins the output of both streams.
    struct JoinedOutput(String);

    impl OutputSink for JoinedOutput {
        fn write(&mut self, _: OutputSource, _: LogStream, bytes: &[u8]) {
            self.0.push_str(std::str::from_utf8(bytes).unwrap());
        }

        fn flush(&mut self) {}

        fn mask(&mut self, _: &str) {}
    }

    #[test]
    fn pipes_are_read_in_the_order_of_readiness() {
        let mut pipes = OutputPipes::new().unwrap();
        let [out, err] = [LogStream::Out, LogStream::Err].map(|stream| pipes.add(stream).unwrap());
        let mut output = JoinedOutput(String::new());
        for (first, second) in [(&out, &err), (&err, &out)] {
            for (pipe, text) in [(first, "1 "), (second, "2 "), (first, "3 "), (second, "4\n")] {
                rustix::io::write(pipe, text.as_bytes()).unwrap();
            }
            pipes.drain(&mut output).unwrap();
        }
        assert_eq!(output.0, "1 3 2 4\n1 3 2 4\n");
    }

    #[test]
    fn rest_of_a_pipe_is_read_until_closed_or_the_deadline() {
        let mut pipes = OutputPipes::new().unwrap();
        let [out, err] = [LogStream::Out, LogStream::Err].map(|stream| pipes.add(stream).unwrap());
        let mut output = JoinedOutput(String::new());
        rustix::io::write(&out, b"open").unwrap();
        rustix::io::write(&err, b" closed").unwrap();
        drop(err);
        // Pending output is forwarded even if the deadline is over.
        assert!(!pipes.pump_rest(&[], Instant::now(), &mut output).unwrap());
        let writer = std::thread::spawn(move || {
            std::thread::park_timeout(Duration::from_millis(300));
            rustix::io::write(&out, b" late").unwrap();
        });
        assert!(pipes.pump_rest(&[], Instant::now() + DEADLINE, &mut output).unwrap());
        writer.join().unwrap();
        assert_eq!(output.0, "open closed late");
    }
}
