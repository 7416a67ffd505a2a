//! Pausing and resuming the processes of an instance.
//!
//! A runtime freezes the cgroup. Rootless instances may have no cgroup: then each process is sent SIGSTOP.
//! A process that is not stopped yet may fork, or resume another, so listing and stopping is repeated until
//! all processes are stopped.

use std::collections::HashSet;
use std::time::Duration;
use std::{fs, io, thread};

use oci_hooks_engine::container::ContainerRecord;
use oci_hooks_host::identity::ProcessIdentity;
use oci_hooks_host::processes::{ProcessSnapshot, add_descendants};
use rustix::process::Signal;

use super::error::ProviderError;

/// Maximum number of rounds of signals. Before each round is a pause, longer by a millisecond each time: 5 s in all.
const ROUNDS: u32 = 100;

/// Stops all processes of a container.
pub fn pause(container: &ContainerRecord) -> Result<(), ProviderError> {
    if !container.cgroup.is_empty() {
        return Ok(container.runtime.pause(&container.id)?);
    }
    signal(container, Signal::STOP, "stop the processes of")
}

/// Resumes all processes of a container.
pub fn resume(container: &ContainerRecord) -> Result<(), ProviderError> {
    if !container.cgroup.is_empty() {
        return Ok(container.runtime.resume(&container.id)?);
    }
    signal(container, Signal::CONT, "resume the processes of")
}

fn signal(
    container: &ContainerRecord,
    signal: Signal,
    action: &'static str,
) -> Result<(), ProviderError> {
    let Some(first) = container.process else { return Ok(()) };
    signal_all(first, signal).map_err(|source| ProviderError::Signal {
        name: container.name.clone(),
        action,
        source,
    })
}

/// Sends a signal to each process of a container, given its first process. `SIGSTOP` is repeated until the process is
/// stopped, or waits in the kernel and stops after that: after `vfork`, a parent waits for a child that may be stopped.
fn signal_all(first: ProcessIdentity, signal: Signal) -> io::Result<()> {
    let namespace = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let Some(own) = namespace(first.pid).filter(|_| first.is_running()) else { return Ok(()) };
    let mut signalled = HashSet::new();
    let mut was_quiet = false;
    for round in 0..ROUNDS {
        thread::sleep(Duration::from_millis(round.into()));
        let all = ProcessSnapshot::list_all();
        let members = all.iter().filter(|it| namespace(it.pid).as_ref() == Some(&own));
        // Nested containers have their own PID namespaces, so descendants are added.
        let members = add_descendants(&all, &members.map(|it| it.pid).collect());
        let (mut is_done, mut is_quiet) = (true, true);
        for process in all.iter().filter(|process| members.contains(&process.pid)) {
            let is_new = signalled.insert((process.pid, process.start));
            let runs = signal == Signal::STOP && !process.is_stopped && !process.is_zombie;
            if (is_new || runs) && process.signal(signal)? {
                is_done = false;
                is_quiet &= process.is_blocked && !is_new;
            }
        }
        // In two rounds, as a process that ran in the first one may have resumed another.
        if is_done || is_quiet && was_quiet {
            return Ok(());
        }
        was_quiet = is_quiet;
    }
    Err(io::Error::other("they fork or resume each other faster than they are signalled"))
}
