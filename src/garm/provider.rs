//! What GARM asks for, carried out.

use std::thread;

use tracing::info_span;

use super::create;
use super::error::ProviderError;
use super::instance::{Instance, Status};
use super::record::{Files, InstanceRecord, Outcome, Records};
use super::settings::Settings;
use super::site::{Here, Removal, Site, Sites};
use super::supervisor::SupervisorProgram;
use super::{Bootstrap, pause, remove};
use crate::container::{ContainerError, Engine};
use crate::image::{Credentials, Progress, RegistryClient};
use crate::network::NetworkOptions;
use crate::sys::error::chain;
use crate::sys::lock::LONG;
use crate::sys::thread::{Beside, beside};

/// Makes and removes instances of one GARM, which sees no other's.
#[derive(Clone, Copy)]
pub struct Provider<'a> {
    /// Which GARM, by its controller id.
    pub controller: &'a str,
    pub engine: &'a Engine,
    /// Where networks get their addresses from.
    pub network: &'a NetworkOptions,
    pub registries: &'a RegistryClient,
    pub credentials: &'a Credentials,
    pub settings: &'a Settings,
    pub supervisor: &'a SupervisorProgram,
    /// Hears of what is downloaded.
    pub progress: &'a dyn Progress,
}

/// The instances of a pool.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Listed {
    pub instances: Vec<Instance>,
    /// Why records cannot be read, of whatever pool.
    pub unreadable: Vec<ContainerError>,
}

impl Provider<'_> {
    /// Makes an instance and starts it; its runner is brought up when this is done.
    ///
    /// What an earlier creation of the same name left is taken apart first.
    pub fn create(&self, bootstrap: &Bootstrap) -> Result<Instance, ProviderError> {
        let _span = info_span!("create", instance = bootstrap.name).entered();
        create::create(self, bootstrap)
    }

    /// Returns what finds instances.
    pub fn lookup(&self) -> Lookup<'_> {
        Lookup { records: self.records(), sites: self }
    }

    fn here(&self) -> Here<'_> {
        Here { engine: self.engine, network: self.network }
    }

    /// Has a stopped instance go on. One that has ended by itself does not start again: its
    /// credentials were good for one runner. What is left of it is removed, so that it is in no list
    /// any more: GARM forgets it then, and has another one made.
    pub fn start(&self, id: &str) -> Result<(), ProviderError> {
        let (files, _) = self.lookup().find(id)?;
        let lock = files.lock(LONG)?;
        let (_, record) = self.lookup().find(id)?;
        if files.is_paused() {
            let container = self.engine.directory(&record.container).read()?;
            pause::resume(&container)?;
            return Ok(files.set_paused(false)?);
        }
        let site = Site::of(self.engine);
        let instance = instance(&site, &files, record.clone())?;
        if instance.status == Status::Running {
            return Ok(());
        }
        // Somebody may have killed its supervisor, and its job go on.
        if !site.is_attended(&files, &record)? && !site.is_running(&record) {
            remove::remove(self.engine, self.network, &files, &record)?;
            files.forget(lock)?;
        }
        // GARM writes it to its log.
        Err(ProviderError::Ended { name: id.to_owned(), fault: instance.fault })
    }

    /// Stops all processes of an instance where they are.
    pub fn stop(&self, id: &str) -> Result<(), ProviderError> {
        let (files, _) = self.lookup().find(id)?;
        let _lock = files.lock(LONG)?;
        let (_, record) = self.lookup().find(id)?;
        if files.is_paused() || !Site::of(self.engine).is_running(&record) {
            return Ok(());
        }
        // Recorded first, so that a later removal resumes the instance: a paused process cannot be killed.
        files.set_paused(true)?;
        let container = self.engine.directory(&record.container).read()?;
        if let Err(error) = pause::pause(&container) {
            files.set_paused(false)?;
            return Err(error);
        }
        Ok(())
    }

    pub(super) fn records(&self) -> Records {
        Records::of(&self.engine.store.options().run, self.controller)
    }
}

impl Sites for Provider<'_> {
    fn site(&self, controller: &str, name: &str) -> Result<Site, ProviderError> {
        self.here().site(controller, name)
    }

    fn unrecorded(&self, controller: &str) -> Result<Vec<String>, ProviderError> {
        self.here().unrecorded(controller)
    }

    fn at_once(&self) -> usize {
        self.here().at_once()
    }

    fn delete(
        &self,
        records: &Records,
        files: &Files,
        name: &str,
        removal: Removal<'_>,
    ) -> Result<bool, ProviderError> {
        self.here().delete(records, files, name, removal)
    }
}

/// Finds instances of one GARM, wherever they are.
#[derive(Clone)]
pub struct Lookup<'a> {
    pub records: Records,
    pub sites: &'a dyn Sites,
}

impl Lookup<'_> {
    /// Returns an instance by its name.
    pub fn get(&self, id: &str) -> Result<Instance, ProviderError> {
        let (files, record) = self.find(id)?;
        self.instance(&files, record)
    }

    /// Returns all instances of a pool, running or not.
    pub fn list(&self, pool: &str) -> Result<Listed, ProviderError> {
        let instances = self.records.read_all()?;
        let mut listed = Listed::default();
        for record in instances.known.into_iter().filter(|record| record.pool == pool) {
            if let Some(files) = self.records.files(&record.name) {
                listed.instances.push(self.instance(&files, record)?);
            }
        }
        listed.unreadable = instances.unreadable.into_iter().map(|(_, error)| error).collect();
        Ok(listed)
    }

    /// Removes all instances, and what is left of others; all that can be, if some cannot.
    pub fn remove_all(&self) -> Result<(), ProviderError> {
        let mut names = self.records.names()?;
        names.extend(self.sites.unrecorded(self.records.controller())?);
        let names: Vec<_> = names.into_iter().collect();
        let mut results = Vec::new();
        let at_once = self.sites.at_once();
        if at_once == 1 {
            results.extend(names.iter().map(|name| self.delete_of_all(name)));
            return results.into_iter().collect();
        }
        for some in names.chunks(at_once) {
            thread::scope(|scope| {
                let deleting: Vec<_> =
                    some.iter().map(|name| beside(scope, || self.delete_of_all(name))).collect();
                results.extend(deleting.into_iter().map(Beside::join));
            });
        }
        results.into_iter().collect()
    }

    /// Removes an instance, whatever is left of it; none is fine. When this is done there is nothing
    /// of it.
    pub fn delete(&self, id: &str) -> Result<(), ProviderError> {
        let _span = info_span!("delete", instance = id).entered();
        // Nothing was ever made by such a name.
        let Some(files) = self.records.files(id) else { return Ok(()) };
        let removal = Removal { patience: LONG, ..Removal::default() };
        self.sites.delete(&self.records, &files, id, removal).map(drop)
    }

    /// Removes one of many instances: one that another call holds up keeps no other from it.
    fn delete_of_all(&self, id: &str) -> Result<(), ProviderError> {
        let Some(files) = self.records.files(id) else { return Ok(()) };
        self.sites.delete(&self.records, &files, id, Removal::default()).map(drop)
    }

    fn find(&self, id: &str) -> Result<(Files, InstanceRecord), ProviderError> {
        let unknown = || ProviderError::Unknown { name: id.to_owned() };
        let files = self.records.files(id).ok_or_else(unknown)?;
        let record = files.record()?.ok_or_else(unknown)?;
        Ok((files, record))
    }

    fn instance(&self, files: &Files, record: InstanceRecord) -> Result<Instance, ProviderError> {
        instance(&self.sites.site(self.records.controller(), &record.name)?, files, record)
    }
}

/// Returns an instance as GARM is told of it.
pub fn instance(
    site: &Site,
    files: &Files,
    record: InstanceRecord,
) -> Result<Instance, ProviderError> {
    let record = match record.maker {
        // It may have been done between our reading the record and its end.
        Some(_) if record.info.is_none() && !site.is_being_made(&record) => {
            files.record()?.unwrap_or(record)
        }
        _ => record,
    };
    let (status, fault) = match status(site, files, &record) {
        Err(ProviderError::Container(error)) if error.is_unreadable_record() => {
            (Status::Error, Some(chain(&error)))
        }
        status => status?,
    };
    let info = record.info;
    let (os_name, os_version, addresses) =
        info.map(|info| (info.os_name, info.os_version, info.addresses)).unwrap_or_default();
    Ok(Instance {
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

/// Returns how an instance is, and what went wrong with it.
fn status(
    site: &Site,
    files: &Files,
    record: &InstanceRecord,
) -> Result<(Status, Option<String>), ProviderError> {
    if let Some(Outcome::Failed { fault, .. }) = files.outcome()? {
        return Ok((Status::Error, Some(fault)));
    }
    if record.info.is_none() {
        return Ok(match site.is_being_made(record) {
            // Whoever lists it must not take it for one that can be started.
            true => (Status::Running, None),
            false => (Status::Error, Some("its creation was interrupted".to_owned())),
        });
    }
    // First: a supervisor ends after its container has.
    let is_attended = site.is_attended(files, record)?;
    Ok(match site.is_running(record) && !files.is_paused() {
        true if is_attended => (Status::Running, None),
        // Nobody sees its runner end.
        true => (Status::Error, Some("its supervisor was killed".to_owned())),
        false => (Status::Stopped, None),
    })
}
