//! GARM's operations on instances.

use std::thread;
use std::time::Duration;

use oci_hooks_engine::container::ContainerError;
use oci_hooks_files::error::chain;
use oci_hooks_files::lock::{BULK_LOCK_TIMEOUT, LONG_LOCK_TIMEOUT};
use oci_hooks_files::record::NewerRecords;
use oci_hooks_host::thread::{ConcurrentWork, spawn_or_call};
use oci_hooks_image::{Credentials, RegistryClient};
use tracing::info_span;

use super::access::{EngineAccess, InstanceAccess, InstanceProcesses, RemovalOptions};
use super::create;
use super::error::ProviderError;
use super::found::{FoundInstance, find, find_all};
use super::instance::{GarmInstance, InstanceStatus};
use super::record::{ControllerRecords, InstanceFiles, InstanceRecord, RunnerOutcome};
use super::settings::ProviderSettings;
use super::supervisor::SupervisorProgram;
use super::{Bootstrap, pause};

/// Creates, starts and stops the instances of one GARM controller.
#[derive(Clone, Copy)]
pub struct GarmProvider<'a> {
    /// Id of the controller.
    pub controller: &'a str,
    pub access: EngineAccess<'a>,
    pub registries: &'a RegistryClient,
    pub credentials: &'a Credentials,
    pub settings: &'a ProviderSettings,
    pub supervisor: &'a SupervisorProgram,
}

/// The instances of a pool.
#[derive(Debug, Default)]
pub struct InstanceList {
    pub instances: Vec<GarmInstance>,
    /// Errors of the controller's unreadable records, also of other pools, because the pool of an unreadable record may be
    /// unknown.
    pub unreadable: Vec<ContainerError>,
}

impl GarmProvider<'_> {
    /// Creates and starts an instance. Its supervisor boots the runner, which this call does not wait for.
    ///
    /// Leftovers of an earlier instance of the same name are removed first.
    pub fn create(&self, bootstrap: &Bootstrap) -> Result<GarmInstance, ProviderError> {
        let _span = info_span!("create", instance = bootstrap.name).entered();
        create::create(self, bootstrap)
    }

    /// Returns this controller's instances.
    pub fn instances(&self) -> ControllerInstances<'_> {
        ControllerInstances { records: self.records(), access: &self.access }
    }

    /// Resumes a stopped instance. An instance whose runner has exited cannot be started again, because its credentials
    /// were for one runner. Such an instance is removed, so that it is no longer listed and GARM creates a new one.
    pub fn start(&self, id: &str) -> Result<(), ProviderError> {
        let (files, _) = self.instances().find(id)?;
        let lock = files.lock(LONG_LOCK_TIMEOUT)?;
        let (_, record) = self.instances().find(id)?;
        if files.is_paused() {
            let container = self.access.engine.directory(&record.container).read()?;
            pause::resume(&container)?;
            return Ok(files.set_paused(false)?);
        }
        let processes = InstanceProcesses::of(self.access.engine);
        let instance = instance(&processes, &files, record.clone())?;
        let has_ended = files.has_ended();
        if instance.status == InstanceStatus::Running && !has_ended {
            return Ok(());
        }
        // If only the supervisor was killed, the job is still running.
        if has_ended || !processes.is_attended(&files, &record)? && !processes.is_running(&record) {
            self.access.remove_locked(&self.records(), &files, id, NewerRecords::Remove, lock)?;
        }
        // GARM logs the error.
        Err(ProviderError::Ended { name: id.to_owned(), fault: instance.fault })
    }

    /// Pauses all processes of an instance.
    pub fn stop(&self, id: &str) -> Result<(), ProviderError> {
        let (files, _) = self.instances().find(id)?;
        let _lock = files.lock(LONG_LOCK_TIMEOUT)?;
        let (_, record) = self.instances().find(id)?;
        if files.is_paused() || !InstanceProcesses::of(self.access.engine).is_running(&record) {
            return Ok(());
        }
        // Recorded first, so that a later removal resumes the instance: a paused process cannot be killed.
        files.set_paused(true)?;
        let container = self.access.engine.directory(&record.container).read()?;
        if let Err(error) = pause::pause(&container) {
            // Some processes are stopped already, and no later call resumes an instance that is not recorded as paused.
            let _ = pause::resume(&container);
            files.set_paused(false)?;
            return Err(error);
        }
        Ok(())
    }

    pub(super) fn records(&self) -> ControllerRecords {
        ControllerRecords::of(&self.access.engine.store.options().run, self.controller)
    }
}

/// The existing instances of one GARM controller.
#[derive(Clone)]
pub struct ControllerInstances<'a> {
    pub records: ControllerRecords,
    pub access: &'a dyn InstanceAccess,
}

impl ControllerInstances<'_> {
    /// Returns an instance by its name.
    pub fn get(&self, id: &str) -> Result<GarmInstance, ProviderError> {
        let (files, record) = self.find(id)?;
        self.instance(&files, record)
    }

    /// Returns all instances of a pool, running or not.
    pub fn list(&self, pool: &str) -> Result<InstanceList, ProviderError> {
        let mut listed = InstanceList::default();
        for FoundInstance { files, record, error, .. } in find_all(&self.records, self.access)? {
            if let Some(record) = record.filter(|record| record.pool == pool) {
                listed.instances.push(self.instance(&files, record)?);
            }
            listed.unreadable.extend(error);
        }
        Ok(listed)
    }

    /// Removes all instances and their leftovers. If some cannot be removed, continues with the others.
    pub fn remove_all(&self) -> Result<(), ProviderError> {
        let mut names = self.records.names()?;
        names.extend(self.access.unrecorded_instances(self.records.controller())?);
        let is_own = |controller: &str, _: &str| self.records.are_of(controller);
        names.extend(self.access.containers(&is_own)?.into_iter().map(|record| record.name));
        let names: Vec<_> = names.into_iter().collect();
        // An instance that another call has locked does not delay the others for long.
        let delete = |name: &String| self.delete_within(BULK_LOCK_TIMEOUT, name);
        let mut results = Vec::new();
        let at_once = self.access.max_parallel_removals();
        if at_once == 1 {
            results.extend(names.iter().map(delete));
            return results.into_iter().collect();
        }
        for some in names.chunks(at_once) {
            thread::scope(|scope| {
                let deleting: Vec<_> =
                    some.iter().map(|name| spawn_or_call(scope, move || delete(name))).collect();
                results.extend(deleting.into_iter().map(ConcurrentWork::join));
            });
        }
        results.into_iter().collect()
    }

    /// Removes an instance or its leftovers completely. Succeeds if the instance does not exist.
    pub fn delete(&self, id: &str) -> Result<(), ProviderError> {
        let _span = info_span!("delete", instance = id).entered();
        self.delete_within(LONG_LOCK_TIMEOUT, id)
    }

    /// Removes an instance as [`delete`](Self::delete) does; fails if another call holds its lock for longer
    /// than `lock_timeout`.
    fn delete_within(&self, lock_timeout: Duration, id: &str) -> Result<(), ProviderError> {
        // No instance can have an invalid name.
        let Some(files) = self.records.files(id) else { return Ok(()) };
        // GARM repeats a removal until it succeeds, so records of newer versions are removed too.
        let newer = NewerRecords::Remove;
        let removal = RemovalOptions { newer, lock_timeout, ..RemovalOptions::default() };
        self.access.delete(&self.records, &files, id, removal).map(drop)
    }

    fn find(&self, id: &str) -> Result<(InstanceFiles, InstanceRecord), ProviderError> {
        let unknown = || ProviderError::Unknown { name: id.to_owned() };
        let found = find(&self.records, self.access, id)?.ok_or_else(unknown)?;
        match (found.record, found.error) {
            (Some(record), _) => Ok((found.files, record)),
            (None, Some(error)) => Err(error.into()),
            (None, None) => Err(unknown()),
        }
    }

    fn instance(
        &self,
        files: &InstanceFiles,
        record: InstanceRecord,
    ) -> Result<GarmInstance, ProviderError> {
        instance(&self.access.processes(self.records.controller(), &record.name)?, files, record)
    }
}

/// Returns an instance as reported to GARM.
pub fn instance(
    processes: &InstanceProcesses,
    files: &InstanceFiles,
    record: InstanceRecord,
) -> Result<GarmInstance, ProviderError> {
    let record = match record.creator {
        // The creation may have finished, and its process exited, after the record was read.
        Some(_) if record.info.is_none() && !processes.is_being_created(&record) => {
            files.record()?.unwrap_or(record)
        }
        _ => record,
    };
    let (status, fault) = match status(processes, files, &record) {
        Err(ProviderError::Container(error)) if error.is_unreadable_record() => {
            (InstanceStatus::Error, Some(chain(&error)))
        }
        status => status?,
    };
    let info = record.info;
    let (os_name, os_version, addresses) =
        info.map(|info| (info.os_name, info.os_version, info.addresses)).unwrap_or_default();
    Ok(GarmInstance {
        name: record.name,
        pool_id: record.pool,
        os_name,
        os_version,
        os_arch: record.arch,
        addresses,
        status,
        fault,
    })
}

/// Returns the status of an instance, and its fault.
fn status(
    processes: &InstanceProcesses,
    files: &InstanceFiles,
    record: &InstanceRecord,
) -> Result<(InstanceStatus, Option<String>), ProviderError> {
    if let Some(RunnerOutcome::Failed { fault, .. }) = files.outcome()? {
        return Ok((InstanceStatus::Error, Some(fault)));
    }
    if record.info.is_none() {
        return Ok(match processes.is_being_created(record) {
            // GARM would try to start a stopped instance.
            true => (InstanceStatus::Running, None),
            false => (InstanceStatus::Error, Some("its creation was interrupted".to_owned())),
        });
    }
    // Checked before `is_running`, because a supervisor exits after its container.
    let is_attended = processes.is_attended(files, record)?;
    Ok(match processes.is_running(record) && !files.is_paused() {
        true if is_attended => (InstanceStatus::Running, None),
        // Without a supervisor, the end of the runner is not noticed.
        true => (InstanceStatus::Error, Some("its supervisor was killed".to_owned())),
        false => (InstanceStatus::Stopped, None),
    })
}
