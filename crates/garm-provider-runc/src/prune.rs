//! `prune`: removes leftovers of all controllers, for the admin.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use oci_hooks_engine::container::{ContainerError, Engine};
use oci_hooks_engine::network::{Network, remove_test_network};
use oci_hooks_files::error::{chain, has_timed_out};
use oci_hooks_files::record::NewerRecords;

use super::access::{EngineAccess, InstanceAccess, InstanceProcesses, RemovalOptions};
use super::error::ProviderError;
use super::found::{FoundInstance, controllers, find_all};
use super::logs;
use super::record::{ControllerRecords, InstanceFiles, InstanceRecord, NETWORK, RunnerOutcome};
use super::runner::{PrunedRunners, RunnerCache};
use super::settings::ProviderSettings;

/// Maximum time between finding a cached runner and recording the instance that uses it.
const RUNNER_GRACE_PERIOD: Duration = Duration::from_secs(60);

/// Result of [`prune`].
#[derive(Debug, Default)]
pub struct PruneReport {
    pub instances: Vec<String>,
    /// Number of removed leftovers of containers: from an earlier boot and, if requested, of other versions.
    pub orphans: usize,
    pub logs: usize,
    /// Removed runners, which no instance used.
    pub runners: PrunedRunners,
    /// Errors of unreadable records, and of instances locked by another call. Corrupt records are removed unless in
    /// use, records of other versions are kept.
    pub unreadable: Vec<String>,
}

/// Options of [`prune`].
#[derive(Clone, Copy, Debug)]
pub struct PruneOptions {
    /// Minimum time since an instance ended, or a cached runner was last used.
    pub ended_for: Duration,
    /// Treatment of records of a newer version of this program.
    pub newer: NewerRecords,
}

/// Removes instances whose creation was interrupted or that ended long ago, orphans of an earlier boot, old logs, and
/// runners unused for as long.
///
/// GARM deletes its instances itself: the ones found here were abandoned by GARM, or their deletion was killed.
pub fn prune(
    access: EngineAccess<'_>,
    settings: &ProviderSettings,
    options: PruneOptions,
) -> Result<PruneReport, ProviderError> {
    let EngineAccess { engine, network } = access;
    // List networks before records: a record is written before its network is created.
    let networks = Network::ids(network)?;
    let swept = sweep(&engine.store.options().run, &access, options)?;
    remove_test_network(network)?;
    let mut orphans = 0;
    let mut unreadable = Vec::new();
    if options.newer == NewerRecords::Remove {
        let (removed, running) = engine.remove_of_other_versions()?;
        orphans += removed;
        unreadable.extend(running);
    }
    orphans += engine.remove_orphans()?;
    unreadable.extend(engine.unreadable_records()?.iter().map(|error| chain(error)));
    let broken = Network::unreadable_networks(network)?;
    unreadable.extend(broken.iter().map(|(_, error)| chain(error)));
    if swept.all_readable {
        for id in networks
            .iter()
            .filter(|id| id.starts_with(NETWORK) && !swept.recorded_networks.contains(*id))
        {
            Network::remove_id(network, id)?;
        }
    }
    let mut pruned = prune_shared(engine, settings, swept, options)?;
    pruned.orphans = orphans;
    pruned.unreadable.extend(unreadable);
    Ok(pruned)
}

/// Removes old logs and unused cached runners, and returns the report of this and of the sweep before it.
pub fn prune_shared(
    engine: &Engine,
    settings: &ProviderSettings,
    swept: SweepResult,
    options: PruneOptions,
) -> Result<PruneReport, ProviderError> {
    let SweepResult { instances, unreadable, runners_in_use, all_readable, .. } = swept;
    let mut pruned = PruneReport { instances, unreadable, ..PruneReport::default() };
    pruned.logs = logs::prune(&settings.log.directory, settings.log.keep_age.0)?;
    // With an unreadable record, any runner may be in use.
    if all_readable {
        let older = options.ended_for.max(RUNNER_GRACE_PERIOD);
        pruned.runners = RunnerCache::of(engine).prune(&runners_in_use, older)?;
    }
    Ok(pruned)
}

/// Removes the abandoned instances recorded below a run directory.
pub fn sweep(
    run: &Path,
    access: &dyn InstanceAccess,
    options: PruneOptions,
) -> Result<SweepResult, ProviderError> {
    let mut sweep = InstanceSweep {
        access,
        options,
        swept: SweepResult { all_readable: true, ..SweepResult::default() },
    };
    for records in controllers(run, access)? {
        let mut names = records.names()?;
        for FoundInstance { name, files, record, error } in find_all(&records, access)? {
            if record.is_some() || error.is_some() {
                names.remove(&name);
            }
            match (record, error) {
                (Some(record), None) => sweep.sweep_known(&records, &files, record)?,
                (record, Some(error)) => {
                    sweep.sweep_unreadable(&records, &files, name, record.as_ref(), &error)?;
                }
                (None, None) => {}
            }
        }
        for name in &names {
            sweep.sweep_unrecorded(&records, name)?;
        }
    }
    Ok(sweep.swept)
}

/// Result of [`sweep`].
#[derive(Debug, Default)]
pub struct SweepResult {
    instances: Vec<String>,
    unreadable: Vec<String>,
    runners_in_use: BTreeSet<String>,
    /// Network ids in all records.
    recorded_networks: BTreeSet<String>,
    /// If set, each instance that was kept has a readable record.
    all_readable: bool,
}

struct InstanceSweep<'a> {
    access: &'a dyn InstanceAccess,
    options: PruneOptions,
    swept: SweepResult,
}

impl InstanceSweep<'_> {
    /// Removes an instance whose record is unreadable, unless it is running. `container` is the record rebuilt from its
    /// container.
    fn sweep_unreadable(
        &mut self,
        records: &ControllerRecords,
        files: &InstanceFiles,
        name: String,
        container: Option<&InstanceRecord>,
        error: &ContainerError,
    ) -> Result<(), ProviderError> {
        self.swept.unreadable.push(chain(error));
        let processes = self.access.processes(records.controller(), &name)?;
        let runs = match container {
            Some(container) => {
                processes.is_running(container) || processes.is_attended(files, container)?
            }
            None => processes.has_supervisor(records.controller(), &name)?,
        };
        let is_asked = self.options.newer == NewerRecords::Remove;
        if runs && is_asked {
            self.swept.unreadable.push(format!(
                "instance {name} was not removed, because it is running: to remove it with its job, run \
                 `garm-provider-runc rm --force {name}`"
            ));
        }
        if runs || error.is_of_other_version() && !is_asked {
            self.swept
                .recorded_networks
                .extend(container.map(|container| container.network.clone()));
            self.swept.all_readable = false;
            return Ok(());
        }
        let removal = RemovalOptions {
            // A new instance may have been created under this name.
            is_still_wanted: &|| Ok(files.record().is_err()),
            newer: self.options.newer,
            ..RemovalOptions::default()
        };
        // An instance that is kept uses an unknown network and runner.
        self.swept.all_readable &= self.delete(records, files, &name, removal)?;
        Ok(())
    }

    /// Removes the files of an instance without a record and without a container, such as the lock of a killed call.
    fn sweep_unrecorded(
        &self,
        records: &ControllerRecords,
        name: &str,
    ) -> Result<(), ProviderError> {
        let Some(files) = records.files(name) else { return Ok(()) };
        let removal = RemovalOptions {
            // An instance may be being created under this name.
            is_still_wanted: &|| Ok(files.record()?.is_none()),
            ..RemovalOptions::default()
        };
        match self.access.delete(records, &files, name, removal) {
            // The call that holds the lock removes it.
            Err(error) if has_timed_out(&error) => Ok(()),
            removed => removed.map(drop),
        }
    }

    /// Removes an instance, and returns whether it is gone. An instance is kept if another call has it locked, or if its
    /// container is of a newer version.
    fn delete(
        &mut self,
        records: &ControllerRecords,
        files: &InstanceFiles,
        name: &str,
        removal: RemovalOptions<'_>,
    ) -> Result<bool, ProviderError> {
        let is_gone = self.access.delete(records, files, name, removal);
        match &is_gone {
            Ok(true) => self.swept.instances.push(name.to_owned()),
            Err(error) if has_timed_out(error) || is_newer(error) => {
                self.swept.unreadable.push(chain(error));
                return Ok(false);
            }
            _ => {}
        }
        is_gone
    }

    /// Removes an instance if it is abandoned.
    fn sweep_known(
        &mut self,
        records: &ControllerRecords,
        files: &InstanceFiles,
        record: InstanceRecord,
    ) -> Result<(), ProviderError> {
        self.swept.recorded_networks.insert(record.network.clone());
        let processes = self.access.processes(records.controller(), &record.name)?;
        let ended_for = self.options.ended_for;
        let is_over = |record: &InstanceRecord| is_over(&processes, files, record, ended_for);
        let removal = RemovalOptions {
            // The creation may have finished meanwhile, or a new instance may have been created under this name.
            is_still_wanted: &|| files.record()?.as_ref().map_or(Ok(true), is_over),
            ..RemovalOptions::default()
        };
        if is_over(&record)? && self.delete(records, files, &record.name, removal)? {
            return Ok(());
        }
        // The instance is kept. A record rebuilt from its container does not name the layer of the runner.
        match files.record() {
            Ok(Some(record)) => self.swept.runners_in_use.extend(record.layer),
            _ => self.swept.all_readable = false,
        }
        Ok(())
    }
}

fn is_newer(error: &ProviderError) -> bool {
    matches!(error, ProviderError::Container(error) if error.is_newer_record())
}

/// Returns whether an instance is abandoned: its creation was interrupted, or it ended at least `ended_for` ago.
fn is_over(
    processes: &InstanceProcesses,
    files: &InstanceFiles,
    record: &InstanceRecord,
    ended_for: Duration,
) -> Result<bool, ProviderError> {
    if record.info.is_none() {
        return Ok(!processes.is_being_created(record));
    }
    let is_attended = processes.is_attended(files, record)?;
    if is_attended && (processes.is_running(record) || processes.is_being_created(record)) {
        return Ok(false);
    }
    // Without a supervisor, the creation has not finished.
    if !is_attended && matches!(files.supervisor(), Ok(None)) {
        return Ok(true);
    }
    let ended = match files.outcome() {
        Ok(Some(RunnerOutcome::Ended { at, .. } | RunnerOutcome::Failed { at, .. })) => at,
        Err(error) if !error.is_unreadable_record() => return Err(error.into()),
        // The supervisor was killed, or its record is unreadable.
        Ok(None) | Err(_) => record.created,
    };
    let since = Timestamp::now().duration_since(ended);
    Ok(since.unsigned_abs() >= ended_for && !since.is_negative())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use oci_hooks_host::identity::PidNamespace;

    use super::super::found::InstanceFilter;
    use super::*;

    /// An instance that has ended, is known by its container only, and cannot be removed now.
    struct LockedInstance;

    impl InstanceAccess for LockedInstance {
        fn processes(&self, _: &str, _: &str) -> Result<InstanceProcesses, ProviderError> {
            Ok(InstanceProcesses::new(PathBuf::new(), PidNamespace::Ended))
        }

        fn containers(
            &self,
            is_wanted: InstanceFilter<'_>,
        ) -> Result<Vec<InstanceRecord>, ProviderError> {
            let (controller, name) = ("c".to_owned(), "one".to_owned());
            let is_wanted = is_wanted(&controller, &name);
            let record = InstanceRecord { controller, name, ..InstanceRecord::default() };
            Ok(is_wanted.then_some(record).into_iter().collect())
        }

        fn unrecorded_instances(&self, _: &str) -> Result<Vec<String>, ProviderError> {
            Ok(Vec::new())
        }

        fn max_parallel_removals(&self) -> usize {
            1
        }

        fn delete(
            &self,
            _: &ControllerRecords,
            _: &InstanceFiles,
            _: &str,
            _: RemovalOptions<'_>,
        ) -> Result<bool, ProviderError> {
            Ok(false)
        }
    }

    #[test]
    fn kept_instance_without_a_readable_record_may_use_any_runner() {
        let run = tempfile::tempdir().unwrap();
        let is_each_readable = || {
            let options = PruneOptions { ended_for: Duration::ZERO, newer: NewerRecords::Keep };
            sweep(run.path(), &LockedInstance, options).unwrap().all_readable
        };
        assert!(!is_each_readable(), "it has no record");
        let files = ControllerRecords::of(run.path(), "c").files("one").unwrap();
        files.write_record(&InstanceRecord::default()).unwrap();
        fs::write(run.path().join("garm/c/instances/one/instance.json"), "").unwrap();
        assert!(!is_each_readable(), "its record is corrupt");
    }
}
