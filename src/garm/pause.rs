//! Stopping the processes of an instance where they are, and having them go on.
//!
//! A runtime has the kernel freeze a cgroup. Instances of an ordinary user may have none: then each of their
//! processes is sent SIGSTOP. A process that was not stopped yet could send SIGCONT to the others, so processes are
//! listed and stopped until none of them runs.

use std::collections::HashSet;
use std::fs;
use std::io;

use rustix::process::Signal;

use super::error::ProviderError;
use crate::container::Record;
use crate::sys::identity::Identity;
use crate::sys::processes::{Process, with_descendants};

/// How often processes are looked for: each time those that were made meanwhile are left.
const ROUNDS: usize = 100;

/// Stops all processes of a container.
pub fn pause(container: &Record) -> Result<(), ProviderError> {
    if !container.cgroup.is_empty() {
        return Ok(container.runtime.pause(&container.id)?);
    }
    signal(container, Signal::STOP, "stop")
}

/// Has all processes of a container go on.
pub fn resume(container: &Record) -> Result<(), ProviderError> {
    if !container.cgroup.is_empty() {
        return Ok(container.runtime.resume(&container.id)?);
    }
    signal(container, Signal::CONT, "resume")
}

fn signal(container: &Record, signal: Signal, action: &'static str) -> Result<(), ProviderError> {
    let Some(first) = container.process else { return Ok(()) };
    signal_all(first, signal).map_err(|source| ProviderError::Signal {
        name: container.name.clone(),
        action,
        source,
    })
}

/// Sends a signal to all processes of a container, by its first, once each.
fn signal_all(first: Identity, signal: Signal) -> io::Result<()> {
    let namespace = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let Some(own) = namespace(first.pid).filter(|_| first.is_running()) else { return Ok(()) };
    let mut signalled = HashSet::new();
    for _ in 0..ROUNDS {
        let all = Process::all();
        let members = all.iter().filter(|it| namespace(it.pid).as_ref() == Some(&own));
        // Containers in it have namespaces of their own.
        let members = with_descendants(&all, &members.map(|it| it.pid).collect());
        let mut is_new = false;
        for process in all.iter().filter(|process| members.contains(&process.pid)) {
            if signalled.insert((process.pid, process.start)) {
                is_new |= process.signal(signal)?;
            }
        }
        if !is_new {
            return Ok(());
        }
    }
    Err(io::Error::other("its processes make others faster than they can be found"))
}
