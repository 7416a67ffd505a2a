//! Signals to the service, and its notifications to systemd as `Type=notify` or `notify-reload`.

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
pub struct SystemdNotify(Option<(UnixDatagram, SocketAddr)>);

impl SystemdNotify {
    /// Finds the service manager by the environment variable.
    pub fn from_env() -> Self {
        SystemdNotify(env::var_os(NOTIFY_SOCKET).and_then(open))
    }

    /// Sends a state in the format of `sd_notify(3)`.
    pub fn send(&self, state: &str) {
        if let Some((socket, address)) = &self.0 {
            // Errors are ignored: the service continues without its manager.
            let _ = socket.send_to_addr(state.as_bytes(), address);
        }
    }

    /// Reports the start of a reload with its time, from which systemd knows the reload request
    /// that it belongs to.
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
    // Addresses of other families, such as `vsock:`, are for virtual machines.
    Some((UnixDatagram::unbound().ok()?, address.ok()?))
}

/// Signals received by this process.
pub struct ServiceSignals {
    /// Readable after a signal to stop.
    pub stop: UnixStream,
    /// Readable after a signal to read everything again.
    pub rescan: UnixStream,
}

impl ServiceSignals {
    /// Replaces the default actions of the signals.
    pub fn new() -> io::Result<Self> {
        let (stop, stop_sender) = UnixStream::pair()?;
        let (rescan, rescan_sender) = UnixStream::pair()?;
        rescan.set_nonblocking(true)?;
        let stopping = Arc::new(AtomicBool::new(false));
        // A second SIGINT kills the process, for users who do not want to wait for a command. A second SIGTERM does
        // not, because timeout(1) sends SIGTERM twice.
        flag::register_conditional_default(SIGINT, Arc::clone(&stopping))?;
        for signal in [SIGTERM, SIGINT] {
            flag::register(signal, Arc::clone(&stopping))?;
            pipe::register(signal, stop_sender.try_clone()?)?;
        }
        pipe::register(SIGHUP, rescan_sender)?;
        Ok(ServiceSignals { stop, rescan })
    }

    /// Clears all pending requests for a rescan: one scan answers all of them.
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
