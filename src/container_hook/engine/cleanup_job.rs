//! `cleanup_job`: nothing of the job is left.

use super::backend::EngineBackend;
use super::build;
use super::give_back;
use super::job::{AllJobs, Job, Jobs, Lent};
use super::pod;
use super::services;
use super::settings::JobSystem;
use crate::bundle;
use crate::container::{ContainerError, Engine, Record};
use crate::container_hook::error::HookError;
use crate::container_hook::runner::Runner;
use crate::network::{Network, NetworkOptions, remove_trial};
use crate::sys::cgroup;
use crate::sys::error::{chain, has_timed_out};
use crate::sys::lock::PASSING_BY;
use crate::sys::record::NewerRecords;

pub(super) fn run(backend: &EngineBackend<'_>) -> Result<(), HookError> {
    let owner = backend.context.runner.owner();
    let _lock = backend.jobs().lock(&owner)?;
    let containers = backend.engine.containers_of(&owner)?;
    report_all_limits(backend, &containers);
    let told = services::tell_ended(backend, "during the job");
    for problem in backend.engine.stop_all(&containers) {
        backend.context.log.warning(&problem);
    }
    // Nothing that cannot be shown is a reason to leave the job as it is.
    if let Err(error) = told.and_then(|_| services::show_all(backend)) {
        backend.context.log.warning(&chain(&error));
    }
    remove_all(backend)?;
    if backend.settings.job_system == JobSystem::Host {
        // Nobody asks for that layer by a name.
        backend.engine.store.remove_unneeded_layers()?;
    }
    Ok(())
}

/// Reports which limits a runner's job met that did not come up.
pub fn report_limits_of_job(backend: &EngineBackend<'_>) -> Result<(), HookError> {
    report_all_limits(backend, &backend.engine.containers_of(&backend.context.runner.owner())?);
    Ok(())
}

fn report_all_limits(backend: &EngineBackend<'_>, containers: &[Record]) {
    for container in containers {
        report_limits(backend, container);
    }
    if backend.engine.are_volumes_full(&backend.context.runner.owner()) {
        backend.context.log.warning("the named volumes of this runner are full");
    }
}

/// Reports which limits a container met that is about to be removed.
pub fn report_limits(backend: &EngineBackend<'_>, container: &Record) {
    for hit in backend.engine.limits_hit(container) {
        backend.context.log.warning(&format!("{} {} {hit}", container.role.name(), container.name));
    }
}

/// Removes everything of the runner: what the state of the job says does not matter, since a
/// `prepare_job` that was killed has none.
pub fn remove_all(backend: &EngineBackend<'_>) -> Result<(), HookError> {
    let owner = backend.context.runner.owner();
    let (job, lent) = match backend.jobs().read(&owner) {
        // What its containers and its network are only that version knows.
        Err(error) if error.is_newer_record() => return Err(error.into()),
        Err(error) if error.is_unreadable_record() => {
            let problem = chain(&error);
            backend
                .context
                .log
                .warning(&format!("{problem}: what its containers do not tell stays for prune"));
            let directories = vec![backend.context.runner.work().to_owned()];
            (None, Some(Lent { user: backend.context.runner.user, directories }))
        }
        job => {
            let job = job?;
            let lent = job.as_ref().map(|job| job.lent.clone());
            (job, lent.or_else(|| give_back::remembered(backend.engine)))
        }
    };
    let removed = remove_owned(backend.engine, backend.network, &owner, job.as_ref());
    if let Some(lent) = &lent {
        give_back::by_runner(backend, lent);
        give_back::forget(backend.engine)?;
    }
    // Of builds that were killed.
    if let Err(error) = build::remove_of_job(backend.engine) {
        backend.context.log.warning(&chain(&error));
    }
    removed?;
    backend.jobs().remove(&owner)
}

fn remove_owned(
    engine: &Engine,
    network: &NetworkOptions,
    owner: &str,
    job: Option<&Job>,
) -> Result<(), HookError> {
    let containers = engine.containers_of(owner)?;
    // Those of steps that ran without a job come with the containers.
    let mut networks: Vec<_> =
        containers.iter().filter_map(|record| record.network.as_ref()).collect();
    networks.extend(job.map(|job| &job.network));
    networks.sort();
    networks.dedup();
    let remove = || {
        let mut removed = FirstError::default();
        for id in &networks {
            removed.note(Network::remove_id(network, id));
        }
        removed.result()
    };
    // What is left of one thing keeps nobody from the others.
    let mut removed = FirstError::default();
    // Those whose records cannot be read may be in one of the networks.
    removed.note(engine.remove_unrecorded());
    match engine.remove_all_with(&containers, remove) {
        Ok(networks) => removed.note(networks),
        Err(error) => removed.note::<(), _>(Err(error)),
    }
    // What a dying runtime made last.
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

/// The first error of several steps, all of which are tried.
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

/// What was left of jobs.
#[derive(Debug, Default)]
pub struct Abandoned {
    /// How many jobs and parts of jobs were removed.
    pub removed: usize,
    /// Which records cannot be read, and why, and which jobs are kept by a call that holds their lock. What is
    /// damaged is removed as soon as nobody uses it, what another version may have written is not.
    pub unreadable: Vec<String>,
}

impl Abandoned {
    /// Takes note of whether a job was removed, or which call keeps it.
    fn count(&mut self, removed: Result<bool, HookError>) -> Result<(), HookError> {
        match removed {
            Ok(is_removed) => self.removed += usize::from(is_removed),
            // A call of the runner is at work, or stopped.
            Err(error) if has_timed_out(&error) => self.unreadable.push(chain(&error)),
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

/// Removes the jobs whose runners are gone without having cleaned up, and what is left of containers
/// of an earlier boot.
pub fn remove_abandoned(
    engine: &Engine,
    network: &NetworkOptions,
    newer: NewerRecords,
) -> Result<Abandoned, HookError> {
    remove_trial(network)?;
    let jobs = Jobs::new(&engine.run);
    // Before the jobs, whose records are there before their networks are.
    let networks = Network::ids(network)?;
    let mut abandoned = Abandoned { removed: 0, unreadable: unreadable(engine, network)? };
    let (mut newer, mut running) = (newer, Vec::new());
    let is_asked = newer == NewerRecords::Remove;
    if is_asked {
        let removed;
        (removed, running) = engine.remove_of_other_versions()?;
        abandoned.removed += removed;
        // Which jobs those are of that run nobody can tell.
        newer = if running.is_empty() { newer } else { NewerRecords::Keep };
    }
    let AllJobs { known, unreadable } = jobs.all()?;
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
    if let Some(lent) = give_back::remembered(engine)
        && jobs.all()?.known.is_empty()
    {
        give_back::by_root(&lent, engine.privilege)?;
        give_back::forget(engine)?;
        abandoned.removed += 1;
    }
    abandoned.removed += engine.remove_orphans()?;
    abandoned.removed += remove_unnamed(engine, network, &networks)?;
    if engine.privilege.has_own_users() {
        build::remove_of_job(engine)?;
    }
    if is_asked {
        // What is left by now.
        abandoned.unreadable = running;
        abandoned.unreadable.extend(self::unreadable(engine, network)?);
        abandoned.unreadable.extend(jobs.all()?.unreadable.iter().map(|(_, error)| chain(error)));
    }
    Ok(abandoned)
}

/// Removes everything of a job whose runner is gone, unless another call has done so.
fn remove_job(engine: &Engine, network: &NetworkOptions, job: &Job) -> Result<bool, HookError> {
    let jobs = Jobs::new(&engine.run);
    let _lock = jobs.lock_within(&job.owner, PASSING_BY)?;
    // The runner may have cleaned up meanwhile, or begun its next job.
    let is_same = |found: &Job| found.network == job.network && found.worker == job.worker;
    if !jobs.read(&job.owner)?.as_ref().is_some_and(is_same) {
        return Ok(false);
    }
    remove_owned(engine, network, &job.owner, Some(job))?;
    give_back::by_root(&job.lent, engine.privilege)?;
    give_back::forget(engine)?;
    jobs.remove(&job.owner)?;
    Ok(true)
}

/// Returns which records of containers and networks cannot be read.
fn unreadable(engine: &Engine, network: &NetworkOptions) -> Result<Vec<String>, HookError> {
    let containers = engine.unreadable()?;
    let networks = Network::unreadable(network)?;
    let mut problems: Vec<_> = containers.iter().map(|error| chain(error)).collect();
    problems.extend(networks.iter().map(|(_, error)| chain(error)));
    Ok(problems)
}

/// Removes a job whose record cannot be read, if nothing of it runs any more.
fn remove_unreadable(
    engine: &Engine,
    network: &NetworkOptions,
    owner: &str,
) -> Result<bool, HookError> {
    let jobs = Jobs::new(&engine.run);
    let runs = |record: &Record| record.process.is_some_and(|process| process.is_running());
    if engine.containers_of(owner)?.iter().any(runs) {
        return Ok(false);
    }
    let _lock = jobs.lock_within(owner, PASSING_BY)?;
    if jobs.read(owner).is_ok() {
        // The next job of the runner has begun.
        return Ok(false);
    }
    remove_owned(engine, network, owner, None)?;
    jobs.remove(owner)?;
    Ok(true)
}

/// Removes volumes and networks of jobs that no job names.
fn remove_unnamed(
    engine: &Engine,
    network: &NetworkOptions,
    networks: &[String],
) -> Result<usize, HookError> {
    // Listed after the directories were: one that is made meanwhile has its job's record already.
    let volumes = pod::list(engine)?;
    let AllJobs { known, unreadable } = Jobs::new(&engine.run).all()?;
    if !unreadable.is_empty() {
        return Ok(0);
    }
    let is_unnamed = |id: &&String| !known.iter().any(|job| job.network == **id);
    let mut removed = 0;
    for id in volumes.iter().filter(is_unnamed) {
        pod::remove(engine, id, None)?;
        removed += 1;
    }
    // Others have networks too, with other names.
    let is_of_job = |id: &&String| id.len() == 12 && id.bytes().all(|b| b.is_ascii_hexdigit());
    let left = Network::ids(network)?;
    let networks = networks.iter().filter(|id| left.contains(id));
    for id in networks.filter(is_of_job).filter(is_unnamed) {
        Network::remove_id(network, id)?;
        cgroup::remove_group(id);
        removed += 1;
    }
    Ok(removed)
}

/// Removes the jobs of this runner's user and name, in other directories, that are over: mostly of this runner
/// itself before it was set up anew, whose last job was never cleaned up.
///
/// Their containers hold ports and memory until `prune` comes. Two runners of different organisations may have the
/// same name and user, though: a job whose worker runs stays.
pub fn remove_predecessors(backend: &EngineBackend<'_>) -> Result<(), HookError> {
    // A record that cannot be read is for `prune` to report.
    let known = backend.jobs().all()?.known;
    for job in known.iter().filter(|job| is_predecessor(job, backend.context.runner)) {
        match remove_job(backend.engine, backend.network, job) {
            Ok(false) => {}
            Ok(true) => backend.context.log.line(&format!(
                "removed a job of an earlier runner {:?} of this user: its worker has ended",
                job.runner
            )),
            // What is left of it need not be in the way of this one.
            Err(error) => backend.context.log.warning(&chain(&error)),
        }
    }
    Ok(())
}

fn is_predecessor(job: &Job, runner: &Runner) -> bool {
    job.runner == runner.name
        && job.owner != runner.owner()
        && job.lent.user == runner.user
        && !job.worker.is_some_and(|worker| worker.is_running())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::container_hook::engine::job::Lent;
    use crate::container_hook::runner::tests::runner;
    use crate::sys::identity::Identity;

    /// Returns a job of a runner with the same name and user, made by nobody that is known.
    fn job() -> Job {
        let former = Runner { temp: "/srv/no-such/_work/_temp".into(), ..runner() };
        Job {
            owner: former.owner(),
            runner: former.name.clone(),
            network: "n".to_owned(),
            peers: Vec::new(),
            worker: None,
            lent: Lent { user: former.user, directories: Vec::new() },
            is_step: false,
        }
    }

    #[test]
    fn a_job_of_the_same_name_is_removed_once_its_worker_has_ended() {
        let own = Identity::of(std::process::id()).unwrap();
        let gone = Identity { start: own.start + 1, ..own };
        for (worker, expected) in [(None, true), (Some(gone), true), (Some(own), false)] {
            let job = Job { worker, ..job() };
            assert_eq!(is_predecessor(&job, &runner()), expected, "{job:?}");
        }
    }

    #[test]
    fn jobs_of_others_and_of_the_runner_itself_are_not_its_predecessors() {
        for job in [
            Job { runner: "runner-2".to_owned(), ..job() },
            Job { owner: runner().owner(), ..job() },
            Job { lent: Lent { user: (1001, 1000), directories: Vec::new() }, ..job() },
        ] {
            assert!(!is_predecessor(&job, &runner()), "{job:?}");
        }
    }
}
