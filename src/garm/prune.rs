//! Removing what is left over, of all controllers: what the admin does, not GARM.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;

use super::error::ProviderError;
use super::logs;
use super::record::{
    Files, InstanceRecord, InstanceRecords, NETWORK, Outcome, Records, controllers,
};
use super::runner::{PrunedRunners, Runners};
use super::settings::Settings;
use super::site::{Here, Removal, Site, Sites};
use crate::container::{ContainerError, Engine};
use crate::network::{Network, NetworkOptions, remove_trial};
use crate::sys::error::{chain, has_timed_out};
use crate::sys::record::NewerRecords;

/// How long it may take from the moment that a runner is found until it is known who has it.
const BETWEEN: Duration = Duration::from_secs(60);

/// What [`prune`] removed, and what it could not read.
#[derive(Debug, Default)]
pub struct Pruned {
    pub instances: Vec<String>,
    /// Things of containers of an earlier boot.
    pub orphans: usize,
    pub logs: usize,
    /// Runners that no instance has.
    pub runners: PrunedRunners,
    /// Which records cannot be read, and why, and which instances are kept by a call that holds their lock. What is
    /// damaged is removed unless it is in use, what another version may have written is not.
    pub unreadable: Vec<String>,
}

/// What is removed of instances.
#[derive(Clone, Copy, Debug)]
pub struct PruneOptions {
    /// How long ago they ended.
    pub ended_for: Duration,
    /// Whether those go that a newer version of this program recorded.
    pub newer: NewerRecords,
}

/// Removes instances whose creation was interrupted, and those that ended so long ago; what is left
/// of containers of an earlier boot; old logs; and runners that nothing was made with for so long.
///
/// GARM deletes its instances itself: what is found here it has given up or was killed over.
pub fn prune(
    engine: &Engine,
    network: &NetworkOptions,
    settings: &Settings,
    options: PruneOptions,
) -> Result<Pruned, ProviderError> {
    // Before the records, which are there before their networks are.
    let networks = Network::ids(network)?;
    let swept = sweep(&engine.store.options().run, &Here { engine, network }, options)?;
    remove_trial(network)?;
    let mut orphans = 0;
    let mut unreadable = Vec::new();
    if options.newer == NewerRecords::Remove {
        let (removed, running) = engine.remove_of_other_versions()?;
        orphans += removed;
        unreadable.extend(running);
    }
    orphans += engine.remove_orphans()?;
    unreadable.extend(engine.unreadable()?.iter().map(|error| chain(error)));
    let broken = Network::unreadable(network)?;
    unreadable.extend(broken.iter().map(|(_, error)| chain(error)));
    if swept.knows_all {
        for id in networks.iter().filter(|id| id.starts_with(NETWORK) && !swept.named.contains(*id))
        {
            Network::remove_id(network, id)?;
        }
    }
    let mut pruned = prune_shared(engine, settings, swept, options)?;
    pruned.orphans = orphans;
    pruned.unreadable.extend(unreadable);
    Ok(pruned)
}

/// Removes what instances leave that all share: old logs, and runners that nothing was made with for so long.
pub fn prune_shared(
    engine: &Engine,
    settings: &Settings,
    swept: Swept,
    options: PruneOptions,
) -> Result<Pruned, ProviderError> {
    let Swept { instances, unreadable, runners_in_use, knows_all, .. } = swept;
    let mut pruned = Pruned { instances, unreadable, ..Pruned::default() };
    pruned.logs = logs::prune(&settings.log.directory, settings.log.keep_age.0)?;
    // What nobody can tell the owner of may be in use.
    if knows_all {
        let older = options.ended_for.max(BETWEEN);
        pruned.runners = Runners::of(engine).prune(&runners_in_use, older)?;
    }
    Ok(pruned)
}

/// Removes the instances, of those recorded below a run directory, that nobody will miss.
pub fn sweep(run: &Path, sites: &dyn Sites, options: PruneOptions) -> Result<Swept, ProviderError> {
    let mut sweep = Sweep { sites, options, swept: Swept { knows_all: true, ..Swept::default() } };
    for records in controllers(run)? {
        let InstanceRecords { known, unreadable } = records.read_all()?;
        for (name, error) in unreadable {
            sweep.unreadable(&records, name, &error)?;
        }
        for record in known {
            sweep.known(&records, record)?;
        }
    }
    Ok(sweep.swept)
}

/// What a look at all instances found.
#[derive(Debug, Default)]
pub struct Swept {
    /// The names of those that were removed.
    instances: Vec<String>,
    /// Which records cannot be read, and why.
    unreadable: Vec<String>,
    runners_in_use: BTreeSet<String>,
    /// The networks of all that have a record.
    named: BTreeSet<String>,
    /// Whether all records that stay can be read.
    knows_all: bool,
}

struct Sweep<'a> {
    sites: &'a dyn Sites,
    options: PruneOptions,
    swept: Swept,
}

impl Sweep<'_> {
    /// Removes an instance whose record is damaged, unless it runs.
    fn unreadable(
        &mut self,
        records: &Records,
        name: String,
        error: &ContainerError,
    ) -> Result<(), ProviderError> {
        self.swept.unreadable.push(chain(error));
        let site = self.sites.site(records.controller(), &name)?;
        let record = records.record_of_container(site.run(), &name)?;
        let runs = record.as_ref().is_some_and(|record| site.is_running(record));
        let is_removed = self.options.newer == NewerRecords::Remove || !error.is_of_other_version();
        let files = records.files(&name).filter(|_| !runs && is_removed);
        let files =
            files.filter(|files| !error.is_of_other_version() || !site.has_supervisor(files));
        let Some(files) = files else {
            self.swept.knows_all = false;
            return Ok(());
        };
        let removal = Removal {
            // It may be another one by now.
            is_meant: &|| Ok(files.record().is_err()),
            newer: self.options.newer,
            ..Removal::default()
        };
        self.delete(records, &files, &name, removal).map(drop)
    }

    /// Removes an instance that is meant, and returns whether it is gone: not if another call holds it up.
    fn delete(
        &mut self,
        records: &Records,
        files: &Files,
        name: &str,
        removal: Removal<'_>,
    ) -> Result<bool, ProviderError> {
        let is_gone = self.sites.delete(records, files, name, removal);
        match &is_gone {
            Ok(true) => self.swept.instances.push(name.to_owned()),
            Err(error) if has_timed_out(error) => {
                self.swept.unreadable.push(chain(error));
                return Ok(false);
            }
            _ => {}
        }
        is_gone
    }

    /// Removes an instance if it is over.
    fn known(&mut self, records: &Records, record: InstanceRecord) -> Result<(), ProviderError> {
        self.swept.named.insert(record.network.clone());
        let Some(files) = records.files(&record.name) else { return Ok(()) };
        let site = self.sites.site(records.controller(), &record.name)?;
        let ended_for = self.options.ended_for;
        let is_over = |record: &InstanceRecord| is_over(&site, &files, record, ended_for);
        if !is_over(&record)? {
            self.swept.runners_in_use.extend(record.layer);
            return Ok(());
        }
        let removal = Removal {
            // It may have been made to the end since it was read, or be another one by now.
            is_meant: &|| files.record()?.as_ref().map_or(Ok(true), is_over),
            ..Removal::default()
        };
        if !self.delete(records, &files, &record.name, removal)? {
            self.swept.runners_in_use.extend(files.record()?.and_then(|record| record.layer));
        }
        Ok(())
    }
}

/// Returns whether nobody will miss an instance.
fn is_over(
    site: &Site,
    files: &Files,
    record: &InstanceRecord,
    ended_for: Duration,
) -> Result<bool, ProviderError> {
    let supervisor = match files.supervisor() {
        Err(error) if error.is_unreadable_record() => {
            return Ok(!site.is_running(record));
        }
        supervisor => supervisor?,
    };
    // Without its supervisor it was not made to the end.
    if record.info.is_none() || supervisor.is_none() {
        return Ok(!site.is_being_made(record));
    }
    if site.is_attended(files, record)? && site.is_running(record) {
        return Ok(false);
    }
    let ended = match files.outcome() {
        Ok(Some(Outcome::Ended { at, .. } | Outcome::Failed { at, .. })) => at,
        Err(error) if !error.is_unreadable_record() => return Err(error.into()),
        // Its supervisor was killed, or nobody can read what it wrote.
        Ok(None) | Err(_) => record.created,
    };
    let since = Timestamp::now().duration_since(ended);
    Ok(since.unsigned_abs() >= ended_for && !since.is_negative())
}
