//! `cleanup_job`: nothing of the job is left.

use super::build::remove_builds;
use super::error::HookError;
use super::give_back;
use super::hook::{Hook, Outcome};
use super::job::Job;
use super::pod;
use crate::bundle;
use crate::container::{Engine, Record};
use crate::network::{Network, NetworkOptions, remove_trial};
use crate::sys::cgroup;
use crate::sys::error::chain;

pub(super) fn run(hook: &Hook<'_>) -> Result<Outcome, HookError> {
    let owner = hook.runner.owner();
    let _lock = hook.jobs().lock(&owner)?;
    let containers = containers(hook.engine, &owner)?;
    report_all_limits(hook, &containers);
    for problem in hook.engine.stop_all(&containers) {
        hook.log.warning(&problem);
    }
    remove_all(hook)?;
    Ok(Outcome::Done)
}

/// Says which limits a runner's job met that did not come up.
pub(super) fn report_limits_of_job(hook: &Hook<'_>) -> Result<(), HookError> {
    report_all_limits(hook, &containers(hook.engine, &hook.runner.owner())?);
    Ok(())
}

fn report_all_limits(hook: &Hook<'_>, containers: &[Record]) {
    for container in containers {
        report_limits(hook, container);
    }
    if hook.engine.are_volumes_full(&hook.runner.owner()) {
        hook.log.warning("the named volumes of this runner are full");
    }
}

/// Says which limits a container met that is about to be removed.
pub(super) fn report_limits(hook: &Hook<'_>, container: &Record) {
    for hit in hook.engine.limits_hit(container) {
        hook.log.warning(&format!("{} {} {hit}", container.role.name(), container.name));
    }
}

/// Removes everything of the runner: what the state of the job says does not matter, since a
/// `prepare_job` that was killed has none.
pub(super) fn remove_all(hook: &Hook<'_>) -> Result<(), HookError> {
    let owner = hook.runner.owner();
    let job = hook.jobs().read(&owner)?;
    remove_owned(hook.engine, hook.network, &owner, job.as_ref())?;
    if let Some(lent) = job.as_ref().and_then(|job| job.lent.as_ref()) {
        give_back::by_runner(hook, lent);
    }
    // Of builds that were killed.
    if let Err(error) = remove_builds(&hook.engine.disk, &hook.engine.trash(), None) {
        hook.log.warning(&chain(&error));
    }
    hook.jobs().remove(&owner)
}

fn containers(engine: &Engine, owner: &str) -> Result<Vec<Record>, HookError> {
    let mut containers = engine.containers()?;
    containers.retain(|record| record.owner == owner);
    Ok(containers)
}

fn remove_owned(
    engine: &Engine,
    network: &NetworkOptions,
    owner: &str,
    job: Option<&Job>,
) -> Result<(), HookError> {
    let containers = containers(engine, owner)?;
    // Those of steps that ran without a job come with the containers.
    let mut networks: Vec<_> =
        containers.iter().filter_map(|record| record.network.as_ref()).collect();
    networks.extend(job.map(|job| &job.network));
    networks.sort();
    networks.dedup();
    let remove = |id: &&String| Network::remove_id(network, id);
    engine.remove_all_with(&containers, || networks.iter().try_for_each(remove))??;
    engine.remove_unrecorded()?;
    bundle::remove_unfinished(&engine.volumes_of(owner))?;
    engine.unmount_volumes(owner)?;
    engine.store.sweep_reservations()?;
    networks.iter().try_for_each(|id| pod::remove(engine, id, None))?;
    cgroup::remove_if_empty(cgroup::PARENT);
    Ok(())
}

/// Removes the jobs whose runners are gone without having cleaned up, and what is left of containers
/// of an earlier boot. Returns how many of both.
pub fn remove_abandoned(engine: &Engine, network: &NetworkOptions) -> Result<usize, HookError> {
    remove_trial(network)?;
    let jobs = super::job::Jobs::new(&engine.run);
    let mut removed = 0;
    for job in jobs.all()? {
        if job.worker.is_some_and(|worker| worker.is_running()) {
            continue;
        }
        let _lock = jobs.lock(&job.owner)?;
        remove_owned(engine, network, &job.owner, Some(&job))?;
        job.lent.as_ref().map(give_back::by_root).transpose()?;
        jobs.remove(&job.owner)?;
        removed += 1;
    }
    removed += engine.remove_strays()?;
    // Listed after the directories were: one that is made meanwhile has its job's record already.
    let volumes = pod::list(engine)?;
    let known = jobs.all()?;
    for network in volumes {
        if !known.iter().any(|job| job.network == network) {
            pod::remove(engine, &network, None)?;
            removed += 1;
        }
    }
    Ok(removed)
}
