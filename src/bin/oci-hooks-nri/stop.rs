//! SIGTERM and SIGINT as a descriptor to wait on.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::pipe;

/// Readable once the plugin shall end.
pub(crate) struct Stop(UnixStream);

impl Stop {
    /// Takes the signals over from their default actions.
    pub(crate) fn new() -> io::Result<Self> {
        let (stop, sender) = UnixStream::pair()?;
        for signal in [SIGTERM, SIGINT] {
            pipe::register(signal, sender.try_clone()?)?;
        }
        Ok(Stop(stop))
    }
}

impl AsFd for Stop {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
