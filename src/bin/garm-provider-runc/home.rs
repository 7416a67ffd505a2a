//! Where the instances are that a command for people is about.

use std::path::Path;

use oci_hooks::container::Engine;
use oci_hooks::garm::record::{Files, Records};
use oci_hooks::garm::{Here, ProviderError, Removal, Site, Sites};
use oci_hooks::network::NetworkOptions;
use oci_hooks::sys::privilege::Privilege;

use crate::door::{DoorError, Rooms};
use crate::error::Error;
use crate::settings::Settings;

/// All of root's, or all of an ordinary user's.
pub(crate) enum Home {
    Root { engine: Box<Engine>, network: NetworkOptions },
    User(Box<Rooms>),
}

impl Home {
    pub(crate) fn open(settings: Settings) -> Result<Self, Error> {
        if Privilege::is_root_of_host() {
            let engine = Box::new(settings.host().existing()?);
            return Ok(Home::Root { engine, network: settings.network() });
        }
        Ok(Home::User(Box::new(Rooms::new(settings).map_err(DoorError::from)?)))
    }

    /// Returns the run directory that has the records of all instances.
    pub(crate) fn run(&self) -> &Path {
        match self {
            Home::Root { engine, .. } => &engine.store.options().run,
            Home::User(rooms) => rooms.run(),
        }
    }
}

impl Sites for Home {
    fn site(&self, controller: &str, name: &str) -> Result<Site, ProviderError> {
        match self {
            Home::Root { engine, network } => Here { engine, network }.site(controller, name),
            Home::User(rooms) => rooms.site(controller, name),
        }
    }

    fn unrecorded(&self, controller: &str) -> Result<Vec<String>, ProviderError> {
        match self {
            Home::Root { engine, network } => Here { engine, network }.unrecorded(controller),
            Home::User(rooms) => rooms.unrecorded(controller),
        }
    }

    fn at_once(&self) -> usize {
        match self {
            Home::Root { engine, network } => Here { engine, network }.at_once(),
            Home::User(rooms) => rooms.at_once(),
        }
    }

    fn delete(
        &self,
        records: &Records,
        files: &Files,
        name: &str,
        removal: Removal<'_>,
    ) -> Result<bool, ProviderError> {
        match self {
            Home::Root { engine, network } => {
                Here { engine, network }.delete(records, files, name, removal)
            }
            Home::User(rooms) => rooms.delete(records, files, name, removal),
        }
    }
}
