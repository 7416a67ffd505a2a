//! Instances of this machine: root's, or those of a rootless user, each in its own namespaces.

use std::path::Path;
use std::time::Duration;

use garm_provider_runc::record::{ControllerRecords, InstanceFiles, InstanceRecord};
use garm_provider_runc::{
    ControllerInstances, EngineAccess, InstanceAccess, InstanceFilter, InstanceProcesses,
    ProviderError, RemovalOptions, SWEEP_MARKER, rebuild_records,
};
use oci_hooks_cli::exit::CliExit;
use oci_hooks_engine_cli::host::HostError;
use oci_hooks_engine_cli::rootless::{
    ContainerOwner, ContainerOwners, EnterOutcome, NamespaceEntry, PauseProcesses, RootlessError,
};
use oci_hooks_engine_cli::sections::StoreSection;
use oci_hooks_files::error::{chain, has_timed_out};
use oci_hooks_files::lock::FileLock;
use oci_hooks_host::identity::PidNamespace;
use oci_hooks_host::privilege::ChildHandle;
use oci_hooks_image::Digest;

use crate::settings::GarmFileSettings;

/// Kind of the [`ContainerOwners`], which names their directories: each instance owns its containers.
const KIND: &str = "instances";

/// Instances of root or of a rootless user.
pub enum InstanceBackend {
    /// Instances of root, in the namespaces of this process.
    Root(Box<GarmFileSettings>),
    User(Box<RootlessInstances>),
}

/// Instances of a rootless user.
pub struct RootlessInstances {
    settings: GarmFileSettings,
    owners: ContainerOwners,
}

/// Id and label of an instance's pause process.
struct InstanceKey {
    id: String,
    /// `CONTROLLER/NAME`; the name contains no slash.
    label: String,
}

impl InstanceKey {
    fn new(controller: &str, name: &str) -> Self {
        let label = format!("{controller}/{name}");
        let digest = Digest::of(label.as_bytes());
        InstanceKey { id: digest.hex()[..32].to_owned(), label }
    }

    fn owner(&self) -> ContainerOwner<'_> {
        ContainerOwner { id: &self.id, name: &self.label, worker: None }
    }
}

impl InstanceBackend {
    /// Returns the instances of the current user.
    pub fn of(settings: GarmFileSettings) -> Self {
        let owners = ContainerOwners::new(&settings.store, KIND, wait_for_copy);
        match owners.pause_processes() {
            None => InstanceBackend::Root(Box::new(settings)),
            Some(_) => InstanceBackend::User(Box::new(RootlessInstances { settings, owners })),
        }
    }

    /// Calls `work` with the run directory of all records, and with access to the instances.
    pub fn with_access<T, E: From<HostError>>(
        &self,
        work: impl FnOnce(&Path, &dyn InstanceAccess) -> Result<T, E>,
    ) -> Result<T, E> {
        match self {
            InstanceBackend::Root(settings) => {
                let engine = settings.host().into_existing_engine()?;
                work(
                    &settings.store.run,
                    &EngineAccess { engine: &engine, network: &settings.network() },
                )
            }
            InstanceBackend::User(instances) => work(instances.run(), &**instances),
        }
    }
}

impl RootlessInstances {
    /// Returns the settings, with paths as seen outside the namespaces of instances.
    pub fn settings(&self) -> &GarmFileSettings {
        &self.settings
    }

    /// Returns the run directory with the records of all instances.
    pub fn run(&self) -> &Path {
        &self.settings.store.run
    }

    /// Returns the instances of a controller.
    pub fn of_controller(&self, controller: &str) -> ControllerInstances<'_> {
        ControllerInstances { records: ControllerRecords::of(self.run(), controller), access: self }
    }

    /// Returns whether the pause process of an instance is running.
    pub fn has_pause_process(&self, controller: &str, name: &str) -> bool {
        self.owners.pause_process(&InstanceKey::new(controller, name).id).is_some()
    }

    /// Enters the namespaces of an instance in a copy of this process; creates them if necessary.
    /// When the copy has exited, this process stops the instance's pause process if the instance is
    /// gone.
    pub fn enter(&self, controller: &str, name: &str) -> Result<EnterOutcome, RootlessError> {
        let is_gone = |_: &PauseProcesses| self.is_gone(controller, name);
        // A call holds the lock while it works in the namespaces, so no other call stops the pause process.
        let entered = self.owners.enter(
            InstanceKey::new(controller, name).owner(),
            NamespaceEntry::Exclusive,
            is_gone,
        )?;
        if matches!(entered, EnterOutcome::Inside(_)) && !self.run().join(SWEEP_MARKER).exists() {
            self.remove_forgotten()?;
        }
        Ok(entered)
    }

    /// Stops the pause processes of instances without a record, and removes their directories, for example after a call
    /// was killed early.
    pub fn end_unrecorded(&self) -> Result<(), RootlessError> {
        let pause_processes = self.pause_processes();
        for owner in pause_processes.owners()? {
            let lock = match pause_processes.lock(&owner, Duration::ZERO) {
                // Another call is running in the namespaces, or stopped.
                Err(error) if has_timed_out(&error) => continue,
                lock => lock?,
            };
            let is_over = match pause_processes.find(&owner).map(|found| found.record) {
                None => !pause_processes.has_job(&owner),
                Some(Ok(record)) => {
                    let key = record.name.rsplit_once('/');
                    key.is_some_and(|(controller, name)| self.is_gone(controller, name))
                }
                Some(Err(_)) => false,
            };
            pause_processes.end_if(&owner, lock, is_over)?;
        }
        Ok(())
    }

    /// Removes disk directories of instances of an earlier boot. The user namespace of this process must map the owners
    /// of their files.
    pub fn remove_forgotten(&self) -> Result<(), RootlessError> {
        Ok(self.pause_processes().remove_forgotten()?)
    }

    fn pause_processes(&self) -> &PauseProcesses {
        self.owners.pause_processes().expect("an ordinary user has pause processes")
    }

    fn is_gone(&self, controller: &str, name: &str) -> bool {
        let records = ControllerRecords::of(self.run(), controller);
        // An instance with an unreadable record still exists, and so does one with a container.
        let has_record =
            records.files(name).is_some_and(|files| !matches!(files.record(), Ok(None)));
        let run = self.pause_processes().run_of(&InstanceKey::new(controller, name).id);
        !has_record && rebuild_records(&run, &|_, _| true).is_ok_and(|all| all.is_empty())
    }

    /// Removes an instance in its namespaces. The caller holds the lock.
    fn delete_inside(
        &self,
        key: &InstanceKey,
        (records, files, name): (&ControllerRecords, &InstanceFiles, &str),
        removal: RemovalOptions<'_>,
    ) -> Result<(), RootlessError> {
        let delete = |store: &StoreSection| {
            let settings = self.settings.with_store(store);
            let engine = settings.host().into_existing_engine().map_err(|error| chain(&error))?;
            let access = EngineAccess { engine: &engine, network: &settings.network() };
            // The caller has called `is_still_wanted`.
            let removal = RemovalOptions {
                is_still_wanted: RemovalOptions::default().is_still_wanted,
                ..removal
            };
            access.delete(records, files, name, removal).map(drop).map_err(|error| chain(&error))
        };
        self.owners.run_in_owner(self.pause_processes(), key.owner(), delete)
    }
}

impl InstanceAccess for RootlessInstances {
    fn processes(&self, controller: &str, name: &str) -> Result<InstanceProcesses, ProviderError> {
        let id = InstanceKey::new(controller, name).id;
        let namespace =
            self.owners.pause_process(&id).map_or(PidNamespace::Ended, PidNamespace::Below);
        Ok(InstanceProcesses::new(self.pause_processes().run_of(&id), namespace))
    }

    fn containers(
        &self,
        is_wanted: InstanceFilter<'_>,
    ) -> Result<Vec<InstanceRecord>, ProviderError> {
        let mut found = Vec::new();
        for record in self.pause_processes().records().map_err(wrap_list_error)? {
            let Some((controller, name)) = record.name.rsplit_once('/') else { continue };
            if is_wanted(controller, name) {
                let run = self.pause_processes().run_of(&InstanceKey::new(controller, name).id);
                found.extend(rebuild_records(&run, &|_, _| true)?);
            }
        }
        Ok(found)
    }

    fn unrecorded_instances(&self, controller: &str) -> Result<Vec<String>, ProviderError> {
        let known = self.pause_processes().records().map_err(wrap_list_error)?;
        let labels = known.iter().filter_map(|record| record.name.rsplit_once('/'));
        let own = labels.filter(|(found, _)| *found == controller);
        Ok(own.map(|(_, name)| name.to_owned()).collect())
    }

    /// Returns 1, because only single-threaded processes can enter user namespaces.
    fn max_parallel_removals(&self) -> usize {
        1
    }

    fn delete(
        &self,
        records: &ControllerRecords,
        files: &InstanceFiles,
        name: &str,
        removal: RemovalOptions<'_>,
    ) -> Result<bool, ProviderError> {
        let (controller, pause_processes) = (records.controller(), self.pause_processes());
        let key = InstanceKey::new(controller, name);
        let lock_owner = || {
            let lock = pause_processes.lock(&key.id, removal.lock_timeout);
            lock.map_err(|error| wrap_error(name, error))
        };
        let end_if_gone = |lock: FileLock| -> Result<(), RootlessError> {
            Ok(pause_processes.end_if(&key.id, lock, self.is_gone(controller, name))?)
        };
        let is_bare =
            || pause_processes.find(&key.id).is_none() && matches!(files.record(), Ok(None));
        if is_bare() {
            let lock = files.lock(removal.lock_timeout)?;
            // An instance may have been created meanwhile.
            if is_bare() {
                files.remove()?;
                files.forget(lock)?;
                // A killed creation may have left directories without a pause process.
                let lock = lock_owner()?;
                return end_if_gone(lock).map(|()| true).map_err(|error| wrap_error(name, error));
            }
        }
        let lock = lock_owner()?;
        if !(removal.is_still_wanted)()? {
            return Ok(false);
        }
        self.delete_inside(&key, (records, files, name), removal)
            .and_then(|()| end_if_gone(lock))
            .map_err(|error| wrap_error(name, error))?;
        Ok(true)
    }
}

fn wrap_error(name: &str, error: impl std::error::Error + Send + Sync + 'static) -> ProviderError {
    ProviderError::InNamespaces { name: name.to_owned(), source: Box::new(error) }
}

fn wrap_list_error(error: impl std::error::Error + Send + Sync + 'static) -> ProviderError {
    ProviderError::ListInNamespaces { source: Box::new(error) }
}

/// Enters a user namespace that maps the owners of the store's files; the network stays the host's.
pub fn enter_store(settings: &GarmFileSettings) -> Result<EnterOutcome, RootlessError> {
    ContainerOwners::new(&settings.store, KIND, wait_for_copy).enter_store()
}

/// Waits for the copy of this process, which is killed when this process exits.
fn wait_for_copy(child: ChildHandle) -> CliExit {
    // Waiting fails only if the child has already been reaped.
    child.wait(None, |_| {}).map_or(CliExit::Findings, CliExit::from)
}
