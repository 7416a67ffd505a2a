//! Taking instances apart, whatever is left of them.

use std::io;
use std::time::Duration;

use super::error::ProviderError;
use super::pause;
use super::record::{Files, InstanceRecord, Records};
use super::site::Site;
use super::supervisor::CGROUP;
use crate::container::{ContainerError, Engine};
use crate::network::{Network, NetworkOptions};
use crate::sys::cgroup;
use crate::sys::fs::{PathContext as _, ReadError};
use crate::sys::record::NewerRecords;

/// How long a killed supervisor may take to end.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a supervisor may take to reap what ended in its container.
const REAP_TIMEOUT: Duration = Duration::from_millis(500);

/// Returns what is known of an instance that is to be removed: from its container, if nobody can read
/// its record.
pub fn record(
    site: &Site,
    records: &Records,
    files: &Files,
    name: &str,
    newer: NewerRecords,
) -> Result<Option<InstanceRecord>, ProviderError> {
    match files.record() {
        Err(error)
            if error.is_unreadable_record()
                && (newer == NewerRecords::Remove || !error.is_newer_record()) =>
        {
            Ok(records.record_of_container(site.run(), name)?)
        }
        record => Ok(record?),
    }
}

/// Kills an instance and removes everything of it. Each step takes it that an earlier process was
/// killed while doing the same. The lock is held.
pub fn remove(
    engine: &Engine,
    network: &NetworkOptions,
    files: &Files,
    record: &InstanceRecord,
) -> Result<(), ProviderError> {
    let directory = engine.directory(&record.container);
    let container = match directory.read() {
        Ok(container) => Some(container),
        Err(error) if error.is_newer_record() => return Err(error.into()),
        Err(error) if is_absent(&error) || error.is_unreadable_record() => None,
        Err(error) => return Err(error.into()),
    };
    if let Some(container) = &container {
        if files.is_paused() {
            // One that has ended, or was not paused after all, cannot be resumed.
            let _ = pause::resume(container);
        }
        // Before its supervisor, which is the parent of what runs in it: the first process of a
        // container is gone when all others are collected, and whoever inherits them may be slow.
        if let Some(process) = container.process {
            match process.kill(REAP_TIMEOUT) {
                // One that does something else meanwhile has to go first.
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {}
                result => result.at("kill the container of", directory.path())?,
            }
        }
    }
    let supervisor = match files.supervisor() {
        // It ends after its container.
        Err(error) if error.is_unreadable_record() => None,
        supervisor => supervisor?,
    };
    if let Some(supervisor) = supervisor {
        supervisor.kill(KILL_TIMEOUT).at("kill the supervisor of", directory.path())?;
    }
    let containers: Vec<_> = container.into_iter().collect();
    if containers.is_empty() {
        // There may be a directory that its maker had not written a record to, or nobody can read it.
        engine.remove_bare(&record.container)?;
    }
    if record.network.is_empty() {
        engine.remove_all(&containers)?;
    } else {
        engine.remove_all_with(&containers, || Network::remove_id(network, &record.network))??;
    }
    if record.info.is_none() {
        // Its maker may have been killed while it used the image.
        engine.store.sweep_reservations()?;
    }
    files.remove()?;
    cgroup::remove_if_empty(CGROUP);
    cgroup::remove_if_empty(cgroup::PARENT);
    Ok(())
}

fn is_absent(error: &ContainerError) -> bool {
    match error {
        ContainerError::Read(ReadError::Path(error)) => {
            error.source.kind() == io::ErrorKind::NotFound
        }
        _ => false,
    }
}
