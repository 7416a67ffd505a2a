//! Removing what is left over, of all controllers: what the admin does, not GARM.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;

use super::error::ProviderError;
use super::record::{
    Files, InstanceRecord, InstanceRecords, NETWORK, Outcome, Records, controllers,
};
use super::runner::{PrunedRunners, Runners};
use super::settings::Settings;
use super::{logs, provider, remove};
use crate::container::{ContainerError, Engine};
use crate::network::{Network, NetworkOptions, remove_trial};
use crate::sys::error::chain;
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
    /// Which records cannot be read, and why. What is damaged is removed unless it is in use, what another
    /// version may have written is not.
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
    let ended_for = options.ended_for;
    // Before the records, which are there before their networks are.
    let networks = Network::ids(network)?;
    let mut sweep = Sweep::new(engine, network, options);
    for records in controllers(&engine.store.options().run)? {
        let InstanceRecords { known, unreadable } = records.read_all()?;
        for (name, error) in unreadable {
            sweep.unreadable(&records, name, &error)?;
        }
        for record in known {
            sweep.known(&records, record)?;
        }
    }
    remove_trial(network)?;
    let Sweep { mut pruned, runners_in_use, named, knows_all, .. } = sweep;
    if options.newer == NewerRecords::Remove {
        let (removed, running) = engine.remove_of_other_versions()?;
        pruned.orphans += removed;
        pruned.unreadable.extend(running);
    }
    pruned.orphans += engine.remove_orphans()?;
    pruned.logs = logs::prune(&settings.log.directory, settings.log.keep_age.0)?;
    pruned.unreadable.extend(engine.unreadable()?.iter().map(|error| chain(error)));
    let broken = Network::unreadable(network)?;
    pruned.unreadable.extend(broken.iter().map(|(_, error)| chain(error)));
    // What nobody can tell the owner of may be in use.
    if knows_all {
        let runners = Runners::of(engine);
        pruned.runners = runners.prune(&runners_in_use, ended_for.max(BETWEEN))?;
        for id in networks.iter().filter(|id| id.starts_with(NETWORK) && !named.contains(*id)) {
            Network::remove_id(network, id)?;
        }
    }
    Ok(pruned)
}

/// A look at all instances, and what came of it so far.
struct Sweep<'a> {
    engine: &'a Engine,
    network: &'a NetworkOptions,
    options: PruneOptions,
    pruned: Pruned,
    runners_in_use: BTreeSet<String>,
    named: BTreeSet<String>,
    /// Whether all records that stay can be read.
    knows_all: bool,
}

impl<'a> Sweep<'a> {
    fn new(engine: &'a Engine, network: &'a NetworkOptions, options: PruneOptions) -> Self {
        Sweep {
            engine,
            network,
            options,
            pruned: Pruned::default(),
            runners_in_use: BTreeSet::new(),
            named: BTreeSet::new(),
            knows_all: true,
        }
    }

    /// Removes an instance whose record is damaged, unless it runs.
    fn unreadable(
        &mut self,
        records: &Records,
        name: String,
        error: &ContainerError,
    ) -> Result<(), ProviderError> {
        self.pruned.unreadable.push(chain(error));
        let record = records.record_of_container(self.engine, &name)?;
        let runs = record.as_ref().is_some_and(|record| provider::is_running(self.engine, record));
        let is_removed = self.options.newer == NewerRecords::Remove || !error.is_of_other_version();
        let is_attended = |files: &Files| {
            files.supervisor().ok().flatten().is_some_and(|supervisor| supervisor.is_running())
        };
        let files = records.files(&name).filter(|_| !runs && is_removed);
        let files = files.filter(|files| !error.is_of_other_version() || !is_attended(files));
        let Some(files) = files else {
            self.knows_all = false;
            return Ok(());
        };
        let lock = files.lock()?;
        // It may be another one by now.
        if files.record().is_err() {
            if let Some(record) = record {
                remove::remove(self.engine, self.network, &files, &record)?;
            }
            files.remove()?;
            files.forget(lock)?;
            self.pruned.instances.push(name);
        }
        Ok(())
    }

    /// Removes an instance if it is over.
    fn known(&mut self, records: &Records, record: InstanceRecord) -> Result<(), ProviderError> {
        self.named.insert(record.network.clone());
        let Some(files) = records.files(&record.name) else { return Ok(()) };
        let is_over =
            |record: &InstanceRecord| is_over(self.engine, &files, record, self.options.ended_for);
        if !is_over(&record)? {
            self.runners_in_use.extend(record.layer);
            return Ok(());
        }
        let lock = files.lock()?;
        // It may have been made to the end since it was read, or be another one by now.
        match files.record()? {
            Some(record) if is_over(&record)? => {
                remove::remove(self.engine, self.network, &files, &record)?;
                files.forget(lock)?;
                self.pruned.instances.push(record.name);
            }
            Some(record) => self.runners_in_use.extend(record.layer),
            None => files.forget(lock)?,
        }
        Ok(())
    }
}

/// Returns whether nobody will miss an instance.
fn is_over(
    engine: &Engine,
    files: &Files,
    record: &InstanceRecord,
    ended_for: Duration,
) -> Result<bool, ProviderError> {
    let supervisor = match files.supervisor() {
        Err(error) if error.is_unreadable_record() => {
            return Ok(!provider::is_running(engine, record));
        }
        supervisor => supervisor?,
    };
    // Without its supervisor it was not made to the end.
    if record.info.is_none() || supervisor.is_none() {
        return Ok(!record.maker.is_some_and(|maker| maker.is_running()));
    }
    if provider::is_attended(files, record)? && provider::is_running(engine, record) {
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
