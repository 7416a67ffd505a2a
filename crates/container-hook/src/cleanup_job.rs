//! `cleanup_job`: removes all containers, networks and files of the job.

use container_hook_job::HookError;
use container_hook_job::runner::CallingRunner;
use oci_hooks_engine::bundle;
use oci_hooks_engine::container::{ContainerError, ContainerRecord, Engine};
use oci_hooks_engine::network::{Network, NetworkOptions, remove_test_network};
use oci_hooks_files::error::{chain, has_timed_out};
use oci_hooks_files::lock::BULK_LOCK_TIMEOUT;
use oci_hooks_files::record::NewerRecords;
use oci_hooks_host::cgroup;

use super::backend::EngineBackend;
use super::job::{AllJobs, JobRecord, JobRecords, WritableDirectories};
use super::network::{job_of, remove_networks};
use super::settings::JobRootFs;
use super::{build, ownership};
use super::{pod, services};

pub(super) fn run(backend: &EngineBackend<'_>) -> Result<(), HookError> {
    let owner = backend.context.runner.owner();
    let _lock = backend.jobs().lock(&owner)?;
    let containers = backend.engine.containers_of(&owner)?;
    report_all_limits(backend, &containers);
    let told = services::log_ended_services(backend, "during the job");
    for problem in backend.engine.stop_all(&containers) {
        backend.context.log.warning(&problem);
    }
    // The job is removed even if the output of services cannot be shown.
    if let Err(error) = told.and_then(|_| services::show_all(backend)) {
        backend.context.log.warning(&chain(&error));
    }
    remove_all(backend)?;
    if backend.settings.job_system == JobRootFs::Host {
        // No image reference names the layer of the host's programs.
        backend.engine.store.remove_unneeded_layers()?;
    }
    Ok(())
}

/// Logs the limits that a runner's job hit before it was ready.
pub fn report_limits_of_job(backend: &EngineBackend<'_>) -> Result<(), HookError> {
    report_all_limits(backend, &backend.engine.containers_of(&backend.context.runner.owner())?);
    Ok(())
}

fn report_all_limits(backend: &EngineBackend<'_>, containers: &[ContainerRecord]) {
    for container in containers {
        report_limits(backend, container);
    }
    if backend.engine.are_volumes_full(&backend.context.runner.owner()) {
        backend.context.log.warning("the named volumes of this runner are full: `volumes` under [limits] of the settings limits them");
    }
}

/// Logs the limits that a container hit, before the container is removed.
pub fn report_limits(backend: &EngineBackend<'_>, container: &ContainerRecord) {
    for hit in backend.engine.limits_hit(container) {
        backend.context.log.warning(&format!("{} {} {hit}", container.role.name(), container.name));
    }
}

/// Removes all containers, networks and files of the runner's job. Finds them by their owner, because the request
/// has no state of the job if `prepare_job` was killed.
pub fn remove_all(backend: &EngineBackend<'_>) -> Result<(), HookError> {
    let owner = backend.context.runner.owner();
    let (job, writable) = match backend.jobs().read(&owner) {
        // Only the newer version can interpret the record of the job's containers and network.
        Err(error) if error.is_newer_record() => return Err(error.into()),
        Err(error) if error.is_unreadable_record() => {
            let problem = chain(&error);
            backend.context.log.warning(&format!(
                "{problem}: leftovers that the job's containers do not name stay until `container-hook prune`"
            ));
            let directories = vec![backend.context.runner.work().to_owned()];
            (None, Some(WritableDirectories { user: backend.context.runner.user, directories }))
        }
        job => {
            let job = job?;
            let writable = job.as_ref().map(|job| job.writable.clone());
            (job, writable.or_else(|| ownership::read_record(backend.engine)))
        }
    };
    let removed = remove_owned(backend.engine, backend.network, &owner, job.as_ref());
    if let Some(writable) = &writable {
        ownership::restore_as_runner(backend, writable);
        ownership::remove_record(backend.engine)?;
    }
    if let Err(error) = build::remove_of_job(backend.engine) {
        backend.context.log.warning(&chain(&error));
    }
    removed?;
    backend.jobs().remove(&owner)
}

/// Removes the containers of an owner with their networks, cgroups and pod volumes. Keeps its named volumes.
fn remove_owned(
    engine: &Engine,
    network: &NetworkOptions,
    owner: &str,
    job: Option<&JobRecord>,
) -> Result<(), HookError> {
    let containers = engine.containers_of(owner)?;
    // The networks of steps without a job are recorded with their containers.
    let mut networks: Vec<_> =
        containers.iter().filter_map(|record| record.network.as_ref()).collect();
    networks.extend(job.map(|job| &job.network));
    networks.sort();
    networks.dedup();
    let remove = || {
        let mut removed = FirstError::default();
        for id in &networks {
            removed.note(remove_networks(network, id));
        }
        removed.result()
    };
    let mut removed = FirstError::default();
    // Containers without a readable record may be connected to one of the networks.
    removed.note(engine.remove_unrecorded());
    match engine.remove_all_with(&containers, remove) {
        Ok(networks) => removed.note(networks),
        Err(error) => removed.note::<(), _>(Err(error)),
    }
    // Leftovers that a dying runtime created meanwhile.
    removed.note(engine.remove_unrecorded());
    removed
        .note(bundle::remove_unfinished(&engine.volumes_of(owner)).map_err(ContainerError::from));
    removed.note(engine.unmount_volumes(owner).map_err(ContainerError::from));
    removed.note(engine.store.sweep_reservations().map_err(ContainerError::from));
    for id in &networks {
        removed.note(pod::remove(engine, id, None));
        cgroup::remove_group(id);
    }
    cgroup::remove_if_empty(cgroup::PARENT);
    removed.result()
}

/// The first error of several operations, all of which are tried.
#[derive(Default)]
struct FirstError(Option<HookError>);

impl FirstError {
    fn note<T, E: Into<HookError>>(&mut self, result: Result<T, E>) {
        if let Err(error) = result {
            self.0.get_or_insert(error.into());
        }
    }

    fn result(self) -> Result<(), HookError> {
        self.0.map_or(Ok(()), Err)
    }
}

/// The result of removing abandoned jobs.
#[derive(Debug, Default)]
pub struct AbandonedJobs {
    /// Number of removed jobs, and of containers, networks and pod volumes that belonged to no recorded job.
    pub removed: usize,
    /// Errors of unreadable records, and of jobs whose lock is held by a call. Corrupt records are removed once
    /// unused; records that another version may have written are kept.
    pub unreadable: Vec<String>,
}

impl AbandonedJobs {
    /// Counts a removed job, or notes the error if a call holds its lock.
    fn count(&mut self, removed: Result<bool, HookError>) -> Result<(), HookError> {
        match removed {
            Ok(is_removed) => self.removed += usize::from(is_removed),
            Err(error) if has_timed_out(&error) => self.unreadable.push(chain(&error)),
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

/// Removes the jobs whose runners have exited without cleanup, and leftovers of containers from an earlier
/// boot.
pub fn remove_abandoned(
    engine: &Engine,
    network: &NetworkOptions,
    newer: NewerRecords,
) -> Result<AbandonedJobs, HookError> {
    remove_test_network(network)?;
    let jobs = JobRecords::new(&engine.run);
    // Listed before the jobs, because the record of a job is written before its network is created.
    let networks = Network::ids(network)?;
    let mut abandoned =
        AbandonedJobs { removed: 0, unreadable: unreadable_records(engine, network)? };
    let (mut newer, mut running) = (newer, Vec::new());
    let is_asked = newer == NewerRecords::Remove;
    if is_asked {
        let removed;
        (removed, running) = engine.remove_of_other_versions()?;
        abandoned.removed += removed;
        // The jobs of running containers are unknown, so no newer job record is removed.
        newer = if running.is_empty() { newer } else { NewerRecords::Keep };
    }
    let AllJobs { known, unreadable } = jobs.all_jobs()?;
    for job in known {
        if job.worker.is_some_and(|worker| worker.is_running()) {
            continue;
        }
        abandoned.count(remove_job(engine, network, &job))?;
    }
    for (owner, error) in unreadable {
        abandoned.unreadable.push(chain(&error));
        if newer == NewerRecords::Remove || !error.is_of_other_version() {
            abandoned.count(remove_unreadable(engine, network, &owner))?;
        }
    }
    if let Some(writable) = ownership::read_record(engine)
        && jobs.all_jobs()?.known.is_empty()
    {
        ownership::restore_as_root(&writable, engine.privilege)?;
        ownership::remove_record(engine)?;
        abandoned.removed += 1;
    }
    jobs.remove_unused_locks()?;
    abandoned.removed += engine.remove_orphans()?;
    abandoned.removed += remove_unnamed(engine, network, &networks)?;
    if engine.privilege.has_own_users() {
        build::remove_of_job(engine)?;
    }
    if is_asked {
        // Reports only the records that are still unreadable.
        abandoned.unreadable = running;
        abandoned.unreadable.extend(unreadable_records(engine, network)?);
        abandoned
            .unreadable
            .extend(jobs.all_jobs()?.unreadable.iter().map(|(_, error)| chain(error)));
    }
    Ok(abandoned)
}

/// Removes a job whose runner has exited, unless another call has done so. Returns whether it removed the job.
fn remove_job(
    engine: &Engine,
    network: &NetworkOptions,
    job: &JobRecord,
) -> Result<bool, HookError> {
    let jobs = JobRecords::new(&engine.run);
    let _lock = jobs.lock_within(&job.owner, BULK_LOCK_TIMEOUT)?;
    // The runner may have cleaned up meanwhile, or begun its next job.
    let is_same = |found: &JobRecord| found.network == job.network && found.worker == job.worker;
    if !jobs.read(&job.owner)?.as_ref().is_some_and(is_same) {
        return Ok(false);
    }
    remove_owned(engine, network, &job.owner, Some(job))?;
    ownership::restore_as_root(&job.writable, engine.privilege)?;
    ownership::remove_record(engine)?;
    jobs.remove(&job.owner)?;
    Ok(true)
}

/// Returns the errors of unreadable container and network records.
fn unreadable_records(engine: &Engine, network: &NetworkOptions) -> Result<Vec<String>, HookError> {
    let containers = engine.unreadable_records()?;
    let networks = Network::unreadable_networks(network)?;
    let mut problems: Vec<_> = containers.iter().map(|error| chain(error)).collect();
    problems.extend(networks.iter().map(|(_, error)| chain(error)));
    Ok(problems)
}

/// Removes a job whose record cannot be read, if its containers have exited. Returns whether it removed the job.
fn remove_unreadable(
    engine: &Engine,
    network: &NetworkOptions,
    owner: &str,
) -> Result<bool, HookError> {
    let jobs = JobRecords::new(&engine.run);
    let runs =
        |record: &ContainerRecord| record.process.is_some_and(|process| process.is_running());
    if engine.containers_of(owner)?.iter().any(runs) {
        return Ok(false);
    }
    let _lock = jobs.lock_within(owner, BULK_LOCK_TIMEOUT)?;
    if jobs.read(owner).is_ok() {
        // The next job of the runner has begun.
        return Ok(false);
    }
    remove_owned(engine, network, owner, None)?;
    jobs.remove(owner)?;
    Ok(true)
}

/// Removes pod volumes and networks that no job record names. Returns the number of removed ones.
fn remove_unnamed(
    engine: &Engine,
    network: &NetworkOptions,
    networks: &[String],
) -> Result<usize, HookError> {
    // Listed before the jobs, because the record of a job is written before its volumes are created.
    let volumes = pod::list(engine)?;
    let AllJobs { known, unreadable } = JobRecords::new(&engine.run).all_jobs()?;
    if !unreadable.is_empty() {
        return Ok(0);
    }
    let is_unnamed = |id: &str| !known.iter().any(|job| job.network == id);
    let mut removed = 0;
    for id in volumes.iter().filter(|id| is_unnamed(id)) {
        pod::remove(engine, id, None)?;
        removed += 1;
    }
    let left = Network::ids(network)?;
    let networks = networks.iter().filter(|id| left.contains(id));
    for id in networks.filter(|id| job_of(id).is_some_and(is_unnamed)) {
        Network::remove_id(network, id)?;
        cgroup::remove_group(id);
        removed += 1;
    }
    Ok(removed)
}

/// Removes jobs of runners with the name and user of this runner, but another directory, whose worker has exited. They
/// usually come from an earlier installation of this runner, whose last job was never cleaned up.
///
/// Without this, their containers would occupy ports and memory until `prune` runs. A job whose worker runs is kept:
/// two runners of different organizations may have the same name and user.
pub fn remove_predecessors(backend: &EngineBackend<'_>) -> Result<(), HookError> {
    // `prune` reports unreadable records.
    let known = backend.jobs().all_jobs()?.known;
    for job in known.iter().filter(|job| is_predecessor(job, backend.context.runner)) {
        match remove_job(backend.engine, backend.network, job) {
            Ok(false) => {}
            Ok(true) => backend.context.log.line(&format!(
                "removed a job of an earlier runner {:?} of this user: the runner's worker process has ended",
                job.runner
            )),
            // The leftovers need not affect this job.
            Err(error) => backend.context.log.warning(&chain(&error)),
        }
    }
    Ok(())
}

fn is_predecessor(job: &JobRecord, runner: &CallingRunner) -> bool {
    job.runner == runner.name
        && job.owner != runner.owner()
        && job.writable.user == runner.user
        && !job.worker.is_some_and(|worker| worker.is_running())
}

#[cfg(test)]
mod tests {
    use container_hook_job::testing::runner;
    use oci_hooks_host::identity::ProcessIdentity;

    use super::*;
    use crate::job::WritableDirectories;

    /// Returns a job of a runner with the same name and user, without a known worker.
    fn job() -> JobRecord {
        let former = CallingRunner { temp: "/srv/no-such/_work/_temp".into(), ..runner() };
        JobRecord {
            owner: former.owner(),
            runner: former.name.clone(),
            network: "n".to_owned(),
            peers: Vec::new(),
            worker: None,
            writable: WritableDirectories { user: former.user, directories: Vec::new() },
            is_step: false,
        }
    }

    #[test]
    fn job_of_the_same_runner_is_removed_after_its_worker_exits() {
        let own = ProcessIdentity::of(std::process::id()).unwrap();
        let gone = ProcessIdentity { start: own.start + 1, ..own };
        for (worker, expected) in [(None, true), (Some(gone), true), (Some(own), false)] {
            let job = JobRecord { worker, ..job() };
            assert_eq!(is_predecessor(&job, &runner()), expected, "{job:?}");
        }
    }

    #[test]
    fn other_and_current_jobs_are_not_predecessors() {
        for job in [
            JobRecord { runner: "runner-2".to_owned(), ..job() },
            JobRecord { owner: runner().owner(), ..job() },
            JobRecord {
                writable: WritableDirectories { user: (1001, 1000), directories: Vec::new() },
                ..job()
            },
        ] {
            assert!(!is_predecessor(&job, &runner()), "{job:?}");
        }
    }
}
