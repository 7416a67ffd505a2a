//! Handles signals of the runner. To cancel a step, it sends only this process SIGINT, after 7.5 seconds
//! SIGTERM, and 2.5 seconds later SIGKILL.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use oci_hooks_engine::container::StepSignals;
use oci_hooks_host::processes::{ProcessSnapshot, add_descendants};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGWINCH};
use signal_hook::iterator::Signals;
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::SignalOnly;

/// Signals that end a step.
pub const ENDING: [i32; 4] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM];

/// Time for a step to end after SIGTERM, so that cleanup is done before the runner sends SIGKILL.
const GRACE: Duration = Duration::from_millis(1500);

/// Signals that are caught instead of ending this process.
pub struct PendingSignals(SignalDelivery<UnixStream, SignalOnly>);

impl PendingSignals {
    /// Catches the signals that end a step.
    pub fn new() -> io::Result<Self> {
        Self::of(&ENDING)
    }

    /// Catches the signals that end a step, and changes of the terminal's size.
    pub fn with_resizing() -> io::Result<Self> {
        Self::of(&[&ENDING[..], &[SIGWINCH]].concat())
    }

    fn of(signals: &[i32]) -> io::Result<Self> {
        let (read, write) = UnixStream::pair()?;
        let delivery = SignalDelivery::with_pipe(read, write, SignalOnly, signals)?;
        Ok(PendingSignals(delivery))
    }
}

impl StepSignals for PendingSignals {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.get_read().as_fd()
    }

    fn take(&mut self) -> Vec<i32> {
        self.0.pending().collect()
    }
}

/// Calls a function with each signal that would end this process, instead of ending it.
pub fn handle_each_signal(mut act: impl FnMut(i32) + Send + 'static) {
    // This fails only for signals that cannot be caught.
    let Ok(mut signals) = Signals::new(ENDING) else { return };
    thread::spawn(move || signals.forever().for_each(&mut act));
}

/// Forwards the signals of this process to a child, and kills the child if it still runs after SIGTERM. The
/// caller waits for the child, and cleans up.
///
/// A container's first process that handles none of the signals never receives them: it is killed at once.
pub fn pass_on(pid: u32) {
    let Some(process) = open(pid) else { return };
    handle_each_signal(move |signal| {
        send(&process, signal);
        kill_init_without_handlers(&process, pid);
        if signal == SIGTERM {
            let process = process.try_clone();
            thread::spawn(move || {
                thread::sleep(GRACE);
                process.map(|process| pidfd_send_signal(process, Signal::KILL))
            });
        }
    });
}

/// Kills the first process of a child's container if the kernel drops all [`ENDING`] signals to it. Nested
/// containers are left to their parents.
fn kill_init_without_handlers(process: &OwnedFd, child: u32) {
    let all = ProcessSnapshot::list_all();
    // Once the child is reaped, its id may belong to another process.
    if pidfd_send_signal(process, Signal::CONT).is_err() {
        return;
    }
    let below = add_descendants(&all, &HashSet::from([child]));
    let below = all.iter().filter(|process| process.pid != child && below.contains(&process.pid));
    for process in below.filter(|process| process.drops(&ENDING)) {
        let _ = process.signal(Signal::KILL);
    }
}

/// Opens a child that has not been waited for: its id cannot belong to another process yet.
pub fn open(pid: u32) -> Option<OwnedFd> {
    let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

/// Sends a signal to a process, if it still exists.
pub fn send(process: &OwnedFd, signal: i32) {
    if let Some(signal) = Signal::from_named_raw(signal) {
        let _ = pidfd_send_signal(process, signal);
    }
}
