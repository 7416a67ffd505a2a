//! Signals as descriptors to wait on.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::low_level::pipe;

/// Signals that were sent to this process.
pub(super) struct Signals {
    /// Readable once it shall end.
    pub(super) stop: UnixStream,
    /// Readable when it shall read everything again.
    pub(super) rescan: UnixStream,
}

impl Signals {
    /// Takes the signals over from their default actions.
    pub(super) fn new() -> io::Result<Self> {
        let (stop, stop_sender) = UnixStream::pair()?;
        let (rescan, rescan_sender) = UnixStream::pair()?;
        rescan.set_nonblocking(true)?;
        let stopping = Arc::new(AtomicBool::new(false));
        for signal in [SIGTERM, SIGINT] {
            // The second one, of somebody who does not want to wait for a command, kills.
            flag::register_conditional_default(signal, Arc::clone(&stopping))?;
            flag::register(signal, Arc::clone(&stopping))?;
            pipe::register(signal, stop_sender.try_clone()?)?;
        }
        pipe::register(SIGHUP, rescan_sender)?;
        Ok(Signals { stop, rescan })
    }

    /// Forgets the requests so far: one scan answers them all.
    pub(super) fn take_rescan(&mut self) -> io::Result<()> {
        let mut buffer = [0; 64];
        loop {
            match self.rescan.read(&mut buffer) {
                Ok(count) if count == buffer.len() => {}
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}
