//! `run_container_step`: a container action, from its start to its end.

use std::process::ExitStatus;

use super::audit;
use super::backend::EngineBackend;
use super::build::{BuildSite, Source};
use super::cleanup_job;
use super::fetch;
use super::give_back;
use super::job::Job;
use super::launch::{in_parallel, launch_helpers, mount_volumes, prepare};
use super::network::JobNetwork;
use super::plan::{LaunchContext, PendingContainer, Plan};
use super::pod::{self, Pod};
use super::services;
use super::unkept;
use crate::container::{self, Record, new_id};
use crate::container_hook::error::HookError;
use crate::container_hook::plan::{ContainerRequest, Role};
use crate::container_hook::request::ContainerArgs;
use crate::network::Endpoint;
use crate::sys::thread::beside;

pub(super) fn run(
    backend: &EngineBackend<'_>,
    step: &ContainerArgs,
    pass_on: &dyn Fn(u32),
) -> Result<ExitStatus, HookError> {
    let owner = backend.context.runner.owner();
    let jobs = backend.jobs();
    let pod = Pod::of_step(backend, step)?;
    let plans = plan(backend, step, pod.as_ref())?;
    unkept::without_effect(backend.context.log, plans.iter().map(|plan| &plan.container));
    // Before anything is fetched or built: that goes on for a moment when the hook is killed,
    // and what removes the job has to come after it.
    let _lock = jobs.lock(&owner)?;
    // A step of a job without containers has a network to itself. One that was killed left its own, since
    // the runner has no cleanup for such jobs.
    let mut job = jobs.read(&owner)?;
    if job.as_ref().is_some_and(|job| job.is_step) {
        cleanup_job::remove_all(backend)?;
        job = None;
    }
    let is_alone = job.is_none();
    if is_alone {
        unkept::report(backend, &plans)?;
    } else {
        // The job has said it of its limits, which are those of its steps.
        unkept::check(backend, &plans)?;
    }
    services::report_ended(backend, "during the job")?;
    let ids: Vec<_> = plans.iter().map(|_| new_id()).collect();
    let (network, connected) = match &job {
        Some(job) => {
            lend(backend, job, &plans)?;
            let network = JobNetwork::open(backend, &job.network)?;
            let connected = fetch_and_attach(backend, &network, &plans, &ids[0]);
            (network, connected)
        }
        // Nobody cleans up after a step without a job: while images are pulled there is nothing of it.
        None => {
            let sources = sources(backend, &plans)?;
            let id = new_id()[..12].to_owned();
            let lent = give_back::lent(backend, &plans);
            give_back::remember(backend.engine, &lent)?;
            jobs.write_step(backend.context.runner, &id, lent)?;
            let network = JobNetwork::create(backend, &id)?;
            let endpoint = attach(backend, &network, &plans, &ids[0]);
            (network, endpoint.map(|endpoint| (sources, endpoint)))
        }
    };
    let peers = job.map(|job| job.peers).unwrap_or_default();
    let result = connected.and_then(|(sources, endpoint)| {
        let volumes = pod::directory(backend.engine, network.id(), &ids[0][..12]);
        let (network, peers) = (&network, &peers[..]);
        let context = LaunchContext { network, peers, volumes: &volumes, process: None };
        let images = plans.iter().zip(sources).map(|(plan, source)| match source {
            Source::Image(image) => Ok(*image),
            Source::Dockerfile(build) => build
                .run(backend, BuildSite { plan, context, pass_on })
                .map_err(HookError::of(&plan.container.title)),
        });
        let images = images.collect::<Result<Vec<_>, _>>()?;
        let pending = plans.iter().zip(images).zip(&ids);
        let pending = pending.map(|((plan, image), id)| PendingContainer {
            plan,
            image,
            id: id.clone(),
            endpoint: endpoint.clone(),
        });
        mount_volumes(backend, &plans)?;
        run_in(backend, pod.as_ref(), &pending.collect::<Vec<_>>(), context, pass_on)
    });
    let cleaned = if is_alone {
        cleanup_job::remove_all(backend)
    } else {
        let removed = remove(backend, &ids, pod.as_ref(), &network);
        give_back_to_host(backend, &plans).and(removed)
    };
    // The step's own failure is what people want to hear of.
    let status = result?;
    cleaned?;
    Ok(status)
}

/// Records what the step can write to, if the job's containers cannot: those of a job of services alone
/// have none of the runner's directories.
fn lend(backend: &EngineBackend<'_>, job: &Job, plans: &[Plan<'_>]) -> Result<(), HookError> {
    let mut lent = job.lent.clone();
    if give_back::extend(&mut lent, backend, plans) {
        give_back::remember(backend.engine, &lent)?;
        backend.jobs().write(backend.context.runner, &job.network, &job.peers, lent)?;
    }
    Ok(())
}

/// Gives back what a step made if the next steps run on the host, as the runner's user: those in a job
/// container of an ordinary user have the same users as this one.
fn give_back_to_host(backend: &EngineBackend<'_>, plans: &[Plan<'_>]) -> Result<(), HookError> {
    let containers = backend.engine.containers_of(&backend.context.runner.owner())?;
    let is_on_host = !containers.iter().any(|container| container.role == container::Role::Job);
    if is_on_host && backend.engine.privilege.only_runner().is_some() {
        give_back::by_runner(backend, &give_back::lent(backend, plans));
    }
    Ok(())
}

/// Checks everything that was asked for: the step comes first, then what only the template has.
fn plan<'a>(
    backend: &EngineBackend<'_>,
    step: &'a ContainerArgs,
    pod: Option<&'a Pod>,
) -> Result<Vec<Plan<'a>>, HookError> {
    let overlay = pod.and_then(|pod| pod.main.as_ref());
    let mut plans = vec![Plan::new(backend, ContainerRequest::new(step, Role::Step), overlay)?];
    let mode = plans[0].network_mode();
    for helper in pod.map_or(&[][..], |pod| &pod.helpers) {
        plans.push(Plan::of_helper(backend, helper, Some(mode))?);
    }
    Ok(plans)
}

/// Fetches the images and connects the step: the network and the registry do not wait for each other.
fn fetch_and_attach(
    backend: &EngineBackend<'_>,
    network: &JobNetwork,
    plans: &[Plan<'_>],
    id: &str,
) -> Result<(Vec<Source>, Option<Endpoint>), HookError> {
    let (sources, endpoint) = std::thread::scope(|scope| {
        let sources = beside(scope, || sources(backend, plans));
        let endpoint = attach(backend, network, plans, id);
        (sources.join(), endpoint)
    });
    // If both failed, the image is what people can do something about.
    Ok((sources?, endpoint?))
}

/// Returns the images of all containers, or what builds them.
fn sources(backend: &EngineBackend<'_>, plans: &[Plan<'_>]) -> Result<Vec<Source>, HookError> {
    let sources = in_parallel(plans, |plan| {
        fetch::source(backend, plan).map_err(HookError::of(&plan.container.title))
    });
    sources.into_iter().collect()
}

/// Connects the step, whose id is given; what only the template has shares its end.
fn attach(
    backend: &EngineBackend<'_>,
    network: &JobNetwork,
    plans: &[Plan<'_>],
    id: &str,
) -> Result<Option<Endpoint>, HookError> {
    if !plans[0].is_connected() {
        return Ok(None);
    }
    let title = &plans[0].container.title;
    let ports = plans.iter().flat_map(|plan| plan.container.ports.iter().cloned()).collect();
    let endpoint = network.attach(id, ports).map_err(HookError::of(title))?;
    audit::ports(backend, title, id, &endpoint)?;
    Ok(Some(endpoint))
}

fn run_in(
    backend: &EngineBackend<'_>,
    pod: Option<&Pod>,
    pending: &[PendingContainer<'_>],
    context: LaunchContext<'_>,
    pass_on: &dyn Fn(u32),
) -> Result<ExitStatus, HookError> {
    let (step, helpers) = (&pending[0], &pending[1..]);
    let title = &step.plan.container.title;
    if let Some(pod) = pod {
        pod::make(pod, context.volumes)?;
    }
    launch_helpers(backend, helpers, context)?;
    let prepared = prepare(backend, step, context).map_err(HookError::of(title))?;
    let ran = prepared.run(pass_on).map_err(HookError::from).map_err(HookError::of(title))?;
    for hit in ran.limits_hit {
        backend.context.log.warning(&format!("{title} {hit}"));
    }
    Ok(ran.status)
}

/// Removes what a step of a job had for itself.
fn remove(
    backend: &EngineBackend<'_>,
    ids: &[String],
    pod: Option<&Pod>,
    network: &JobNetwork,
) -> Result<(), HookError> {
    let records = ids[1..].iter().filter_map(|id| backend.engine.directory(id).read().ok());
    let records: Vec<Record> = records.collect();
    for record in &records {
        cleanup_job::report_limits(backend, record);
    }
    for problem in backend.engine.stop_all(&records) {
        backend.context.log.warning(&problem);
    }
    backend.engine.remove_all(&records)?;
    if pod.is_some() {
        pod::remove(backend.engine, network.id(), Some(&ids[0][..12]))?;
    }
    network.detach(&ids[0])
}
