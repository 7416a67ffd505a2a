//! Access to instances: their containers and processes.
//!
//! All instances of root share one run directory and the PID namespace of this process. Each rootless instance has its
//! own pause process, with its own PID namespace and directories.

use std::path::PathBuf;
use std::time::Duration;

use oci_hooks_engine::container::{Engine, RecordDirectory};
use oci_hooks_engine::network::NetworkOptions;
use oci_hooks_files::lock::{BULK_LOCK_TIMEOUT, FileLock};
use oci_hooks_files::record::NewerRecords;
use oci_hooks_host::identity::PidNamespace;

use super::error::ProviderError;
use super::found::{InstanceFilter, rebuild_records};
use super::record::{ControllerRecords, InstanceFiles, InstanceRecord};
use super::remove;
use super::supervisor::supervisors;

/// Number of instances removed concurrently by `RemoveAllInstances`; each needs file descriptors, which may be limited.
const AT_ONCE: usize = 4;

/// The processes of instances, found by the run directory of their containers and their PID namespace.
#[derive(Clone, Debug)]
pub struct InstanceProcesses {
    run: PathBuf,
    pid_namespace: PidNamespace,
}

/// Access to the containers of all instances of this user.
pub trait InstanceAccess: Sync {
    /// Returns the processes of an instance.
    fn processes(&self, controller: &str, name: &str) -> Result<InstanceProcesses, ProviderError>;

    /// Returns the records of instances, rebuilt from their containers.
    fn containers(
        &self,
        is_wanted: InstanceFilter<'_>,
    ) -> Result<Vec<InstanceRecord>, ProviderError>;

    /// Returns the names of a controller's instances that have a pause process, so that those without a record and a
    /// container are found too.
    fn unrecorded_instances(&self, controller: &str) -> Result<Vec<String>, ProviderError>;

    /// Returns the number of instances that can be removed concurrently, each on a thread.
    fn max_parallel_removals(&self) -> usize;

    /// Removes an instance or its leftovers, unless [`RemovalOptions::is_still_wanted`] returns false. Returns whether
    /// it was removed.
    fn delete(
        &self,
        records: &ControllerRecords,
        files: &InstanceFiles,
        name: &str,
        removal: RemovalOptions<'_>,
    ) -> Result<bool, ProviderError>;
}

/// Options of removing an instance.
#[derive(Clone, Copy)]
pub struct RemovalOptions<'a> {
    /// Called when the instance is locked; returns whether the instance is still to be removed.
    pub is_still_wanted: &'a dyn Fn() -> Result<bool, ProviderError>,
    /// Treatment of a record of a newer version of this program.
    pub newer: NewerRecords,
    /// Maximum wait for the lock of the instance, which another call may hold.
    pub lock_timeout: Duration,
}

impl Default for RemovalOptions<'_> {
    fn default() -> Self {
        RemovalOptions {
            is_still_wanted: &|| Ok(true),
            newer: NewerRecords::Keep,
            lock_timeout: BULK_LOCK_TIMEOUT,
        }
    }
}

/// Access to the instances of one engine, whose processes are in the PID namespace of this process: all instances of
/// root, or, if this process is in the namespaces of a rootless instance, that instance.
#[derive(Clone, Copy, Debug)]
pub struct EngineAccess<'a> {
    pub engine: &'a Engine,
    pub network: &'a NetworkOptions,
}

impl InstanceProcesses {
    /// Returns the processes of the instances whose containers have their records below a run directory.
    pub fn new(run: PathBuf, pid_namespace: PidNamespace) -> Self {
        InstanceProcesses { run, pid_namespace }
    }

    /// Returns the processes of an engine's instances, in the PID namespace of this process.
    pub(super) fn of(engine: &Engine) -> Self {
        InstanceProcesses::new(engine.run.clone(), PidNamespace::Own)
    }

    /// Returns whether the process that creates an instance is running.
    pub(super) fn is_being_created(&self, record: &InstanceRecord) -> bool {
        record.creator.is_some_and(|creator| self.pid_namespace.is_running(creator))
    }

    /// Returns whether the supervisor of an instance is running, or the process that creates the instance.
    pub(super) fn is_attended(
        &self,
        files: &InstanceFiles,
        record: &InstanceRecord,
    ) -> Result<bool, ProviderError> {
        let supervisor = match files.supervisor() {
            Err(error) if error.is_unreadable_record() => None,
            supervisor => supervisor?,
        };
        Ok(match supervisor {
            Some(supervisor) => self.pid_namespace.is_running(supervisor),
            None => {
                self.is_being_created(record)
                    || self.has_supervisor(&record.controller, &record.name)?
            }
        })
    }

    /// Returns whether a supervisor of an instance is running, recorded or not.
    pub(super) fn has_supervisor(
        &self,
        controller: &str,
        name: &str,
    ) -> Result<bool, ProviderError> {
        Ok(!supervisors(self.pid_namespace, controller, name)?.is_empty())
    }

    /// Returns whether the container of an instance is running.
    pub(super) fn is_running(&self, record: &InstanceRecord) -> bool {
        let container = RecordDirectory::of(&self.run, &record.container).read();
        let process = container.ok().and_then(|container| container.process);
        process.is_some_and(|process| self.pid_namespace.is_running(process))
    }
}

impl EngineAccess<'_> {
    /// Removes an instance or its leftovers, and its lock.
    pub(super) fn remove_locked(
        self,
        records: &ControllerRecords,
        files: &InstanceFiles,
        name: &str,
        newer: NewerRecords,
        lock: FileLock,
    ) -> Result<(), ProviderError> {
        let parts = remove::parts(self.engine, records, files, name, newer)?;
        remove::remove_parts(self, files, &parts, newer)?;
        if parts.is_empty() {
            // A supervisor without a record would write to the files of the next instance.
            let supervisor = remove::running_supervisor(files)?;
            remove::end_supervisor(supervisor, records.controller(), name)?;
        }
        files.remove()?;
        Ok(files.forget(lock)?)
    }
}

impl InstanceAccess for EngineAccess<'_> {
    fn processes(&self, _: &str, _: &str) -> Result<InstanceProcesses, ProviderError> {
        Ok(InstanceProcesses::of(self.engine))
    }

    fn containers(
        &self,
        is_wanted: InstanceFilter<'_>,
    ) -> Result<Vec<InstanceRecord>, ProviderError> {
        Ok(rebuild_records(&self.engine.run, is_wanted)?)
    }

    fn unrecorded_instances(&self, _: &str) -> Result<Vec<String>, ProviderError> {
        Ok(Vec::new())
    }

    fn max_parallel_removals(&self) -> usize {
        AT_ONCE
    }

    fn delete(
        &self,
        records: &ControllerRecords,
        files: &InstanceFiles,
        name: &str,
        removal: RemovalOptions<'_>,
    ) -> Result<bool, ProviderError> {
        let lock = files.lock(removal.lock_timeout)?;
        if !(removal.is_still_wanted)()? {
            return Ok(false);
        }
        self.remove_locked(records, files, name, removal.newer, lock).map(|()| true)
    }
}
