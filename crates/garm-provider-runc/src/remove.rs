//! Removal of complete or partial instances.

use std::io;
use std::time::Duration;

use oci_hooks_engine::container::{ContainerError, Engine};
use oci_hooks_engine::network::Network;
use oci_hooks_files::fs::{PathContext as _, ReadError};
use oci_hooks_files::record::NewerRecords;
use oci_hooks_host::cgroup;
use oci_hooks_host::identity::{PidNamespace, ProcessIdentity};

use super::access::EngineAccess;
use super::error::ProviderError;
use super::found::rebuild_records_of;
use super::pause;
use super::record::{ControllerRecords, InstanceFiles, InstanceRecord};
use super::supervisor::{CGROUP, supervisors};

/// Timeout for a killed supervisor to exit.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// Timeout for a supervisor to reap the processes of its killed container.
const REAP_TIMEOUT: Duration = Duration::from_millis(500);

/// Returns a record for each container of an instance: the instance's record, and records rebuilt from other containers
/// that name the instance.
pub fn parts(
    engine: &Engine,
    records: &ControllerRecords,
    files: &InstanceFiles,
    name: &str,
    newer: NewerRecords,
) -> Result<Vec<InstanceRecord>, ProviderError> {
    let record = match files.record() {
        Err(error)
            if error.is_unreadable_record()
                && (newer == NewerRecords::Remove || !error.is_newer_record()) =>
        {
            None
        }
        record => record?,
    };
    let mut others = rebuild_records_of(&engine.run, records, name)?;
    others.retain(|other| record.as_ref().is_none_or(|it| it.container != other.container));
    Ok(record.into_iter().chain(others).collect())
}

/// Kills an instance and removes the containers, networks and files in its records `parts`. The caller holds the lock.
pub fn remove_parts(
    access: EngineAccess<'_>,
    files: &InstanceFiles,
    parts: &[InstanceRecord],
    newer: NewerRecords,
) -> Result<(), ProviderError> {
    parts.iter().try_for_each(|part| remove(access, files, part, newer))
}

/// Returns the recorded supervisor of an instance, if it runs.
pub fn running_supervisor(files: &InstanceFiles) -> Result<Option<ProcessIdentity>, ProviderError> {
    match files.supervisor() {
        Ok(supervisor) => Ok(supervisor.filter(ProcessIdentity::is_running)),
        Err(error) if error.is_unreadable_record() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Kills the supervisor of an instance: the `known` one, or else all that are found among the running processes,
/// because a starting supervisor may not be recorded yet.
pub fn end_supervisor(
    known: Option<ProcessIdentity>,
    controller: &str,
    name: &str,
) -> Result<(), ProviderError> {
    let supervisors = match known {
        Some(supervisor) => vec![supervisor],
        None => supervisors(PidNamespace::Own, controller, name)?,
    };
    for supervisor in supervisors {
        supervisor.kill(KILL_TIMEOUT).map_err(|source| ProviderError::Signal {
            name: name.to_owned(),
            action: "kill the supervisor of",
            source,
        })?;
    }
    Ok(())
}

/// Kills a container of an instance and the supervisor, and removes the container, its network, and the instance's
/// files. Can be repeated after a removal was killed at any step. The caller holds the lock.
pub fn remove(
    EngineAccess { engine, network }: EngineAccess<'_>,
    files: &InstanceFiles,
    record: &InstanceRecord,
    newer: NewerRecords,
) -> Result<(), ProviderError> {
    // Read before the container is killed, which ends the supervisor too.
    let supervisor = running_supervisor(files)?;
    let directory = engine.directory(&record.container);
    let container = match directory.read() {
        Ok(container) => Some(container),
        Err(error) if error.is_newer_record() && newer == NewerRecords::Keep => {
            return Err(error.into());
        }
        Err(error) if is_absent(&error) || error.is_unreadable_record() => None,
        Err(error) => return Err(error.into()),
    };
    if let Some(container) = &container {
        if files.is_paused() {
            // Resuming fails if the instance has exited, or was not paused yet.
            let _ = pause::resume(container);
        }
        // Kill the container before the supervisor, which is the parent of its processes: the first process exits only
        // when all others are reaped, and another parent may be slow.
        if let Some(process) = container.process {
            match process.kill(REAP_TIMEOUT) {
                // Either the supervisor is too busy to reap the processes: it is killed next. Or
                // the instance is paused, but the file that marks it as paused is missing: it is
                // resumed here.
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    let _ = pause::resume(container);
                }
                result => {
                    result.with_path("kill the container with records in", directory.path())?;
                }
            }
        }
    }
    end_supervisor(supervisor, &record.controller, &record.name)?;
    let containers: Vec<_> = container.into_iter().collect();
    if containers.is_empty() {
        // The container's directory may exist without a record, or with an unreadable one.
        engine.remove_bare(&record.container)?;
    }
    if record.network.is_empty() {
        engine.remove_all(&containers)?;
    } else {
        engine.remove_all_with(&containers, || Network::remove_id(network, &record.network))??;
    }
    if record.info.is_none() {
        // The creating process may have been killed while it had the image reserved.
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
