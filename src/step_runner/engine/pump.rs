//! Reading the output pipes of commands until all writers have closed them.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use super::super::log::{Output, Source, Stream};
use crate::sys::init::drain::Drain;

/// How much is read of a pipe before others have their turn: all that fits into one of the usual size.
const READ_BYTES: usize = 64 << 10;

/// How much is read of a pipe after its command has exited: what was in it then, but not what a
/// background process continues to write.
const MAX_DRAIN_BYTES: usize = 1 << 20;

/// The pipes of a job's commands.
///
/// They are read in the order in which they become readable. Bytes of one pipe stay in order. What was written to
/// two of them before either is read comes in two pieces, one for each pipe.
#[derive(Debug)]
pub struct Pipes {
    open: Vec<Pipe>,
    /// Reports readable pipes, the one that has waited longest first.
    epoll: OwnedFd,
    buffer: Vec<u8>,
    read_bytes: u64,
}

#[derive(Debug)]
struct Pipe {
    fd: OwnedFd,
    stream: Stream,
}

/// Result of [`Pipes::pump`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PumpEvent {
    /// The event descriptor with this index is readable.
    Readable(usize),
    Timeout,
}

impl Pipes {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Pipes {
            open: Vec::new(),
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            buffer: vec![0; READ_BYTES],
            read_bytes: 0,
        })
    }

    /// Makes a pipe for a stream of a command, and returns its end for writing.
    pub fn add(&mut self, stream: Stream) -> io::Result<OwnedFd> {
        let (fd, writer) = pipe_with(PipeFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&fd, true)?;
        epoll::add(&self.epoll, &fd, key_of(&fd), epoll::EventFlags::IN)?;
        self.open.push(Pipe { fd, stream });
        Ok(writer)
    }

    /// Forwards output until one of these descriptors is readable, or until the deadline.
    pub fn pump(
        &mut self,
        events: &[BorrowedFd<'_>],
        deadline: Option<Instant>,
        output: &mut dyn Output,
    ) -> io::Result<PumpEvent> {
        loop {
            if let Some(event) = self.turn(events, deadline, output)? {
                return Ok(event);
            }
        }
    }

    /// Forwards output until all pipes are closed, no more comes and no process is busy, one of these descriptors is
    /// readable, or the deadline is over.
    pub fn pump_rest(
        &mut self,
        events: &[BorrowedFd<'_>],
        deadline: Option<Instant>,
        is_busy: &dyn Fn() -> bool,
        output: &mut dyn Output,
    ) -> io::Result<()> {
        let mut drain = Drain::start();
        while !self.open.is_empty() {
            let before = self.read_bytes;
            let end = deadline.into_iter().chain([drain.ends_at()]).min();
            let event = self.turn(events, end, output)?;
            // Also if this process was late, and there was something to read.
            if self.read_bytes > before || drain.is_over() && is_busy() {
                drain.prolong();
            }
            match event {
                Some(PumpEvent::Readable(_)) => break,
                Some(PumpEvent::Timeout) if drain.is_over() || is_over(deadline) => break,
                Some(PumpEvent::Timeout) | None => {}
            }
        }
        Ok(())
    }

    fn turn(
        &mut self,
        events: &[BorrowedFd<'_>],
        deadline: Option<Instant>,
        output: &mut dyn Output,
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
            self.round(output)?;
        }
        if let Some(index) = event {
            return Ok(Some(PumpEvent::Readable(index)));
        }
        Ok(deadline.filter(|deadline| *deadline <= now).map(|_| PumpEvent::Timeout))
    }

    /// Forwards what has been written until now, without blocking.
    pub fn drain(&mut self, output: &mut dyn Output) -> io::Result<()> {
        for _ in 0..MAX_DRAIN_BYTES.div_ceil(READ_BYTES) {
            if !self.round(output)? {
                break;
            }
        }
        Ok(())
    }

    /// Reads each readable pipe once. Returns whether there were any.
    fn round(&mut self, output: &mut dyn Output) -> io::Result<bool> {
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
            match rustix::io::read(fd, &mut self.buffer[..]) {
                Ok(0) => {
                    epoll::delete(&self.epoll, fd)?;
                    self.open.remove(index);
                }
                Ok(count) => {
                    self.read_bytes += count as u64;
                    output.write(Source::Step, *stream, &self.buffer[..count]);
                }
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(!ready.is_empty())
    }
}

/// Returns whether a time has come.
pub fn is_over(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| deadline <= Instant::now())
}

/// Returns what epoll reports of a pipe that is readable.
fn key_of(fd: &OwnedFd) -> epoll::EventData {
    epoll::EventData::new_u64(u64::from(fd.as_raw_fd().cast_unsigned()))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{PipeWriter, Write, pipe};
    use std::time::Duration;

    use super::super::super::log::{Masking, Plain};
    use super::*;
    use crate::sys::init::drain;

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
        let mut pipes = Pipes::new().unwrap();
        let command = pipes.add(Stream::Out).unwrap();
        rustix::io::write(&command, b"this is A-LON\n").unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        let event = pipes.pump(&[seen.as_fd()], Some(deadline), &mut output).unwrap();
        assert_eq!(event, PumpEvent::Readable(0));
    }

    /// Joins what comes of both streams.
    struct Joined(String);

    impl Output for Joined {
        fn write(&mut self, _: Source, _: Stream, bytes: &[u8]) {
            self.0.push_str(std::str::from_utf8(bytes).unwrap());
        }

        fn flush(&mut self) {}

        fn mask(&mut self, _: &str) {}
    }

    #[test]
    fn pipes_are_read_in_the_order_in_which_they_become_readable() {
        let mut pipes = Pipes::new().unwrap();
        let [out, err] = [Stream::Out, Stream::Err].map(|stream| pipes.add(stream).unwrap());
        let mut output = Joined(String::new());
        for (first, second) in [(&out, &err), (&err, &out)] {
            for (pipe, text) in [(first, "1 "), (second, "2 "), (first, "3 "), (second, "4\n")] {
                rustix::io::write(pipe, text.as_bytes()).unwrap();
            }
            pipes.drain(&mut output).unwrap();
        }
        assert_eq!(output.0, "1 3 2 4\n1 3 2 4\n");
    }

    #[test]
    fn the_rest_of_a_pipe_is_read_until_it_is_closed_or_nothing_more_comes() {
        let mut pipes = Pipes::new().unwrap();
        let [out, err] = [Stream::Out, Stream::Err].map(|stream| pipes.add(stream).unwrap());
        let mut output = Joined(String::new());
        rustix::io::write(&out, b"open").unwrap();
        rustix::io::write(&err, b" closed").unwrap();
        drop(err);
        let start = Instant::now();
        pipes.pump_rest(&[], None, &|| false, &mut output).unwrap();
        assert!(start.elapsed() >= drain::QUIET);
        assert_eq!(output.0, "open closed");
        drop(out);
        pipes.pump_rest(&[], None, &|| false, &mut output).unwrap();
        assert!(pipes.open.is_empty());
        // Also where no time is left: what is there is forwarded.
        let out = pipes.add(Stream::Out).unwrap();
        rustix::io::write(&out, b" late").unwrap();
        pipes.pump_rest(&[], Some(start), &|| false, &mut output).unwrap();
        assert_eq!(output.0, "open closed late");
    }

    /// Answers each byte with another one, after a while.
    struct Echo(File);

    impl Output for Echo {
        fn write(&mut self, _: Source, _: Stream, _: &[u8]) {
            std::thread::park_timeout(drain::QUIET / 2);
            self.0.write_all(b"x").unwrap();
        }

        fn flush(&mut self) {}

        fn mask(&mut self, _: &str) {}
    }

    #[test]
    fn each_byte_prolongs_the_wait_for_the_rest_but_not_for_ever() {
        let mut pipes = Pipes::new().unwrap();
        let mut echo = Echo(pipes.add(Stream::Out).unwrap().into());
        echo.0.write_all(b"x").unwrap();
        let start = Instant::now();
        pipes.pump_rest(&[], None, &|| false, &mut echo).unwrap();
        assert!(start.elapsed() >= drain::LIMIT);
    }

    #[test]
    fn processes_that_are_busy_are_waited_for_but_not_for_ever() {
        let mut pipes = Pipes::new().unwrap();
        let _out = pipes.add(Stream::Out).unwrap();
        let start = Instant::now();
        pipes.pump_rest(&[], None, &|| true, &mut Joined(String::new())).unwrap();
        assert!(start.elapsed() >= drain::LIMIT);
    }
}
