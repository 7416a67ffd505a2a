//! Signals of the runner: it sends SIGINT, SIGTERM after 7.5 seconds and SIGKILL 2.5 seconds later,
//! each to this process alone.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use oci_hooks::container::StepSignals;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::SignalOnly;

/// The signals that end a step.
pub const ENDING: [i32; 4] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM];

/// The time for a step to end after SIGTERM, so that cleanup is done before the runner sends SIGKILL.
const GRACE: Duration = Duration::from_millis(1500);

/// Pending signals, which do not end this process.
pub struct Pending(SignalDelivery<UnixStream, SignalOnly>);

impl Pending {
    /// Catches the signals from now on.
    pub fn new() -> io::Result<Self> {
        let (read, write) = UnixStream::pair()?;
        let delivery = SignalDelivery::with_pipe(read, write, SignalOnly, ENDING)?;
        Ok(Pending(delivery))
    }
}

impl StepSignals for Pending {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.get_read().as_fd()
    }

    fn take(&mut self) -> Vec<i32> {
        self.0.pending().collect()
    }
}

/// Calls a function with each signal that would end this process, instead of ending it.
pub fn on_each(mut act: impl FnMut(i32) + Send + 'static) {
    // It fails for signals that cannot be caught, which these can.
    let Ok(mut signals) = Signals::new(ENDING) else { return };
    thread::spawn(move || signals.forever().for_each(&mut act));
}

/// Sends a child the signals that this process gets, and kills it if it still runs after SIGTERM. The caller,
/// which waits for the child, cleans up.
pub fn pass_on(pid: u32) {
    let Some(process) = open(pid) else { return };
    on_each(move |signal| {
        send(&process, signal);
        if signal == SIGTERM {
            let process = process.try_clone();
            thread::spawn(move || {
                thread::sleep(GRACE);
                process.map(|process| pidfd_send_signal(process, Signal::KILL))
            });
        }
    });
}

/// Opens a child that was not waited for yet: the descriptor never means another process.
pub fn open(pid: u32) -> Option<OwnedFd> {
    let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

/// Sends a signal to a process, if it is there still.
pub fn send(process: &OwnedFd, signal: i32) {
    if let Some(signal) = Signal::from_named_raw(signal) {
        let _ = pidfd_send_signal(process, signal);
    }
}
