//! Reading the output pipes of commands until all writers have closed them.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use super::super::log::{Output, Source, Stream};
use super::order::{Reads, in_order};
use crate::sys::arrival::{Arrivals, PIPE_BYTES};

/// How much is read of a pipe in a round: all that is in it, so that no write is cut in the middle.
const ROUND_BYTES: usize = PIPE_BYTES;

/// What a read may give: a page of the largest size. A shorter read would lose the rest of a write.
const MAX_READ_BYTES: usize = 64 << 10;

/// How much is read of a pipe after its command has exited: what was in it then, but not what a
/// background process continues to write.
const MAX_DRAIN_BYTES: usize = 1 << 20;

/// After this time without output, all writes are known.
const SETTLE_TIME: Duration = Duration::from_millis(100);

/// How many writes are kept that are still to be read.
const MAX_LEFT_WRITES: usize = 1024;

/// How often the sizes of pipes are read again because they were written to meanwhile.
const MAX_LOOKS: usize = 8;

/// The pipes of a job's commands.
///
/// They are read in rounds. A round takes no more of a pipe than was in it when it began, and forwards it
/// in the order in which it was written.
#[derive(Debug)]
pub(super) struct Pipes {
    open: Vec<Pipe>,
    /// Where the kernel cannot tell the order of writes, a round takes one pipe after the other.
    arrivals: Option<Arrivals>,
    /// Writes since the last round, by the descriptors of their pipes.
    writes: Vec<RawFd>,
    /// Buffers of a round, one for each pipe that is read in it.
    buffers: Vec<Buffer>,
    heard_bytes: u64,
    last_round: Instant,
}

#[derive(Debug)]
struct Pipe {
    fd: OwnedFd,
    stream: Stream,
    /// See [`Reads::early`].
    early: usize,
}

#[derive(Debug)]
struct Buffer {
    pipe: usize,
    bytes: Vec<u8>,
    /// Where each read ended.
    ends: Vec<usize>,
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
        Pipes {
            open: Vec::new(),
            arrivals: Arrivals::new().ok(),
            writes: Vec::new(),
            buffers: Vec::new(),
            heard_bytes: 0,
            last_round: Instant::now(),
        }
    }

    /// Makes a pipe for a stream of a command, and returns its end for writing.
    pub(super) fn add(&mut self, stream: Stream) -> io::Result<OwnedFd> {
        let with_order = self.arrivals.as_ref().and_then(|arrivals| {
            // What is in the queue may be of a pipe that had this descriptor before.
            arrivals.take(&mut self.writes);
            self.writes.retain(|fd| self.open.iter().any(|pipe| pipe.fd.as_raw_fd() == *fd));
            arrivals.pipe().ok()
        });
        let (fd, writer) = match with_order {
            Some(pipe) => pipe,
            None => {
                let (fd, writer) = pipe_with(PipeFlags::CLOEXEC)?;
                rustix::io::ioctl_fionbio(&fd, true)?;
                (fd, writer)
            }
        };
        self.open.push(Pipe { fd, stream, early: 0 });
        Ok(writer)
    }

    /// Returns the pipes that somebody may still write to.
    pub(super) fn open(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.open.iter().map(|pipe| pipe.fd.as_fd())
    }

    /// Returns how much was read so far.
    pub(super) fn heard_bytes(&self) -> u64 {
        self.heard_bytes
    }

    /// Forwards output until one of these descriptors is readable, or until the deadline.
    pub(super) fn pump(
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

    /// The same, but ends without an event when all pipes are closed.
    pub(super) fn pump_to_end(
        &mut self,
        events: &[BorrowedFd<'_>],
        deadline: Instant,
        output: &mut dyn Output,
    ) -> io::Result<Option<PumpEvent>> {
        while !self.open.is_empty() {
            if let Some(event) = self.turn(events, Some(deadline), output)? {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    fn turn(
        &mut self,
        events: &[BorrowedFd<'_>],
        deadline: Option<Instant>,
        output: &mut dyn Output,
    ) -> io::Result<Option<PumpEvent>> {
        self.settle()?;
        let now = Instant::now();
        let release = output.release(now);
        let next = deadline.into_iter().chain(release).min();
        let left = next.map(|at| at.saturating_duration_since(now));
        let ready = self.poll(events, left)?;
        let (events, pipes) = ready.split_at(events.len());
        self.round(pipes, output)?;
        if let Some(index) = events.iter().position(|ready| *ready) {
            return Ok(Some(PumpEvent::Readable(index)));
        }
        Ok(deadline.filter(|deadline| *deadline <= now).map(|_| PumpEvent::Timeout))
    }

    /// Forgets writes that were read before they were known: all are, if all pipes are empty.
    fn settle(&mut self) -> io::Result<()> {
        self.take_writes();
        let is_clear = self.writes.is_empty() && self.open.iter().all(|pipe| pipe.early == 0);
        if is_clear || self.poll(&[], Some(Duration::ZERO))?.contains(&true) {
            return Ok(());
        }
        // Parts of a long write, for example, never become known.
        let is_long_ago = self.last_round.elapsed() >= SETTLE_TIME;
        for pipe in &mut self.open {
            let fd = pipe.fd.as_raw_fd();
            let known = self.writes.iter().filter(|write| **write == fd).count();
            pipe.early = if is_long_ago { 0 } else { pipe.early.saturating_sub(known) };
        }
        self.writes.clear();
        Ok(())
    }

    /// Returns whether there were writes since the last call.
    fn take_writes(&mut self) -> bool {
        self.arrivals.as_ref().is_some_and(|arrivals| arrivals.take(&mut self.writes))
    }

    /// Forwards what has been written until now, without blocking.
    pub(super) fn drain(&mut self, output: &mut dyn Output) -> io::Result<()> {
        for _ in 0..MAX_DRAIN_BYTES.div_ceil(ROUND_BYTES) {
            let ready = self.poll(&[], Some(Duration::ZERO))?;
            if !ready.contains(&true) {
                break;
            }
            self.round(&ready, output)?;
        }
        Ok(())
    }

    fn poll(&self, events: &[BorrowedFd<'_>], left: Option<Duration>) -> io::Result<Vec<bool>> {
        let all = events.iter().copied().chain(self.open());
        let mut fds: Vec<_> = all.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let left = left.map(|left| Timespec::try_from(left).expect("jobs end within ages"));
        match poll(&mut fds, left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(fds.iter().map(|fd| !fd.revents().is_empty()).collect())
    }

    /// Reads the pipes that are ready, and those that are written to in the meantime.
    fn round(&mut self, ready: &[bool], output: &mut dyn Output) -> io::Result<()> {
        if !ready.contains(&true) {
            return Ok(());
        }
        let sizes = self.look(ready)?;
        let mut used = 0;
        let mut closed = Vec::new();
        for (pipe, size) in sizes.into_iter().enumerate() {
            let Some(size) = size else { continue };
            if self.buffers.len() == used {
                self.buffers.push(Buffer::new());
            }
            let buffer = &mut self.buffers[used];
            if buffer.read(pipe, &self.open[pipe].fd, size)? {
                closed.push(pipe);
            }
            used += usize::from(!buffer.ends.is_empty());
        }
        let mut pipes = Vec::new();
        for Buffer { pipe, bytes, ends } in &self.buffers[..used] {
            let fd = &self.open[*pipe].fd;
            let bytes = &bytes[..ends.last().copied().unwrap_or(0)];
            self.heard_bytes += bytes.len() as u64;
            let early = self.open[*pipe].early;
            pipes.push(Reads { fd: fd.as_raw_fd(), bytes, ends, early });
        }
        let early = in_order(&mut self.writes, &pipes, |index, bytes| {
            output.write(Source::Step, self.open[self.buffers[index].pipe].stream, bytes);
        });
        for (buffer, early) in self.buffers.iter().zip(early) {
            self.open[buffer.pipe].early = early;
        }
        self.last_round = Instant::now();
        for pipe in closed.into_iter().rev() {
            self.open.remove(pipe);
        }
        // Whoever writes through a descriptor of another kind may have many writes in one read.
        let surplus = self.writes.len().saturating_sub(MAX_LEFT_WRITES);
        self.writes.drain(..surplus);
        Ok(())
    }

    /// Returns what can be read of each pipe and completes the writes since the last round: as of one
    /// moment, as far as that is possible.
    fn look(&mut self, ready: &[bool]) -> io::Result<Vec<Option<usize>>> {
        let mut sizes = Vec::new();
        self.take_writes();
        for _ in 0..MAX_LOOKS {
            sizes.clear();
            for (pipe, ready) in self.open.iter().zip(ready) {
                let is_due = *ready || self.writes.contains(&pipe.fd.as_raw_fd());
                let size = is_due.then(|| rustix::io::ioctl_fionread(&pipe.fd)).transpose()?;
                // One that is ready and empty is at its end.
                let size = size.filter(|size| *ready || *size > 0);
                sizes.push(size.map(|size| usize::try_from(size).unwrap_or(ROUND_BYTES)));
            }
            // One pipe alone is in order anyway.
            let is_one = sizes.iter().flatten().count() == 1;
            if !self.take_writes() || is_one && self.writes.iter().all(|fd| *fd == self.writes[0]) {
                break;
            }
        }
        Ok(sizes)
    }
}

impl Buffer {
    fn new() -> Self {
        Buffer { pipe: 0, bytes: vec![0; ROUND_BYTES + MAX_READ_BYTES], ends: Vec::new() }
    }

    /// Reads so much of a pipe. Returns whether it was at its end.
    fn read(&mut self, pipe: usize, fd: &OwnedFd, size: usize) -> io::Result<bool> {
        self.pipe = pipe;
        self.ends.clear();
        let mut length = 0;
        while length < size.clamp(1, ROUND_BYTES) {
            match rustix::io::read(fd, &mut self.bytes[length..][..MAX_READ_BYTES]) {
                Ok(0) => return Ok(true),
                Ok(read) => length += read,
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(error) => return Err(error.into()),
            }
            self.ends.push(length);
        }
        Ok(false)
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
        let command = pipes.add(Stream::Out).unwrap();
        rustix::io::write(&command, b"this is A-LON\n").unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        let event = pipes.pump(&[seen.as_fd()], Some(deadline), &mut output).unwrap();
        assert_eq!(event, PumpEvent::Readable(0));
    }
}
