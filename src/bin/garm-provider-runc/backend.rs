//! The instances of this machine: of root, or of an ordinary user, who has each in namespaces of its own.

use std::path::Path;
use std::time::Duration;

use oci_hooks::garm::record::{Files, Records};
use oci_hooks::garm::{Here, Lookup, ProviderError, Removal, Site, Sites};
use oci_hooks::image::Digest;
use oci_hooks::program::exit::Exit;
use oci_hooks::program::host::HostError;
use oci_hooks::program::rootless::{Entered, Entry, Holders, Owner, Owners, RootlessError};
use oci_hooks::program::sections::Store;
use oci_hooks::sys::error::{chain, has_timed_out};
use oci_hooks::sys::identity::ProcessView;
use oci_hooks::sys::privilege::Attendant;

use crate::settings::Settings;

/// The owners are instances.
const KIND: &str = "instances";

/// The file that is there if there have been instances since this machine started.
const SWEPT: &str = "garm.swept";

/// Whose instances a command is about.
pub enum Backend {
    /// All instances of root, where this process is.
    Root(Box<Settings>),
    User(Box<RootlessInstances>),
}

/// The instances of an ordinary user.
pub struct RootlessInstances {
    settings: Settings,
    owners: Owners,
}

/// An instance, as its holder is recorded.
struct Key {
    id: String,
    /// The controller and the name, which has no slash.
    label: String,
}

impl Key {
    fn new(controller: &str, name: &str) -> Self {
        let label = format!("{controller}/{name}");
        let digest = Digest::of(label.as_bytes());
        Key { id: digest.hex()[..32].to_owned(), label }
    }

    fn owner(&self) -> Owner<'_> {
        Owner { id: &self.id, name: &self.label, worker: None }
    }
}

impl Backend {
    /// Returns the instances whose images are where the settings say.
    pub fn of(settings: Settings) -> Self {
        let owners = Owners::new(&settings.store, KIND, attend);
        match owners.holders() {
            None => Backend::Root(Box::new(settings)),
            Some(_) => Backend::User(Box::new(RootlessInstances { settings, owners })),
        }
    }

    /// Calls `work` with the run directory that has the records of all instances, and with what finds each.
    pub fn with_sites<T, E: From<HostError>>(
        &self,
        work: impl FnOnce(&Path, &dyn Sites) -> Result<T, E>,
    ) -> Result<T, E> {
        match self {
            Backend::Root(settings) => {
                let engine = settings.host().existing()?;
                work(&settings.store.run, &Here { engine: &engine, network: &settings.network() })
            }
            Backend::User(instances) => work(instances.run(), &**instances),
        }
    }
}

impl RootlessInstances {
    /// Returns the settings, as they are outside of namespaces.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the run directory that has the records of all instances.
    pub fn run(&self) -> &Path {
        &self.settings.store.run
    }

    /// Returns what finds instances of a controller.
    pub fn lookup(&self, controller: &str) -> Lookup<'_> {
        Lookup { records: Records::of(self.run(), controller), sites: self }
    }

    /// Returns whether the holder of an instance runs.
    pub fn has_holder(&self, controller: &str, name: &str) -> bool {
        self.owners.holder(&Key::new(controller, name).id).is_some()
    }

    /// Goes on in the namespaces of an instance, which are made if there are none. Outside, they end afterwards
    /// if that leaves no instance.
    pub fn enter(&self, controller: &str, name: &str) -> Result<Entered, RootlessError> {
        let is_gone = |_: &Holders| self.is_gone(controller, name);
        // Calls hold the lock while they are at work in the holder, so that it ends under none of them.
        let entered =
            self.owners.enter(Key::new(controller, name).owner(), Entry::Exclusive, is_gone)?;
        if matches!(entered, Entered::Inside(_)) && !self.run().join(SWEPT).exists() {
            self.remove_forgotten()?;
        }
        Ok(entered)
    }

    /// Goes on where the files of images have their owners, in the network of the host.
    pub fn enter_store(&self) -> Result<Entered, RootlessError> {
        self.owners.enter_store()
    }

    /// Ends the holders of instances that have no record, such as that of a call that was killed early.
    pub fn end_unrecorded(&self) -> Result<(), RootlessError> {
        for record in self.holders().records()? {
            let Some((controller, name)) = record.name.rsplit_once('/') else { continue };
            let id = Key::new(controller, name).id;
            match self.holders().lock(&id, Duration::ZERO) {
                // A call is at work there, or stopped.
                Err(error) if has_timed_out(&error) => {}
                lock => self.holders().end_if(&id, lock?, self.is_gone(controller, name))?,
            }
        }
        Ok(())
    }

    /// Removes what instances of an earlier boot left on the disk. Files need to have their owners here.
    pub fn remove_forgotten(&self) -> Result<(), RootlessError> {
        Ok(self.holders().remove_forgotten()?)
    }

    fn holders(&self) -> &Holders {
        self.owners.holders().expect("an ordinary user has holders")
    }

    fn is_gone(&self, controller: &str, name: &str) -> bool {
        let records = Records::of(self.run(), controller);
        // A record that cannot be read belongs to an instance.
        records.files(name).is_none_or(|files| matches!(files.record(), Ok(None)))
    }

    /// Removes an instance in its namespaces. The lock of its holder is held.
    fn delete_inside(
        &self,
        key: &Key,
        (records, files, name): (&Records, &Files, &str),
        removal: Removal<'_>,
    ) -> Result<(), RootlessError> {
        let delete = |store: &Store| {
            let settings = self.settings.with_store(store);
            let engine = settings.host().existing().map_err(|error| chain(&error))?;
            let here = Here { engine: &engine, network: &settings.network() };
            // The caller has asked whether it is meant.
            let removal = Removal { is_meant: Removal::default().is_meant, ..removal };
            here.delete(records, files, name, removal).map(drop).map_err(|error| chain(&error))
        };
        self.owners.in_owner(self.holders(), key.owner(), delete)
    }
}

impl Sites for RootlessInstances {
    fn site(&self, controller: &str, name: &str) -> Result<Site, ProviderError> {
        let id = Key::new(controller, name).id;
        let view = self.owners.holder(&id).map_or(ProcessView::Ended, ProcessView::Below);
        Ok(Site::new(self.holders().run_of(&id), view))
    }

    fn unrecorded(&self, controller: &str) -> Result<Vec<String>, ProviderError> {
        let known = self.holders().records().map_err(|error| elsewhere(controller, error))?;
        let labels = known.iter().filter_map(|record| record.name.rsplit_once('/'));
        let own = labels.filter(|(found, _)| *found == controller);
        Ok(own.map(|(_, name)| name.to_owned()).collect())
    }

    /// Processes with one thread enter namespaces.
    fn at_once(&self) -> usize {
        1
    }

    fn delete(
        &self,
        records: &Records,
        files: &Files,
        name: &str,
        removal: Removal<'_>,
    ) -> Result<bool, ProviderError> {
        let (controller, holders) = (records.controller(), self.holders());
        let key = Key::new(controller, name);
        if holders.find(&key.id).is_none() && matches!(files.record(), Ok(None)) {
            let lock = files.lock(removal.patience)?;
            files.forget(lock)?;
            return Ok(true);
        }
        let lock = holders.lock(&key.id, removal.patience);
        let lock = lock.map_err(|error| elsewhere(name, error))?;
        if !(removal.is_meant)()? {
            return Ok(false);
        }
        self.delete_inside(&key, (records, files, name), removal)
            .and_then(|()| Ok(holders.end_if(&key.id, lock, self.is_gone(controller, name))?))
            .map_err(|error| elsewhere(name, error))?;
        Ok(true)
    }
}

fn elsewhere(name: &str, error: impl std::error::Error + Send + Sync + 'static) -> ProviderError {
    ProviderError::Elsewhere { name: name.to_owned(), source: Box::new(error) }
}

/// Goes on where the files of images have their owners, in the network of the host.
pub fn enter_store(settings: &Settings) -> Result<Entered, RootlessError> {
    Owners::new(&settings.store, KIND, attend).enter_store()
}

/// Waits for a copy of this process, which ends with this one.
fn attend(attendant: Attendant) -> Exit {
    // A child is waited for once.
    attendant.wait(None, |_| {}).map_or(Exit::Findings, Exit::from)
}
