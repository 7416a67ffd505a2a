//! What a step writes, on its way from pipes of ours to our own standard streams.

use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::{Errno, ioctl_fionread, read, write};
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};

use crate::sys::init::frames::STREAMS;

/// The most that is taken of one stream before others have their turn.
const TURN_BYTES: usize = 1 << 20;

/// How much a step can write before this process has to be awake, if the kernel lets us; 64 KiB is usual.
const PIPE_BYTES: usize = 1 << 20;

/// How much is copied at a time where nothing can be moved.
const COPY_BYTES: usize = 64 << 10;

/// What the step gets: standard input that is at its end, and of each output both ends.
pub fn pipes() -> Result<([OwnedFd; STREAMS], [OwnedFd; 2]), Errno> {
    let (input, _) = pipe_with(PipeFlags::CLOEXEC)?;
    let (output, output_writer) = pipe_with(PipeFlags::CLOEXEC)?;
    let (errors, errors_writer) = pipe_with(PipeFlags::CLOEXEC)?;
    // A user who has many large ones gets no more of them.
    let _ = fcntl_setpipe_size(&output, PIPE_BYTES);
    let own = [reopen(output.as_fd())?, reopen(errors.as_fd())?];
    Ok(([input, output_writer, errors_writer, output, errors], own))
}

/// Opens a pipe anew: whoever has the descriptor that was sent cannot change how ours reads.
fn reopen(pipe: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let path = format!("/proc/self/fd/{}", pipe.as_raw_fd());
    openat(CWD, path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())
}

/// One of the two streams.
pub struct Stream<'a> {
    /// None at its end.
    from: Option<OwnedFd>,
    to: BorrowedFd<'a>,
    how: How,
    /// Whether the other side has no room.
    is_full: bool,
    /// What was written before the step ended, and is not passed on yet.
    owed: Option<u64>,
}

/// How bytes get from one to the other.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    /// Pages of the pipe are moved.
    Splice,
    /// Where they cannot be, as to a terminal or a file that is appended to.
    Copy,
    /// Nobody reads any more: the step goes on.
    Discard,
}

impl<'a> Stream<'a> {
    pub(super) fn new(from: OwnedFd, to: BorrowedFd<'a>) -> Self {
        Stream { from: Some(from), to, how: How::Splice, is_full: false, owed: None }
    }

    /// Returns what has to be waited for; nothing at the stream's end.
    pub(super) fn poll(&self) -> Option<PollFd<'_>> {
        let from = self.from.as_ref()?;
        Some(match self.is_full {
            true => PollFd::from_borrowed_fd(self.to, PollFlags::OUT),
            false => PollFd::new(from, PollFlags::IN),
        })
    }

    /// Notes that the step has ended: what is there now is passed on, however long that takes.
    pub(super) fn end(&mut self) {
        let there = self.from.as_ref().and_then(|from| ioctl_fionread(from).ok());
        self.owed = Some(there.unwrap_or_default());
    }

    /// Returns whether all that the step wrote has been passed on. Others may write still.
    pub(super) fn is_settled(&self) -> bool {
        self.from.is_none() || self.owed == Some(0)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.from.is_none()
    }

    /// Passes on what there is, and returns whether there was anything.
    pub(super) fn pass(&mut self) -> Result<bool, Errno> {
        let mut total = 0;
        while total < TURN_BYTES && self.from.is_some() {
            match self.step() {
                Ok(0) => self.from = None,
                Ok(count) => total += count,
                Err(Errno::AGAIN) => {
                    // Either side may be the cause: when nothing moves that is there, it is ours.
                    self.is_full = total == 0 && self.has_bytes();
                    return Ok(total > 0);
                }
                Err(Errno::INTR) => {}
                Err(Errno::PIPE) => self.how = How::Discard,
                Err(Errno::INVAL) if self.how == How::Splice => self.how = How::Copy,
                Err(error) => return Err(error),
            }
        }
        self.is_full = false;
        Ok(total > 0)
    }

    fn has_bytes(&self) -> bool {
        self.from.as_ref().is_some_and(|from| ioctl_fionread(from).is_ok_and(|count| count > 0))
    }

    /// Passes some on; 0 is the end.
    fn step(&mut self) -> Result<usize, Errno> {
        let Some(from) = &self.from else { return Ok(0) };
        let count = match self.how {
            How::Splice => {
                let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
                splice(from, None, self.to, None, TURN_BYTES, flags)?
            }
            How::Copy => copy(from.as_fd(), self.to)?,
            How::Discard => read(from, &mut [0; 4096])?,
        };
        if let Some(owed) = &mut self.owed {
            *owed = owed.saturating_sub(count as u64);
        }
        Ok(count)
    }
}

/// Copies what there is, at most a buffer full.
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
    use std::os::fd::AsFd as _;

    use super::*;

    /// Passes on what was written, to a file that is opened in some way.
    fn pass_to(path: &std::path::Path, options: &mut fs::OpenOptions) {
        let (sent, [own, _]) = pipes().unwrap();
        let file = options.write(true).open(path).unwrap();
        let mut stream = Stream::new(own, file.as_fd());
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
    fn bytes_get_to_files_that_take_pages_and_others() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "").unwrap();
        pass_to(&path, &mut File::options());
        // The kernel moves no pages to what is appended to.
        pass_to(&path, File::options().append(true));
        assert_eq!(fs::read_to_string(&path).unwrap(), "some\nmore\nlater\n".repeat(2));
        pass_to("/dev/null".as_ref(), &mut File::options());
    }

    #[test]
    fn who_does_not_read_is_waited_for_and_who_has_gone_is_not() {
        let (sent, [own, _]) = pipes().unwrap();
        let (reader, to) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let mut stream = Stream::new(own, to.as_fd());
        let mut writer = File::from(sent.into_iter().nth(1).unwrap());
        let chunk = [b'x'; 64 << 10];
        writer.write_all(&chunk).unwrap();
        while stream.pass().unwrap() {
            // Never more than two pipes hold.
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
