//! The jobs of runners: where their containers are, and what is left of them.

use std::os::fd::{AsFd, OwnedFd};

use oci_hooks::container::StepSignals as _;
use oci_hooks::container_hook::engine::{
    Abandoned, RemovedVolumes, RunnerVolume, RunnerVolumes, remove_abandoned,
};
use oci_hooks::container_hook::request::{Command, Request};
use oci_hooks::program::exit::Exit;
use oci_hooks::program::rootless::{Entered, Entry, Owner, Owners, RootlessError};
use oci_hooks::program::sections::Store;
use oci_hooks::sys::error::chain;
use oci_hooks::sys::privilege::Attendant;
use oci_hooks::sys::record::NewerRecords;

use crate::engine;
use crate::environment::{self, Seen};
use crate::settings::Settings;
use crate::signals;

/// The owners are runners, each with at most one job.
const KIND: &str = "jobs";

/// Returns the runners whose images are in a store.
pub fn of(store: &Store) -> Owners {
    Owners::new(store, KIND, attend)
}

/// Goes on where the containers of the runner's job are, or will be.
pub fn enter(
    settings: &Settings,
    request: &Request,
    seen: &Seen,
) -> Result<Entered, RootlessError> {
    // Later code reports what is missing of the environment.
    let (Some(id), Ok(name)) = (environment::owner(), environment::name()) else {
        return Ok(Entered::Inside(Box::new(settings.store.clone())));
    };
    let jobs = of(&settings.store);
    let owner = Owner { id: &id, name: &name, worker: seen.worker };
    let entry = match request.command {
        Command::PrepareJob(_) => Entry::New,
        Command::CleanupJob => Entry::Cleanup,
        _ => Entry::Current,
    };
    if entry == Entry::New {
        jobs.in_predecessors(owner, |store| remove_here(settings, store, NewerRecords::Keep))?;
    }
    jobs.enter(owner, entry, |holders| !holders.has_job(&id))
}

/// Goes on where the files of images have their owners, in the network of the host.
pub fn enter_store(settings: &Settings) -> Result<Entered, RootlessError> {
    of(&settings.store).enter_store()
}

/// Removes what is left of jobs whose runners are gone.
pub fn prune(settings: &Settings, newer: NewerRecords) -> Result<Abandoned, RootlessError> {
    let (all, unreadable) =
        of(&settings.store).in_abandoned(newer, |store| remove_here(settings, store, newer))?;
    let mut abandoned = Abandoned { unreadable, ..Abandoned::default() };
    for (removed, unreadable) in all {
        abandoned.removed += removed;
        abandoned.unreadable.extend(unreadable);
    }
    Ok(abandoned)
}

/// Removes what is left of jobs whose runners are gone, where this process is. Returns how many, and which records
/// cannot be read.
fn remove_here(
    settings: &Settings,
    store: &Store,
    newer: NewerRecords,
) -> Result<(usize, Vec<String>), String> {
    let settings = settings.with_store(store);
    let engine = settings.host().existing().map_err(|error| chain(&error))?;
    let removed = remove_abandoned(&engine, &engine::network(&settings), newer);
    removed.map(|all| (all.removed, all.unreadable)).map_err(|error| chain(&error))
}

/// Returns the named volumes of all runners, and why some cannot be listed.
pub fn volumes(store: &Store) -> Result<(Vec<RunnerVolume>, Vec<String>), RootlessError> {
    let listed =
        of(store).in_volumes(|store| volumes_in(store).list().map_err(|error| chain(&error)))?;
    let (volumes, problems): (Vec<_>, Vec<_>) = listed.into_iter().unzip();
    Ok((volumes.concat(), problems.concat()))
}

/// Returns the ids of runners with named volumes, or with what is left of some.
pub fn owners_of_volumes(store: &Store) -> Result<Vec<String>, RootlessError> {
    let owners =
        of(store).in_volumes(|store| volumes_in(store).owners().map_err(|error| chain(&error)))?;
    Ok(owners.concat())
}

/// Removes the named volumes of a runner that are selected and no container has.
pub fn remove_volumes(
    store: &Store,
    owner: &str,
    is_selected: &(dyn Fn(&RunnerVolume) -> bool + Sync),
) -> Result<RemovedVolumes, RootlessError> {
    let removed = of(store).in_volumes_of(owner, |store| {
        volumes_in(store).remove(owner, is_selected).map_err(|error| chain(&error))
    })?;
    Ok(removed.unwrap_or_default())
}

fn volumes_in(store: &Store) -> RunnerVolumes<'_> {
    RunnerVolumes { disk: store.container_disk(), run: store.container_run() }
}

/// Waits for a copy of this process, and passes on to it the signals that would end this one.
fn attend(attendant: Attendant) -> Exit {
    let mut pending = signals::Pending::new().ok();
    let wake = pending.as_ref().and_then(|pending| pending.descriptor().try_clone_to_owned().ok());
    let wake = wake.as_ref().map(AsFd::as_fd);
    let pass_on = |process: &OwnedFd| {
        for signal in pending.iter_mut().flat_map(signals::Pending::take) {
            signals::send(process, signal);
        }
    };
    // A child is waited for once.
    attendant.wait(wake, pass_on).map_or(Exit::Findings, Exit::from)
}
