//! Where the container of an instance is, and where its processes are seen.
//!
//! Root has all containers in one place. Of an ordinary user each instance has a holder of its own: a process
//! namespace, and directories for it alone.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::error::ProviderError;
use super::record::{Files, InstanceRecord, Records};
use super::remove;
use crate::container::{Directory, Engine};
use crate::network::NetworkOptions;
use crate::sys::identity::ProcessView;
use crate::sys::lock::PASSING_BY;
use crate::sys::record::NewerRecords;

/// How many instances are removed at once when all are: each takes descriptors, of which there may be
/// few.
const AT_ONCE: usize = 4;

/// Where one instance is.
#[derive(Clone, Debug)]
pub struct Site {
    run: PathBuf,
    processes: ProcessView,
}

/// Where instances are.
pub trait Sites: Sync {
    /// Returns where an instance of a controller is.
    fn site(&self, controller: &str, name: &str) -> Result<Site, ProviderError>;

    /// Returns the names of instances of a controller of which there may be something though no record says
    /// so.
    fn unrecorded(&self, controller: &str) -> Result<Vec<String>, ProviderError>;

    /// Returns how many may be removed at once, each on a thread.
    fn at_once(&self) -> usize;

    /// Removes an instance, whatever is left of it; none is fine. Returns whether it was still meant.
    fn delete(
        &self,
        records: &Records,
        files: &Files,
        name: &str,
        removal: Removal<'_>,
    ) -> Result<bool, ProviderError>;
}

/// Which instance a removal means, once nobody else works on it.
#[derive(Clone, Copy)]
pub struct Removal<'a> {
    /// Asked last: whether the one that is there by now is meant.
    pub is_meant: &'a dyn Fn() -> Result<bool, ProviderError>,
    /// What becomes of one that a newer version of this program recorded.
    pub newer: NewerRecords,
    /// How long is waited for another call that works on it, or is stopped.
    pub patience: Duration,
}

impl Default for Removal<'_> {
    fn default() -> Self {
        Removal { is_meant: &|| Ok(true), newer: NewerRecords::Keep, patience: PASSING_BY }
    }
}

/// All instances on one engine, in the PID namespace of this process.
#[derive(Clone, Copy, Debug)]
pub struct Here<'a> {
    pub engine: &'a Engine,
    pub network: &'a NetworkOptions,
}

impl Site {
    /// Returns that of an instance whose container is recorded below a run directory.
    pub fn new(run: PathBuf, processes: ProcessView) -> Self {
        Site { run, processes }
    }

    /// Returns where those of an engine are that this process sees.
    pub(super) fn of(engine: &Engine) -> Self {
        Site::new(engine.run.clone(), ProcessView::Own)
    }

    /// Returns the run directory that has the record of the container.
    pub(super) fn run(&self) -> &Path {
        &self.run
    }

    /// Returns whether there is a process that makes an instance.
    pub(super) fn is_being_made(&self, record: &InstanceRecord) -> bool {
        record.maker.is_some_and(|maker| self.processes.is_running(maker))
    }

    /// Returns whether there is a process that sees the runner of an instance end, or is about to start
    /// one.
    pub(super) fn is_attended(
        &self,
        files: &Files,
        record: &InstanceRecord,
    ) -> Result<bool, ProviderError> {
        Ok(match files.supervisor()? {
            Some(supervisor) => self.processes.is_running(supervisor),
            None => self.is_being_made(record),
        })
    }

    /// Returns whether the supervisor of an instance runs, about which nothing else can be read.
    pub(super) fn has_supervisor(&self, files: &Files) -> bool {
        let supervisor = files.supervisor().ok().flatten();
        supervisor.is_some_and(|supervisor| self.processes.is_running(supervisor))
    }

    /// Returns whether the container of an instance runs.
    pub(super) fn is_running(&self, record: &InstanceRecord) -> bool {
        let container = Directory::of(&self.run, &record.container).read();
        let process = container.ok().and_then(|container| container.process);
        process.is_some_and(|process| self.processes.is_running(process))
    }
}

impl Sites for Here<'_> {
    fn site(&self, _: &str, _: &str) -> Result<Site, ProviderError> {
        Ok(Site::of(self.engine))
    }

    fn unrecorded(&self, _: &str) -> Result<Vec<String>, ProviderError> {
        Ok(Vec::new())
    }

    fn at_once(&self) -> usize {
        AT_ONCE
    }

    fn delete(
        &self,
        records: &Records,
        files: &Files,
        name: &str,
        removal: Removal<'_>,
    ) -> Result<bool, ProviderError> {
        let Here { engine, network } = *self;
        let lock = files.lock(removal.patience)?;
        if !(removal.is_meant)()? {
            return Ok(false);
        }
        let record = remove::record(&Site::of(engine), records, files, name, removal.newer)?;
        if let Some(record) = record {
            remove::remove(engine, network, files, &record)?;
        }
        files.remove()?;
        files.forget(lock)?;
        Ok(true)
    }
}
