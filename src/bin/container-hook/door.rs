//! The door of an ordinary user: a process that makes or looks at containers goes on inside of the holder of
//! their job, and this one waits for it. Root of the host has none to pass.

use std::fs::File;
use std::io::{self, Seek as _};
use std::os::fd::OwnedFd;
use std::time::Duration;

use oci_hooks::container::StepSignals as _;
use oci_hooks::container_hook::engine::{
    Abandoned, RemovedVolumes, RunnerVolume, RunnerVolumes, remove_abandoned,
};
use oci_hooks::container_hook::request::{Command, Request};
use oci_hooks::program::exit::Exit;
use oci_hooks::program::holders::{Found, HolderError, HolderRecord, Holders, enter_store};
use oci_hooks::sys::error::{chain, has_timed_out};
use oci_hooks::sys::identity::Identity;
use oci_hooks::sys::lock::{LONG, PASSING_BY};
use oci_hooks::sys::privilege::{
    Attendant, Inside, Map, Privilege, Side, enter_new, exit_at_once, missing_in_container,
};
use oci_hooks::sys::record::NewerRecords;
use oci_hooks::sys::spawn::memory_file;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::engine;
use crate::environment::{self, Seen};
use crate::settings::Settings;
use crate::signals::{self, Pending};

/// What the directories of holders are called whose owners are runners.
const JOBS: &str = "jobs";

/// What became of a process that came to the door.
#[derive(Debug)]
#[must_use]
pub(crate) enum Passage {
    /// It goes on, with settings for where it is.
    Inside(Box<Settings>),
    /// It has gone on inside, and ended so.
    Ended(Exit),
}

/// Why what was to be done inside was not.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DoorError {
    #[error(transparent)]
    Holder(#[from] HolderError),
    #[error("{0}")]
    Inside(String),
    #[error("no answer came from inside of the holder of job {owner}")]
    NoAnswer { owner: String, source: io::Error },
}

/// Returns what a container that this runs in has to be given, if an error says that something was denied to an
/// ordinary user.
pub(crate) fn lacking(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    let denied =
        ["not permitted", "ermission denied", "not implemented", "cannot execute newuidmap"];
    let said = chain(error);
    let is_denied = denied.iter().any(|words| said.contains(words));
    if is_denied && !Privilege::is_root_of_host() { missing_in_container() } else { None }
}

/// How a process ended that was killed.
const KILLED: Exit = Exit::Code(128 + 9);

/// Goes on where the containers of the runner's job are, or are to be.
pub(crate) fn job(
    settings: Settings,
    request: &Request,
    seen: &Seen,
) -> Result<Passage, DoorError> {
    // What is missing of the environment is told by who needs it.
    let (Some(owner), Ok(name), false) =
        (environment::owner(), environment::name(), Privilege::is_root_of_host())
    else {
        return Ok(Passage::Inside(Box::new(settings)));
    };
    let holders = Holders::new(&settings.store, JOBS)?;
    let is_new = matches!(request.command, Command::PrepareJob(_));
    if is_new {
        remove_predecessors(&settings, &holders, &owner, &name)?;
    }
    let mut anew = is_new;
    loop {
        let lock = holders.lock(&owner, LONG)?;
        let mut found = holders.find(&owner);
        if anew && let Some(found) = found.take() {
            found.end()?;
        }
        let side = holders.enter_or_make(found.as_ref(), &owner, &name, seen.worker)?;
        let attendant = match side {
            Side::Inside(inside) => {
                return Ok(Passage::Inside(Box::new(settings_inside(
                    settings, &holders, &owner, inside,
                ))));
            }
            Side::Outside(attendant) => attendant,
        };
        drop(lock);
        let ended = attend(attendant);
        // A holder that was killed takes along who entered it before it was dead. What it left is removed from a
        // new one; what a step or a new job began there is lost.
        let is_cleanup = matches!(request.command, Command::CleanupJob);
        if is_cleanup && ended == KILLED && !anew {
            anew = true;
            continue;
        }
        end_if_over(&holders, &owner, LONG)?;
        return Ok(Passage::Ended(ended));
    }
}

/// Goes on where the files of images have their owners, in the host's network.
pub(crate) fn store(mut settings: Settings) -> Result<Passage, DoorError> {
    if Privilege::is_root_of_host() {
        return Ok(Passage::Inside(Box::new(settings)));
    }
    match enter_store(&settings.store)? {
        Side::Inside(inside) => {
            let holders = Holders::existing(&settings.store, JOBS);
            settings.store.root = holders.store_root(inside.privilege);
            settings.place.privilege = inside.privilege;
            settings.place.has_cgroup = inside.has_cgroup;
            Ok(Passage::Inside(Box::new(settings)))
        }
        Side::Outside(attendant) => Ok(Passage::Ended(attend(attendant))),
    }
}

/// Returns settings for the records of each job, as they are seen from outside of its holder: all of root are in
/// one place. Those without records are left out, since a look at them would make directories.
pub(crate) fn of_all_jobs(settings: &Settings) -> Result<Vec<Settings>, DoorError> {
    let mut all = match Privilege::is_root_of_host() {
        true => vec![settings.clone()],
        false => {
            let holders = Holders::existing(&settings.store, JOBS);
            let inside = Inside { privilege: settings.place.privilege, has_cgroup: false };
            let of_owner =
                |owner: String| settings_inside(settings.clone(), &holders, &owner, inside);
            holders.owners()?.into_iter().map(of_owner).collect()
        }
    };
    all.retain(|settings| settings.host().run().exists());
    Ok(all)
}

/// Returns what `work` returns in each holder of this user that runs; for root, what it returns where this
/// process is.
pub(crate) fn in_each_job<T: Serialize + DeserializeOwned>(
    settings: &Settings,
    work: impl Fn(&Settings) -> Result<T, String>,
) -> Result<Vec<T>, DoorError> {
    if Privilege::is_root_of_host() {
        return Ok(vec![work(settings).map_err(DoorError::Inside)?]);
    }
    let holders = Holders::existing(&settings.store, JOBS);
    let known = holders.all()?;
    let running = known.iter().filter_map(|(owner, found)| Some((owner, found.holder.as_ref()?)));
    running
        .map(|(owner, holder)| within(settings, &holders, owner, || holders.enter(holder), &work))
        .filter_map(Result::transpose)
        .collect()
}

/// Removes what is left of jobs whose runners are gone. Returns what was removed of each.
pub(crate) fn remove_abandoned_jobs(
    settings: &Settings,
    newer: NewerRecords,
) -> Result<Abandoned, DoorError> {
    if Privilege::is_root_of_host() {
        return remove_here(settings, newer).map_err(DoorError::Inside);
    }
    let holders = Holders::new(&settings.store, JOBS)?;
    let mut all = Abandoned::default();
    for owner in holders.owners()? {
        let lock = match holders.lock(&owner, PASSING_BY) {
            // A call of the runner is at work, or stopped.
            Err(error) if has_timed_out(&error) => {
                all.unreadable.push(chain(&error));
                continue;
            }
            lock => lock?,
        };
        let found = match holders.find(&owner) {
            None => None,
            Some(found) => match over(&owner, found, newer) {
                Ok(Some(found)) => Some(found),
                Ok(None) => continue,
                Err(error) => {
                    all.unreadable.push(chain(&error));
                    continue;
                }
            },
        };
        let Abandoned { removed, unreadable } =
            remove_job(settings, &holders, &owner, found.as_ref(), newer)?;
        drop(lock);
        all.removed += removed;
        all.unreadable.extend(unreadable);
        end_if_over(&holders, &owner, PASSING_BY)?;
    }
    Ok(all)
}

/// Returns what was found of a holder if the job is over, and nothing if it goes on.
///
/// # Errors
///
/// Fails if that cannot be told.
fn over(owner: &str, found: Found, newer: NewerRecords) -> Result<Option<Found>, HolderError> {
    let is_kept = found.is_newer() && newer == NewerRecords::Keep;
    match (&found.record, &found.holder) {
        (Ok(record), _) => Ok(record.is_over().then_some(found)),
        (Err(_), None) if !is_kept => Ok(Some(found)),
        (Err(_), Some(holder)) if !is_kept => {
            let (owner, pid) = (owner.to_owned(), holder.process.pid);
            found.record.map_err(|error| HolderError::Unclear {
                owner,
                pid,
                source: Box::new(error),
            })?;
            Ok(None)
        }
        (Err(_), _) => found.record.map(|_| None),
    }
}

/// Removes the jobs of this runner's name, in other directories, that are over.
fn remove_predecessors(
    settings: &Settings,
    holders: &Holders,
    owner: &str,
    name: &str,
) -> Result<(), DoorError> {
    // A record that cannot be read is for `prune` to report.
    let is_predecessor =
        |record: &HolderRecord| record.name == name && record.owner != owner && record.is_over();
    for HolderRecord { owner, .. } in holders.records()?.into_iter().filter(is_predecessor) {
        let lock = match holders.lock(&owner, PASSING_BY) {
            // A call that is stopped, or at work on the same: then it is for `prune` to remove.
            Err(error) if has_timed_out(&error) => continue,
            lock => lock?,
        };
        // It may have another job meanwhile.
        let found = holders.find(&owner);
        let Some(found) = found.filter(|it| it.record.as_ref().is_ok_and(is_predecessor)) else {
            continue;
        };
        remove_job(settings, holders, &owner, Some(&found), NewerRecords::Keep)?;
        drop(lock);
        end_if_over(holders, &owner, PASSING_BY)?;
    }
    Ok(())
}

/// Removes what is left of the job of an owner, whose lock is held, in its holder or in a new one.
fn remove_job(
    settings: &Settings,
    holders: &Holders,
    owner: &str,
    found: Option<&Found>,
    newer: NewerRecords,
) -> Result<Abandoned, DoorError> {
    let record = found.and_then(|found| found.record.as_ref().ok());
    let name = record.map_or(owner, |record| &record.name);
    let enter = || holders.enter_or_make(found, owner, name, None).map(Some);
    let removed = within(settings, holders, owner, enter, &|settings: &Settings| {
        remove_here(settings, newer).map(|all| (all.removed, all.unreadable))
    })?;
    let mut abandoned = Abandoned::default();
    (abandoned.removed, abandoned.unreadable) = removed.unwrap_or_default();
    Ok(abandoned)
}

/// Removes what is left of jobs where this process is, whose runners are gone.
fn remove_here(settings: &Settings, newer: NewerRecords) -> Result<Abandoned, String> {
    let engine = settings.host().existing().map_err(|error| chain(&error))?;
    let network = engine::network(settings);
    remove_abandoned(&engine, &network, newer).map_err(|error| chain(&error))
}

/// Returns the named volumes of all runners, and why some cannot be listed. Nothing is made where there are none.
pub(crate) fn volumes(settings: &Settings) -> Result<(Vec<RunnerVolume>, Vec<String>), DoorError> {
    let listed = |settings: &Settings| volumes_here(settings).list().map_err(|error| chain(&error));
    if Privilege::is_root_of_host() {
        return listed(settings).map_err(DoorError::Inside);
    }
    let holders = Holders::existing(&settings.store, JOBS);
    let (mut all, mut problems) = (Vec::new(), Vec::new());
    for owner in &owners_of_volumes(settings)? {
        // Where files have their owners: they may be in directories of theirs.
        let listed = within(settings, &holders, owner, enter_for_files, &listed)?;
        let (volumes, others) = listed.unwrap_or_default();
        all.extend(volumes);
        problems.extend(others);
    }
    Ok((all, problems))
}

/// Returns the owners of named volumes, or of what is left of some.
pub(crate) fn owners_of_volumes(settings: &Settings) -> Result<Vec<String>, DoorError> {
    if Privilege::is_root_of_host() {
        let owners = volumes_here(settings).owners();
        return owners.map_err(|error| DoorError::Inside(chain(&error)));
    }
    let holders = Holders::existing(&settings.store, JOBS);
    let mut owners = holders.owners()?;
    owners.retain(|owner| holders.has_volumes(owner));
    Ok(owners)
}

fn volumes_here(settings: &Settings) -> RunnerVolumes<'_> {
    let host = settings.host();
    RunnerVolumes { disk: host.disk(), run: host.run() }
}

/// Removes the named volumes of a runner that are selected and no container has.
pub(crate) fn remove_volumes(
    settings: &Settings,
    owner: &str,
    is_selected: &(dyn Fn(&RunnerVolume) -> bool + Sync),
) -> Result<RemovedVolumes, DoorError> {
    let remove = |settings: &Settings| {
        volumes_here(settings).remove(owner, is_selected).map_err(|error| chain(&error))
    };
    if Privilege::is_root_of_host() {
        return remove(settings).map_err(DoorError::Inside);
    }
    let holders = Holders::new(&settings.store, JOBS)?;
    let lock = holders.lock(owner, PASSING_BY)?;
    let removed = within(settings, &holders, owner, enter_for_files, &remove)?;
    let is_there = holders.find(owner).is_some_and(|found| found.holder.is_some());
    if !is_there && !holders.has_job(owner) {
        holders.forget(owner, lock)?;
    }
    Ok(removed.unwrap_or_default())
}

/// Returns the holder of a job, if it runs; root has none.
pub(crate) fn holder(settings: &Settings, owner: &str) -> Option<Identity> {
    if Privilege::is_root_of_host() {
        return None;
    }
    let found = Holders::existing(&settings.store, JOBS).find(owner);
    found.and_then(|found| found.holder).map(|holder| holder.process)
}

/// Goes on where the files of this user have their owners.
fn enter_for_files() -> Result<Option<Side>, HolderError> {
    Ok(Some(enter_new(&Map::of_process()?)?))
}

/// Ends the holder of an owner who has no job any more.
fn end_if_over(holders: &Holders, owner: &str, within: Duration) -> Result<(), DoorError> {
    let lock = holders.lock(owner, within)?;
    if !holders.has_job(owner) {
        if let Some(found) = holders.find(owner) {
            found.end()?;
        }
        holders.forget(owner, lock)?;
    }
    Ok(())
}

fn settings_inside(
    mut settings: Settings,
    holders: &Holders,
    owner: &str,
    inside: Inside,
) -> Settings {
    settings.store.root = holders.store_root(inside.privilege);
    settings.place = holders.place(owner, inside);
    settings
}

/// Returns what `work` returns, which a copy of this process does that enters a holder; none if it has ended.
fn within<T: Serialize + DeserializeOwned>(
    settings: &Settings,
    holders: &Holders,
    owner: &str,
    enter: impl FnOnce() -> Result<Option<Side>, HolderError>,
    work: &dyn Fn(&Settings) -> Result<T, String>,
) -> Result<Option<T>, DoorError> {
    let no_answer = |source| DoorError::NoAnswer { owner: owner.to_owned(), source };
    let mut answer = File::from(memory_file("answer", b"").map_err(no_answer)?);
    match enter()? {
        None => return Ok(None),
        Some(Side::Inside(inside)) => {
            let settings = settings_inside(settings.clone(), holders, owner, inside);
            let written = serde_json::to_writer(&answer, &work(&settings));
            exit_at_once(i32::from(written.is_err()));
        }
        Some(Side::Outside(attendant)) => {
            attend(attendant);
        }
    }
    answer.rewind().map_err(no_answer)?;
    let said: Result<T, String> =
        serde_json::from_reader(&answer).map_err(|error| no_answer(error.into()))?;
    said.map(Some).map_err(DoorError::Inside)
}

/// Waits for a process that went on inside, and passes on to it what would end this one.
fn attend(attendant: Attendant) -> Exit {
    let mut signals = Pending::new().ok();
    let wake = signals.as_ref().and_then(|signals| signals.descriptor().try_clone_to_owned().ok());
    let wake = wake.as_ref().map(std::os::fd::AsFd::as_fd);
    let pass_on = |process: &OwnedFd| {
        for signal in signals.iter_mut().flat_map(Pending::take) {
            signals::send(process, signal);
        }
    };
    // A child is waited for once.
    attendant.wait(wake, pass_on).map_or(Exit::Findings, Exit::from)
}
