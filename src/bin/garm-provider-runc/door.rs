//! The door of an ordinary user, who has each instance in a holder of its own: what makes or removes one goes on
//! inside of that, and a process that was there before waits. How instances are is seen from outside.

use std::fs::File;
use std::io::{self, Seek as _};
use std::path::Path;
use std::time::Duration;

use oci_hooks::garm::record::{Files, Records};
use oci_hooks::garm::{Here, Lookup, ProviderError, Removal, Site, Sites};
use oci_hooks::image::Digest;
use oci_hooks::program::exit::Exit;
use oci_hooks::program::holders::{HolderError, Holders, enter_store};
use oci_hooks::sys::error::{chain, has_timed_out};
use oci_hooks::sys::fs::PathError;
use oci_hooks::sys::identity::ProcessView;
use oci_hooks::sys::lock::{FileLock, LONG};
use oci_hooks::sys::privilege::{Inside, Privilege, Side, exit_at_once};
use oci_hooks::sys::spawn::memory_file;

use crate::settings::Settings;

/// What directories of holders of instances are called.
const KIND: &str = "instances";

/// Why nothing could be done in an instance's holder.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DoorError {
    #[error(transparent)]
    Holder(#[from] HolderError),
    #[error(transparent)]
    Path(#[from] PathError),
    #[error("{0}")]
    Inside(String),
    #[error("no answer came from inside of the holder of instance {name}")]
    NoAnswer { name: String, source: io::Error },
}

/// What became of a process that came to the door.
#[must_use]
pub(crate) enum Passage {
    /// It goes on, with settings for where it is.
    Inside(Box<Settings>),
    /// It has gone on inside, and ended so.
    Ended(Exit),
}

/// The instances of an ordinary user.
pub(crate) struct Rooms {
    settings: Settings,
    holders: Holders,
}

/// An instance, as its holder is recorded.
struct Key {
    owner: String,
    /// The controller and the name, which has no slash.
    label: String,
}

impl Key {
    fn new(controller: &str, name: &str) -> Self {
        let label = format!("{controller}/{name}");
        let digest = Digest::of(label.as_bytes());
        Key { owner: digest.hex()[..32].to_owned(), label }
    }
}

impl Rooms {
    /// Returns those whose images are where the settings say.
    pub(crate) fn new(settings: Settings) -> Result<Self, HolderError> {
        let holders = Holders::new(&settings.store, KIND)?;
        Ok(Rooms { settings, holders })
    }

    /// Returns the run directory that has the records of all instances.
    pub(crate) fn run(&self) -> &Path {
        &self.settings.store.run
    }

    /// Returns what finds instances of a controller.
    pub(crate) fn lookup(&self, controller: &str) -> Lookup<'_> {
        Lookup { records: Records::of(&self.settings.store.run, controller), sites: self }
    }

    /// Returns whether the holder of an instance runs.
    pub(crate) fn has_holder(&self, controller: &str, name: &str) -> bool {
        let found = self.holders.find(&Key::new(controller, name).owner);
        found.is_some_and(|found| found.holder.is_some())
    }

    /// Goes on in the holder of an instance, which is made if there is none. Outside, the holder ends with
    /// what was done there if that leaves no instance.
    pub(crate) fn enter(&self, controller: &str, name: &str) -> Result<Passage, DoorError> {
        let key = Key::new(controller, name);
        let lock = self.holders.lock(&key.owner, LONG)?;
        let attendant = match self.go_in(&key)? {
            Side::Inside(inside) => {
                let settings = self.settings_inside(&key, inside);
                if !self.settings.store.run.join(SWEPT).exists() {
                    self.holders.remove_forgotten()?;
                }
                return Ok(Passage::Inside(Box::new(settings)));
            }
            Side::Outside(attendant) => attendant,
        };
        // A child is waited for once.
        let ended = attendant.wait(None, |_| {}).map_or(Exit::Findings, Exit::from);
        self.end_if_gone(&key, lock, controller, name)?;
        Ok(Passage::Ended(ended))
    }

    /// Ends the holders of instances that have no record, as that of a call that was killed early.
    pub(crate) fn end_unrecorded(&self) -> Result<(), DoorError> {
        for record in self.holders.records()? {
            let Some((controller, name)) = record.name.rsplit_once('/') else { continue };
            let key = Key::new(controller, name);
            match self.holders.lock(&key.owner, Duration::ZERO) {
                // A call is at work there, or stopped.
                Err(error) if has_timed_out(&error) => {}
                lock => self.end_if_gone(&key, lock?, controller, name)?,
            }
        }
        Ok(())
    }

    /// Removes what instances of an earlier boot left on the disk. To be called where files have their owners.
    pub(crate) fn remove_forgotten(&self) -> Result<(), DoorError> {
        Ok(self.holders.remove_forgotten()?)
    }

    /// Goes on in the holder of an instance, whose lock is held; makes one if none runs.
    fn go_in(&self, key: &Key) -> Result<Side, HolderError> {
        let found = self.holders.find(&key.owner);
        self.holders.enter_or_make(found.as_ref(), &key.owner, &key.label, None)
    }

    fn settings_inside(&self, key: &Key, inside: Inside) -> Settings {
        let mut settings = self.settings.clone();
        settings.store.root = self.holders.store_root(inside.privilege);
        settings.place = self.holders.place(&key.owner, inside);
        settings
    }

    /// Removes an instance in its holder, whose lock is held.
    fn delete_inside(
        &self,
        key: &Key,
        (records, files, name): (&Records, &Files, &str),
        removal: Removal<'_>,
    ) -> Result<(), DoorError> {
        let no_answer = |source| DoorError::NoAnswer { name: name.to_owned(), source };
        let mut answer = File::from(memory_file("answer", b"").map_err(no_answer)?);
        match self.go_in(key)? {
            Side::Inside(inside) => {
                let settings = self.settings_inside(key, inside);
                let deleted = settings.host().existing().map_err(|error| chain(&error));
                let deleted = deleted.and_then(|engine| {
                    let here = Here { engine: &engine, network: &settings.network() };
                    // Whether it is meant was asked where all of it is seen.
                    let is_meant = Removal::default().is_meant;
                    let removal = Removal { is_meant, ..removal };
                    let deleted = here.delete(records, files, name, removal);
                    deleted.map(drop).map_err(|error| chain(&error))
                });
                let written = serde_json::to_writer(&answer, &deleted);
                exit_at_once(i32::from(written.is_err()));
            }
            Side::Outside(attendant) => {
                attendant.wait(None, |_| {}).map_err(no_answer)?;
            }
        }
        answer.rewind().map_err(no_answer)?;
        let said: Result<(), String> =
            serde_json::from_reader(&answer).map_err(|error| no_answer(error.into()))?;
        said.map_err(DoorError::Inside)
    }

    /// Ends the holder of an instance that is no more, and removes what is left of its directories. Calls hold the lock
    /// for as long as they are at work in the holder, so that it ends under none of them.
    fn end_if_gone(
        &self,
        key: &Key,
        lock: FileLock,
        controller: &str,
        name: &str,
    ) -> Result<(), DoorError> {
        let records = Records::of(&self.settings.store.run, controller);
        // One that cannot be read is of something.
        let is_gone = records.files(name).is_none_or(|files| matches!(files.record(), Ok(None)));
        if is_gone {
            if let Some(found) = self.holders.find(&key.owner) {
                found.end()?;
            }
            self.holders.forget(&key.owner, lock)?;
        }
        Ok(())
    }
}

impl Sites for Rooms {
    fn site(&self, controller: &str, name: &str) -> Result<Site, ProviderError> {
        let key = Key::new(controller, name);
        let holder = self.holders.find(&key.owner).and_then(|found| found.holder);
        let view = holder.map_or(ProcessView::Ended, |it| ProcessView::Below(it.process));
        Ok(Site::new(self.holders.run_of(&key.owner), view))
    }

    fn unrecorded(&self, controller: &str) -> Result<Vec<String>, ProviderError> {
        let known = self.holders.records().map_err(|error| elsewhere(controller, error))?;
        let labels = known.iter().filter_map(|record| record.name.rsplit_once('/'));
        let own = labels.filter(|(found, _)| *found == controller);
        Ok(own.map(|(_, name)| name.to_owned()).collect())
    }

    /// Namespaces are entered by processes of one thread.
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
        let controller = records.controller();
        let key = Key::new(controller, name);
        let found = self.holders.find(&key.owner);
        if found.is_none() && matches!(files.record(), Ok(None)) {
            let lock = files.lock(removal.patience)?;
            files.forget(lock)?;
            return Ok(true);
        }
        let lock = self.holders.lock(&key.owner, removal.patience);
        let lock = lock.map_err(|error| elsewhere(name, error))?;
        if !(removal.is_meant)()? {
            return Ok(false);
        }
        self.delete_inside(&key, (records, files, name), removal)
            .and_then(|()| self.end_if_gone(&key, lock, controller, name))
            .map_err(|error| elsewhere(name, error))?;
        Ok(true)
    }
}

/// Says that there have been instances since this machine started.
const SWEPT: &str = "garm.swept";

fn elsewhere(name: &str, error: impl std::error::Error + Send + Sync + 'static) -> ProviderError {
    ProviderError::Elsewhere { name: name.to_owned(), source: Box::new(error) }
}

/// Goes on where the files of images have their owners, in the host's network.
pub(crate) fn store(mut settings: Settings) -> Result<Passage, DoorError> {
    if Privilege::is_root_of_host() {
        return Ok(Passage::Inside(Box::new(settings)));
    }
    let holders = Holders::new(&settings.store, KIND)?;
    match enter_store(&settings.store).map_err(DoorError::from)? {
        Side::Inside(inside) => {
            settings.store.root = holders.store_root(inside.privilege);
            settings.place.privilege = inside.privilege;
            settings.place.has_cgroup = inside.has_cgroup;
            Ok(Passage::Inside(Box::new(settings)))
        }
        Side::Outside(attendant) => {
            Ok(Passage::Ended(attendant.wait(None, |_| {}).map_or(Exit::Findings, Exit::from)))
        }
    }
}
