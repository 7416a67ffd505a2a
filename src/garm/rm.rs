//! Removing instances that GARM does not remove: those of a controller or a pool that is gone, and
//! those that no process of ours attends to any more.

use std::collections::BTreeMap;
use std::path::Path;

use super::error::ProviderError;
use super::record::{Files, InstanceRecord, Outcome, Records, controllers};
use super::site::{Removal, Site, Sites};
use crate::container::ContainerError;
use crate::sys::error::chain;

/// Selects the instances that match all given criteria.
#[derive(Clone, Copy, Debug, Default)]
pub struct Selection<'a> {
    /// Their names; any if there is none here.
    pub names: &'a [String],
    /// Only those that no process attends to any more.
    pub orphans: bool,
    pub controller: Option<&'a str>,
    pub pool: Option<&'a str>,
}

/// How instances are removed.
#[derive(Clone, Copy, Debug, Default)]
pub struct RmOptions {
    /// Whether those are removed too that run, perhaps with a job.
    pub force: bool,
    /// Whether it is only said what would be done.
    pub dry_run: bool,
}

/// An instance that was meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selected {
    pub name: String,
    pub controller: String,
    /// Any text; empty if the record cannot be read.
    pub pool: String,
    /// How it is, or why it was not removed.
    pub reason: String,
}

/// What became of instances.
#[derive(Clone, Debug, Default)]
pub struct RmReport {
    /// Those that are gone, or would be.
    pub removed: Vec<Selected>,
    /// Those that were meant and stay.
    pub left: Vec<Selected>,
    /// Names that no instance has.
    pub unknown: Vec<String>,
}

/// Removes instances, of whatever controller, whose records are below a run directory. One that cannot be
/// removed keeps no other from it.
pub fn rm(
    run: &Path,
    sites: &dyn Sites,
    selection: &Selection<'_>,
    options: RmOptions,
) -> Result<RmReport, ProviderError> {
    let mut meant = Vec::new();
    for records in controllers(run)? {
        if selection.controller.is_none_or(|controller| controller == records.controller()) {
            meant.extend(select(sites, &records, selection)?);
        }
    }
    meant.sort_by(|a, b| (&a.name, &a.controller).cmp(&(&b.name, &b.controller)));
    let mut count = BTreeMap::<_, usize>::new();
    for instance in &meant {
        *count.entry(instance.name.clone()).or_default() += 1;
    }
    let unknown = selection.names.iter().filter(|name| !count.contains_key(*name));
    let mut report = RmReport { unknown: unknown.cloned().collect(), ..RmReport::default() };
    for instance in meant {
        let result = if !selection.names.is_empty() && count[&instance.name] > 1 {
            Err("several controllers have an instance of this name: say which one by \
                 --controller"
                .to_owned())
        } else {
            instance.remove(sites, options)
        };
        let list = if result.is_ok() { &mut report.removed } else { &mut report.left };
        let (Ok(reason) | Err(reason)) = result;
        let Meant { name, controller, pool, .. } = instance;
        list.push(Selected { name, controller, pool, reason });
    }
    Ok(report)
}

/// An instance that is meant.
struct Meant {
    name: String,
    controller: String,
    pool: String,
    files: Files,
    records: Records,
    /// How it is.
    state: State,
}

/// How an instance is, as far as it matters to who removes it.
struct State {
    /// Whether a process stays with it, or makes it.
    is_attended: bool,
    /// Whether its container runs.
    runs: bool,
    /// The same in words.
    text: String,
    /// Whether nobody but another version of this program knows what is in its record.
    is_foreign: bool,
}

/// Returns the instances of a controller that are meant.
fn select(
    sites: &dyn Sites,
    records: &Records,
    selection: &Selection<'_>,
) -> Result<Vec<Meant>, ProviderError> {
    let all = records.read_all()?;
    let known = all.known.into_iter().map(|record| (record.name.clone(), Ok(record)));
    let unreadable = all.unreadable.into_iter().map(|(name, error)| (name, Err(error)));
    let mut meant = Vec::new();
    for (name, record) in known.chain(unreadable) {
        let pool = record.as_ref().map_or("", |record| &record.pool).to_owned();
        if !selection.names.is_empty() && !selection.names.contains(&name)
            || selection.pool.is_some_and(|wanted| wanted != pool)
        {
            continue;
        }
        // What is called otherwise is no instance.
        let Some(files) = records.files(&name) else { continue };
        let site = sites.site(records.controller(), &name)?;
        let state = state(&site, records, &files, &name, record.as_ref())?;
        if selection.orphans && state.is_attended {
            continue;
        }
        let (records, controller) = (records.clone(), records.controller().to_owned());
        meant.push(Meant { name, controller, pool, files, records, state });
    }
    Ok(meant)
}

fn state(
    site: &Site,
    records: &Records,
    files: &Files,
    name: &str,
    record: Result<&InstanceRecord, &ContainerError>,
) -> Result<State, ProviderError> {
    let record = match record {
        Ok(record) => record,
        Err(error) => {
            let record = records.record_of_container(site.run(), name)?;
            return Ok(State {
                is_attended: false,
                runs: record.is_some_and(|record| site.is_running(&record)),
                text: chain(error),
                is_foreign: error.is_of_other_version(),
            });
        }
    };
    let is_attended = match site.is_attended(files, record) {
        Err(error) if is_unreadable(&error) => false,
        is_attended => is_attended?,
    };
    let runs = site.is_running(record);
    let text = match (files.outcome(), is_attended, runs) {
        (Ok(Some(Outcome::Failed { fault, .. })), _, _) => fault,
        (Ok(Some(Outcome::Ended { .. })), _, _) => "its runner has ended".to_owned(),
        (_, true, _) => "it runs".to_owned(),
        (_, false, true) => "its supervisor was killed, and its container runs".to_owned(),
        (_, false, false) if record.info.is_none() => "its creation was interrupted".to_owned(),
        (_, false, false) => "its processes were killed".to_owned(),
    };
    Ok(State { is_attended, runs, text, is_foreign: false })
}

fn is_unreadable(error: &ProviderError) -> bool {
    matches!(error, ProviderError::Container(error) if error.is_unreadable_record())
}

impl Meant {
    /// Removes it, and returns how it was; or why it was not removed.
    fn remove(&self, sites: &dyn Sites, options: RmOptions) -> Result<String, String> {
        let State { is_attended, runs, text, is_foreign } = &self.state;
        if *is_foreign {
            return Err(format!("{text}: remove it with the version that made it"));
        }
        if (*is_attended || *runs) && !options.force {
            return Err(format!("{text}: --force removes it all the same, with its job"));
        }
        if !options.dry_run {
            sites
                .delete(&self.records, &self.files, &self.name, Removal::default())
                .map_err(|error| chain(&error))?;
        }
        Ok(text.clone())
    }
}
