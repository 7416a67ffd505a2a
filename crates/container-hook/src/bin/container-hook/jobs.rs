//! Enters the namespaces of runners' jobs, and lists and removes what jobs leave behind.

use std::os::fd::{AsFd, OwnedFd};

use container_hook::{
    AbandonedJobs, RemovedVolumes, RunnerVolume, RunnerVolumes, remove_abandoned,
};
use container_hook_job::request::{HookCommand, HookRequest};
use oci_hooks_cli::exit::CliExit;
use oci_hooks_engine::container::{ContainerRecord, StepSignals as _};
use oci_hooks_engine_cli::rootless::{
    ContainerOwner, ContainerOwners, EnterOutcome, NamespaceEntry, RootlessError,
};
use oci_hooks_engine_cli::sections::StoreSection;
use oci_hooks_files::error::chain;
use oci_hooks_files::record::NewerRecords;
use oci_hooks_host::privilege::ChildHandle;

use crate::engine;
use crate::environment::{self, WorkerInfo};
use crate::settings::HookFileSettings;
use crate::signals;

/// Kind of [`ContainerOwners`] to which runners belong; each runner has at most one job.
const KIND: &str = "jobs";

/// Returns the runners that use a store.
pub fn of(store: &StoreSection) -> ContainerOwners {
    ContainerOwners::new(store, KIND, wait_for_copy)
}

/// Enters the namespaces of the runner's job. For a new job, removes leftovers of earlier runners with the
/// same name, and creates new namespaces.
pub fn enter(
    settings: &HookFileSettings,
    request: &HookRequest,
    seen: &WorkerInfo,
) -> Result<EnterOutcome, RootlessError> {
    // Later code reports the missing variables.
    let (Some(id), Ok(name)) = (environment::owner(), environment::name()) else {
        return Ok(EnterOutcome::Inside(Box::new(settings.store.clone())));
    };
    let jobs = of(&settings.store);
    let owner = ContainerOwner { id: &id, name: &name, worker: seen.worker };
    let entry = match request.command {
        HookCommand::PrepareJob(_) => NamespaceEntry::New,
        HookCommand::CleanupJob => NamespaceEntry::Cleanup,
        _ => NamespaceEntry::Current,
    };
    if entry == NamespaceEntry::New {
        jobs.run_in_predecessors(owner, |store| remove_here(settings, store, NewerRecords::Keep))?;
    }
    jobs.enter(owner, entry, |pause_processes| !pause_processes.has_job(&id))
}

/// Enters the namespaces of a running container's job.
pub fn enter_job(
    settings: &HookFileSettings,
    record: &ContainerRecord,
) -> Result<EnterOutcome, RootlessError> {
    let owner = ContainerOwner { id: &record.owner, name: &record.owner, worker: None };
    of(&settings.store).enter(owner, NamespaceEntry::Current, |pause_processes| {
        !pause_processes.has_job(&record.owner)
    })
}

/// Enters the user namespace that owns the files of images, in the host's network namespace.
pub fn enter_store(settings: &HookFileSettings) -> Result<EnterOutcome, RootlessError> {
    of(&settings.store).enter_store()
}

/// Removes leftovers of jobs whose runners are gone.
pub fn prune(
    settings: &HookFileSettings,
    newer: NewerRecords,
) -> Result<AbandonedJobs, RootlessError> {
    let (all, unreadable) =
        of(&settings.store).run_in_abandoned(newer, |store| remove_here(settings, store, newer))?;
    let mut abandoned = AbandonedJobs { unreadable, ..AbandonedJobs::default() };
    for (removed, unreadable) in all {
        abandoned.removed += removed;
        abandoned.unreadable.extend(unreadable);
    }
    Ok(abandoned)
}

/// Removes leftovers of jobs whose runners are gone, in the namespaces of this process. Returns the number of
/// removed jobs, and the unreadable records.
fn remove_here(
    settings: &HookFileSettings,
    store: &StoreSection,
    newer: NewerRecords,
) -> Result<(usize, Vec<String>), String> {
    let settings = settings.with_store(store);
    let engine = settings.host().into_existing_engine().map_err(|error| chain(&error))?;
    let removed = remove_abandoned(&engine, &engine::network(&settings), newer);
    removed.map(|all| (all.removed, all.unreadable)).map_err(|error| chain(&error))
}

/// Returns the named volumes of all runners, and the errors of volumes that cannot be listed.
pub fn volumes(store: &StoreSection) -> Result<(Vec<RunnerVolume>, Vec<String>), RootlessError> {
    let listed = of(store)
        .run_in_volumes(|store| volumes_in(store).list().map_err(|error| chain(&error)))?;
    let (volumes, problems): (Vec<_>, Vec<_>) = listed.into_iter().unzip();
    Ok((volumes.concat(), problems.concat()))
}

/// Returns the ids of runners that have a directory for named volumes, even if it holds none or
/// only the remains of an interrupted removal.
pub fn owners_of_volumes(store: &StoreSection) -> Result<Vec<String>, RootlessError> {
    let owners = of(store)
        .run_in_volumes(|store| volumes_in(store).owners().map_err(|error| chain(&error)))?;
    Ok(owners.concat())
}

/// Removes the selected named volumes of a runner, unless a container uses them.
pub fn remove_volumes(
    store: &StoreSection,
    owner: &str,
    is_selected: &(dyn Fn(&RunnerVolume) -> bool + Sync),
) -> Result<RemovedVolumes, RootlessError> {
    let removed = of(store).run_in_owner_volumes(owner, |store| {
        volumes_in(store).remove(owner, is_selected).map_err(|error| chain(&error))
    })?;
    Ok(removed.unwrap_or_default())
}

fn volumes_in(store: &StoreSection) -> RunnerVolumes<'_> {
    RunnerVolumes { disk: store.container_disk(), run: store.container_run() }
}

/// Waits for a copy of this process, forwarding the signals that would end this one.
fn wait_for_copy(child: ChildHandle) -> CliExit {
    let mut pending = signals::PendingSignals::new().ok();
    let wake = pending.as_ref().and_then(|pending| pending.descriptor().try_clone_to_owned().ok());
    let wake = wake.as_ref().map(AsFd::as_fd);
    let pass_on = |process: &OwnedFd| {
        for signal in pending.iter_mut().flat_map(signals::PendingSignals::take) {
            signals::send(process, signal);
        }
    };
    // No error is expected: the child is waited for only here.
    child.wait(wake, pass_on).map_or(CliExit::Findings, CliExit::from)
}
