//! What a service is told by signals, and what it tells systemd as one of `Type=notify` or `notify-reload`.

use std::env;
use std::ffi::OsString;
use std::io::{self, Read};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixStream};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustix::time::{ClockId, clock_gettime};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::low_level::pipe;

/// The environment variable with the address of the service manager's socket.
pub const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";

/// The service manager, if there is one.
pub struct Notify(Option<(UnixDatagram, SocketAddr)>);

impl Notify {
    /// Finds the service manager by the environment.
    pub fn from_env() -> Self {
        Notify(env::var_os(NOTIFY_SOCKET).and_then(open))
    }

    /// Sends a state, as `sd_notify(3)` describes them.
    pub fn send(&self, state: &str) {
        if let Some((socket, address)) = &self.0 {
            // A service that nobody manages any more works on.
            let _ = socket.send_to_addr(state.as_bytes(), address);
        }
    }

    /// Reports that everything is read again. The time lets systemd know which of its requests for it
    /// this answers.
    pub fn send_reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let micros = i128::from(now.tv_sec) * 1_000_000 + i128::from(now.tv_nsec) / 1000;
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={micros}"));
    }
}

fn open(address: OsString) -> Option<(UnixDatagram, SocketAddr)> {
    let address = match address.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        _ => SocketAddr::from_pathname(&address),
    };
    // Other kinds of addresses are for virtual machines.
    Some((UnixDatagram::unbound().ok()?, address.ok()?))
}

/// Signals that were sent to this process.
pub struct Signals {
    /// Readable once it shall end.
    pub stop: UnixStream,
    /// Readable when it shall read everything again.
    pub rescan: UnixStream,
}

impl Signals {
    /// Takes the signals over from their default actions.
    pub fn new() -> io::Result<Self> {
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
    pub fn take_rescan(&mut self) -> io::Result<()> {
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
