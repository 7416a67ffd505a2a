//! Forwards input and output of a step between the descriptors of this process and the step's pipes.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use oci_hooks_files::beneath::descriptor_path;
use oci_hooks_init::frames::STREAMS;
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::{Errno, ioctl_fionread, read, write};
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};

/// Maximum number of bytes forwarded from one stream before the others have their turn.
const TURN_BYTES: usize = 1 << 20;

/// Size of a pipe, which a step can fill before this process reads; the default is 64 KiB.
const PIPE_BYTES: usize = 1 << 20;

/// Number of bytes copied at a time, if pages cannot be moved.
const COPY_BYTES: usize = 64 << 10;

/// Creates the step's descriptors (an empty stdin, both ends of each output pipe), and this
/// process's read ends of the outputs.
pub fn pipes() -> Result<([OwnedFd; STREAMS], [OwnedFd; 2]), Errno> {
    let (input, _) = pipe_with(PipeFlags::CLOEXEC)?;
    let (output, output_writer) = pipe_with(PipeFlags::CLOEXEC)?;
    let (errors, errors_writer) = pipe_with(PipeFlags::CLOEXEC)?;
    // A user with many large pipes gets no more of them.
    let _ = fcntl_setpipe_size(&output, PIPE_BYTES);
    let own = [reopen(output.as_fd())?, reopen(errors.as_fd())?];
    Ok(([input, output_writer, errors_writer, output, errors], own))
}

/// Input of a step, on its way from one of our descriptors to the step's pipe.
pub struct StepInput<'a> {
    from: BorrowedFd<'a>,
    to: OwnedFd,
    /// Bytes that were read but not forwarded.
    pending: Vec<u8>,
}

impl<'a> StepInput<'a> {
    /// Creates a pipe, and returns its read end for the step, and the input that writes to it.
    pub(super) fn new(from: BorrowedFd<'a>) -> Result<(OwnedFd, Self), Errno> {
        let (end, writer) = pipe_with(PipeFlags::CLOEXEC)?;
        let to = open_again(writer.as_fd(), OFlags::WRONLY)?;
        Ok((end, StepInput { from, to, pending: Vec::new() }))
    }

    pub(super) fn poll(&self) -> PollFd<'_> {
        match self.pending.is_empty() {
            true => PollFd::from_borrowed_fd(self.from, PollFlags::IN),
            false => PollFd::new(&self.to, PollFlags::OUT),
        }
    }

    /// Forwards some bytes, after the descriptor was ready; returns whether more may follow.
    pub(super) fn pass(&mut self) -> Result<bool, Errno> {
        if self.pending.is_empty() {
            let mut buffer = [0; 4096];
            match read(self.from, &mut buffer) {
                // A terminal that has hung up fails with `EIO`.
                Ok(0) | Err(Errno::IO) => return Ok(false),
                Ok(count) => self.pending.extend_from_slice(&buffer[..count]),
                Err(Errno::AGAIN | Errno::INTR) => return Ok(true),
                Err(error) => return Err(error),
            }
        }
        match write(&self.to, &self.pending) {
            Ok(count) => drop(self.pending.drain(..count)),
            Err(Errno::AGAIN | Errno::INTR) => {}
            // The step has closed its input.
            Err(Errno::PIPE) => return Ok(false),
            Err(error) => return Err(error),
        }
        Ok(true)
    }
}

/// Opens a pipe again, so that the receiver of its descriptor cannot change the flags of ours.
fn reopen(pipe: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    open_again(pipe, OFlags::RDONLY)
}

fn open_again(pipe: BorrowedFd<'_>, access: OFlags) -> Result<OwnedFd, Errno> {
    openat(CWD, descriptor_path(pipe), access | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())
}

/// One of the two output streams.
pub struct StepStream<'a> {
    /// `None` at the end of the stream.
    from: Option<OwnedFd>,
    to: BorrowedFd<'a>,
    how: ForwardMethod,
    /// If set, the destination has no room.
    is_full: bool,
    /// Number of bytes from before the step's end that are still to be forwarded.
    owed: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ForwardMethod {
    /// Moves pages of the pipe.
    Splice,
    /// Copies bytes if pages cannot be moved, as to a terminal or a file opened for appending.
    Copy,
    /// Drops bytes after the reader has gone, so that the step continues.
    Discard,
}

impl<'a> StepStream<'a> {
    pub(super) fn new(from: OwnedFd, to: BorrowedFd<'a>) -> Self {
        StepStream { from: Some(from), to, how: ForwardMethod::Splice, is_full: false, owed: None }
    }

    /// Returns the descriptor to poll; `None` at the end of the stream.
    pub(super) fn poll(&self) -> Option<PollFd<'_>> {
        let from = self.from.as_ref()?;
        Some(match self.is_full {
            true => PollFd::from_borrowed_fd(self.to, PollFlags::OUT),
            false => PollFd::new(from, PollFlags::IN),
        })
    }

    /// Records the end of the step: bytes in the pipe are still forwarded, however long that takes.
    pub(super) fn end(&mut self) {
        let there = self.from.as_ref().and_then(|from| ioctl_fionread(from).ok());
        self.owed = Some(there.unwrap_or_default());
    }

    /// Returns whether all output of the step has been forwarded. Other processes may still write.
    pub(super) fn is_settled(&self) -> bool {
        self.from.is_none() || self.owed == Some(0)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.from.is_none()
    }

    /// Forwards available bytes, and returns whether there were any.
    pub(super) fn pass(&mut self) -> Result<bool, Errno> {
        let mut total = 0;
        while total < TURN_BYTES && self.from.is_some() {
            match self.step() {
                Ok(0) => self.from = None,
                Ok(count) => total += count,
                Err(Errno::AGAIN) => {
                    // Either side may be the cause: if bytes are available but none move, the destination is full.
                    self.is_full = total == 0 && self.has_bytes();
                    return Ok(total > 0);
                }
                Err(Errno::INTR) => {}
                Err(Errno::PIPE) => self.how = ForwardMethod::Discard,
                Err(Errno::INVAL) if self.how == ForwardMethod::Splice => {
                    self.how = ForwardMethod::Copy;
                }
                Err(error) => return Err(error),
            }
        }
        self.is_full = false;
        Ok(total > 0)
    }

    fn has_bytes(&self) -> bool {
        self.from.as_ref().is_some_and(|from| ioctl_fionread(from).is_ok_and(|count| count > 0))
    }

    /// Forwards some bytes; returns 0 at the end of the stream.
    fn step(&mut self) -> Result<usize, Errno> {
        let Some(from) = &self.from else { return Ok(0) };
        let count = match self.how {
            ForwardMethod::Splice => {
                let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
                splice(from, None, self.to, None, TURN_BYTES, flags)?
            }
            ForwardMethod::Copy => copy(from.as_fd(), self.to)?,
            ForwardMethod::Discard => read(from, &mut [0; 4096])?,
        };
        if let Some(owed) = &mut self.owed {
            *owed = owed.saturating_sub(count as u64);
        }
        Ok(count)
    }
}

/// Copies available bytes, at most one buffer.
fn copy(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> Result<usize, Errno> {
    let mut buffer = [0; COPY_BYTES];
    let count = read(from, &mut buffer)?;
    let mut rest = &buffer[..count];
    while !rest.is_empty() {
        match write(to, rest) {
            Ok(written) => rest = &rest[written..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let mut wait = [PollFd::from_borrowed_fd(to, PollFlags::OUT)];
                let _ = rustix::event::poll(&mut wait, None);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::io::{Read as _, Write as _};
    use std::os::fd::AsRawFd as _;

    use super::*;

    /// Forwards bytes to a file opened with these options.
    fn pass_to(path: &std::path::Path, options: &mut fs::OpenOptions) {
        let (sent, [own, _]) = pipes().unwrap();
        let file = options.write(true).open(path).unwrap();
        let mut stream = StepStream::new(own, file.as_fd());
        let [_, writer, ..] = sent;
        let mut writer = File::from(writer);
        writer.write_all(b"some\n").unwrap();
        assert!(stream.pass().unwrap());
        assert!(!stream.is_closed());
        writer.write_all(b"more\n").unwrap();
        stream.end();
        assert!(!stream.is_settled());
        writer.write_all(b"later\n").unwrap();
        stream.pass().unwrap();
        assert!(stream.is_settled());
        drop(writer);
        stream.pass().unwrap();
        assert!(stream.is_closed());
    }

    #[test]
    fn output_is_copied_to_all_kinds_of_files() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "").unwrap();
        pass_to(&path, &mut File::options());
        // The kernel moves no pages to a file opened for appending.
        pass_to(&path, File::options().append(true));
        assert_eq!(fs::read_to_string(&path).unwrap(), "some\nmore\nlater\n".repeat(2));
        pass_to("/dev/null".as_ref(), &mut File::options());
    }

    #[test]
    fn slow_reader_is_waited_for_and_closed_one_is_not() {
        let (sent, [own, _]) = pipes().unwrap();
        let (reader, to) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let mut stream = StepStream::new(own, to.as_fd());
        let mut writer = File::from(sent.into_iter().nth(1).unwrap());
        let chunk = [b'x'; 64 << 10];
        writer.write_all(&chunk).unwrap();
        while stream.pass().unwrap() {
            // Never more than the capacity of two pipes.
            writer.write_all(&chunk[..4096]).unwrap();
        }
        assert!(stream.is_full);
        assert_eq!(stream.poll().unwrap().as_fd().as_raw_fd(), to.as_raw_fd());
        let mut reader = File::from(reader);
        let mut some = vec![0; 32 << 10];
        reader.read_exact(&mut some).unwrap();
        assert!(stream.pass().unwrap());
        drop(reader);
        while stream.has_bytes() {
            stream.pass().unwrap();
        }
        assert!(!stream.is_closed());
        drop(writer);
        stream.pass().unwrap();
        assert!(stream.is_closed());
    }
}
