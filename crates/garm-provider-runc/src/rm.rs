//! `rm`: removes instances that GARM does not remove, such as those of a removed controller or pool, and orphans.

use std::collections::BTreeMap;
use std::path::Path;

use oci_hooks_engine::container::ContainerError;
use oci_hooks_files::error::chain;
use oci_hooks_files::record::NewerRecords;
use serde::Serialize;

use super::access::{InstanceAccess, RemovalOptions};
use super::error::ProviderError;
use super::found::{FoundInstance, controllers, find, find_all};
use super::record::{ControllerRecords, InstanceFiles, RunnerOutcome};

/// State of an instance whose supervisor or creating process is running.
const RUNNING: &str = "it is running";

/// State of an instance whose container is running without a supervisor.
const UNSUPERVISED: &str = "its supervisor was killed, but its container is running";

/// Criteria for instances, which must all match.
#[derive(Clone, Copy, Debug, Default)]
pub struct InstanceSelection<'a> {
    /// Names; empty for all instances.
    pub names: &'a [String],
    /// If set, only instances that have ended, or whose supervisor and creating process have exited.
    pub orphans: bool,
    pub controller: Option<&'a str>,
    pub pool: Option<&'a str>,
}

/// Options of [`rm`].
#[derive(Clone, Copy, Debug, Default)]
pub struct RmOptions {
    /// Also remove running instances, and instances of other versions of this program.
    pub force: bool,
    /// Only report the instances that would be removed.
    pub dry_run: bool,
}

/// An instance that matches an [`InstanceSelection`].
#[derive(Clone, Debug, Serialize)]
pub struct SelectedInstance {
    pub name: String,
    pub controller: String,
    /// Pool id, an arbitrary text; empty if the record is unreadable.
    pub pool: String,
    /// State of the instance, or the reason why it was kept.
    pub reason: String,
}

/// Result of [`rm`].
#[derive(Clone, Debug, Default, Serialize)]
pub struct RmReport {
    /// Instances that were removed, or would be with `dry_run`.
    pub removed: Vec<SelectedInstance>,
    /// Selected instances that were kept.
    pub left: Vec<SelectedInstance>,
    /// Selected names that match no instance.
    pub unknown: Vec<String>,
}

/// Removes selected instances; `run` is the directory with the records of all controllers. If an instance cannot be
/// removed, continues with the others. Instances selected by a name that several controllers use are kept.
pub fn rm(
    run: &Path,
    access: &dyn InstanceAccess,
    selection: &InstanceSelection<'_>,
    options: RmOptions,
) -> Result<RmReport, ProviderError> {
    let mut meant = Vec::new();
    for records in controllers(run, access)? {
        if selection.controller.is_none_or(|controller| controller == records.controller()) {
            meant.extend(select(access, &records, selection)?);
        }
    }
    let key = |it: &RemovalCandidate| (it.name.clone(), it.records.controller().to_owned());
    meant.sort_by_cached_key(key);
    let mut count = BTreeMap::<_, usize>::new();
    for instance in &meant {
        *count.entry(instance.name.clone()).or_default() += 1;
    }
    let unknown = selection.names.iter().filter(|name| !count.contains_key(*name));
    let mut report = RmReport { unknown: unknown.cloned().collect(), ..RmReport::default() };
    for instance in meant {
        let result = if !selection.names.is_empty() && count[&instance.name] > 1 {
            Err("several controllers have an instance of this name: select one with \
                 --controller ID"
                .to_owned())
        } else {
            instance.remove(access, options)
        };
        let list = if result.is_ok() { &mut report.removed } else { &mut report.left };
        let (Ok(reason) | Err(reason)) = result;
        let RemovalCandidate { name, pool, records, .. } = instance;
        let controller = records.controller().to_owned();
        list.push(SelectedInstance { name, controller, pool, reason });
    }
    Ok(report)
}

/// A selected instance, with its files.
struct RemovalCandidate {
    name: String,
    pool: String,
    files: InstanceFiles,
    records: ControllerRecords,
    state: RemovalState,
}

/// State of an instance, as far as it matters for removal.
struct RemovalState {
    /// If set, the supervisor or the creating process is running.
    is_attended: bool,
    /// If set, the container is running.
    runs: bool,
    text: String,
    /// If set, the record is from another version of this program.
    is_foreign: bool,
}

/// Returns the selected instances of a controller.
fn select(
    access: &dyn InstanceAccess,
    records: &ControllerRecords,
    selection: &InstanceSelection<'_>,
) -> Result<Vec<RemovalCandidate>, ProviderError> {
    let mut meant = Vec::new();
    for found in find_all(records, access)? {
        let pool = found.record.as_ref().map_or("", |record| &record.pool).to_owned();
        if !selection.names.is_empty() && !selection.names.contains(&found.name)
            || selection.pool.is_some_and(|wanted| wanted != pool)
        {
            continue;
        }
        let state = state(access, records, &found)?;
        if selection.orphans && state.is_attended {
            continue;
        }
        let FoundInstance { name, files, .. } = found;
        meant.push(RemovalCandidate { name, pool, files, records: records.clone(), state });
    }
    Ok(meant)
}

fn state(
    access: &dyn InstanceAccess,
    records: &ControllerRecords,
    FoundInstance { name, files, record, error }: &FoundInstance,
) -> Result<RemovalState, ProviderError> {
    let processes = access.processes(records.controller(), name)?;
    let is_foreign = error.as_ref().is_some_and(ContainerError::is_of_other_version);
    let Some(record) = record else {
        let text =
            error.as_ref().map_or_else(|| "its record is missing".to_owned(), |it| chain(it));
        let is_attended = processes.has_supervisor(records.controller(), name)?;
        return Ok(RemovalState { is_attended, runs: false, text, is_foreign });
    };
    let has_ended = files.has_ended();
    let is_attended = !has_ended && processes.is_attended(files, record)?;
    let runs = !has_ended && processes.is_running(record);
    let text = match (files.outcome(), is_attended, runs) {
        _ if is_foreign => "another version of garm-provider-runc created it".to_owned(),
        (Ok(Some(RunnerOutcome::Failed { fault, .. })), _, _) => fault,
        (Ok(Some(RunnerOutcome::Ended { .. })), _, _) => "its runner has ended".to_owned(),
        (_, true, _) => RUNNING.to_owned(),
        (_, false, true) => UNSUPERVISED.to_owned(),
        (_, false, false) if record.info.is_none() => "its creation was interrupted".to_owned(),
        (_, false, false) => "its processes were killed".to_owned(),
    };
    Ok(RemovalState { is_attended, runs, text, is_foreign })
}

impl RemovalCandidate {
    /// Removes the instance, and returns its state, or the reason why it was kept.
    fn remove(&self, access: &dyn InstanceAccess, options: RmOptions) -> Result<String, String> {
        let RemovalState { is_attended, runs, text, is_foreign } = &self.state;
        if (*is_attended || *runs || *is_foreign) && !options.force {
            return Err(format!("{text}; use --force to remove it, even with a running job"));
        }
        if options.dry_run {
            return Ok(text.clone());
        }
        let removal = RemovalOptions {
            // A new instance may have been created under this name.
            is_still_wanted: &|| {
                let found = find(&self.records, access, &self.name)?;
                let state = found.map(|found| state(access, &self.records, &found)).transpose()?;
                Ok(options.force || state.is_none_or(|state| !state.is_attended && !state.runs))
            },
            newer: NewerRecords::Remove,
            ..RemovalOptions::default()
        };
        match access.delete(&self.records, &self.files, &self.name, removal) {
            Ok(true) => {}
            Ok(false) => return Err("a new instance of this name was created meanwhile".to_owned()),
            Err(error) => return Err(chain(&error)),
        }
        Ok(match text.as_str() {
            RUNNING => "it was running".to_owned(),
            UNSUPERVISED => "its supervisor was killed, but its container was running".to_owned(),
            _ => text.clone(),
        })
    }
}
