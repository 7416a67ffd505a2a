//! Telling systemd how a service of `Type=notify` or `notify-reload` is doing.

use std::env;
use std::ffi::OsString;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use rustix::time::{ClockId, clock_gettime};

/// The environment variable with the address of the service manager's socket.
pub(super) const VARIABLE: &str = "NOTIFY_SOCKET";

/// The service manager, if there is one.
pub(super) struct Notify(Option<(UnixDatagram, SocketAddr)>);

impl Notify {
    /// Finds the service manager by the environment.
    pub(super) fn from_env() -> Self {
        Notify(env::var_os(VARIABLE).and_then(open))
    }

    /// Sends a state, as `sd_notify(3)` describes them.
    pub(super) fn send(&self, state: &str) {
        if let Some((socket, address)) = &self.0 {
            // A service that nobody manages any more works on.
            let _ = socket.send_to_addr(state.as_bytes(), address);
        }
    }

    /// Reports that everything is read again. The time lets systemd know which of its requests for it
    /// this answers.
    pub(super) fn send_reloading(&self) {
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
