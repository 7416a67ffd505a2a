//! `run_container_step`: runs a container action to its end.

use std::process::ExitStatus;

use container_hook_job::HookError;
use container_hook_job::plan::{ContainerRequest, PlanRole};
use container_hook_job::request::ContainerArgs;
use oci_hooks_engine::container::{self, ContainerRecord, new_id};
use oci_hooks_engine::network::NetworkEndpoint;
use oci_hooks_host::thread::spawn_or_call;

use super::audit;
use super::backend::EngineBackend;
use super::build::{DependentStep, ImageOrBuild};
use super::job::JobRecord;
use super::launch::{launch_helpers, map_in_parallel, mount_volumes, prepare};
use super::network::JobNetwork;
use super::plan::{LaunchContext, LaunchPlan, PendingContainer};
use super::pod::{self, TemplatePod};
use super::{cleanup_job, fetch, ownership};
use super::{services, unenforced};

pub(super) fn run(
    backend: &EngineBackend<'_>,
    step: &ContainerArgs,
    pass_on: &dyn Fn(u32),
) -> Result<ExitStatus, HookError> {
    let owner = backend.context.runner.owner();
    let jobs = backend.jobs();
    let pod = TemplatePod::of_step(backend, step)?;
    let plans = plan(backend, step, pod.as_ref())?;
    unenforced::log_ineffective_options(
        backend.context.log,
        plans.iter().map(|plan| &plan.container),
    );
    // Taken before images are pulled or built: both continue for a moment after the hook is killed, and the
    // removal of the job has to wait for them.
    let _lock = jobs.lock(&owner)?;
    // A step of a job without containers has its own network. A killed step leaves it behind, because the runner
    // calls no `cleanup_job` for such jobs.
    let mut job = jobs.read(&owner)?;
    if job.as_ref().is_some_and(|job| job.is_step) {
        cleanup_job::remove_all(backend)?;
        job = None;
    }
    let is_alone = job.is_none();
    if is_alone {
        unenforced::report(backend, &plans)?;
    } else {
        // `prepare_job` has already warned of the limits, which steps share.
        unenforced::check(backend, &plans)?;
    }
    services::report_ended(backend, "during the job")?;
    let ids: Vec<_> = plans.iter().map(|_| new_id()).collect();
    let (network, connected) = match &job {
        Some(job) => {
            record_directories(backend, job, &plans)?;
            let network = JobNetwork::open(backend, &job.network)?;
            let connected = fetch_and_attach(backend, &network, &plans, &ids[0]);
            (network, connected)
        }
        // The runner does not clean up after a step without a job, so images are pulled before the job record and
        // the network are created.
        None => {
            let sources = sources(backend, &plans)?;
            let id = new_id()[..12].to_owned();
            let writable = ownership::writable_directories(backend, &plans);
            ownership::record(backend.engine, &writable)?;
            jobs.write_step(backend.context.runner, &id, writable)?;
            let network = JobNetwork::create(backend, &id, &plans)?;
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
            ImageOrBuild::Image(image) => Ok(*image),
            ImageOrBuild::Dockerfile(build) => build
                .run(backend, DependentStep { plan, context, pass_on })
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
        restore_ownership_for_host(backend, &plans).and(removed)
    };
    // The error of the step takes precedence over errors of the cleanup.
    let status = result?;
    cleaned?;
    Ok(status)
}

/// Records the directories that the step can write to, unless the job's containers can too: in a job with only
/// services, no container has the runner's directories.
fn record_directories(
    backend: &EngineBackend<'_>,
    job: &JobRecord,
    plans: &[LaunchPlan<'_>],
) -> Result<(), HookError> {
    let mut writable = job.writable.clone();
    if ownership::extend(&mut writable, backend, plans) {
        ownership::record(backend.engine, &writable)?;
        backend.jobs().write(backend.context.runner, &job.network, &job.peers, writable)?;
    }
    Ok(())
}

/// Restores ownership of a step's files if the next steps run on the host, as the runner's user. Steps in a
/// rootless job container have the same ids as the container step.
fn restore_ownership_for_host(
    backend: &EngineBackend<'_>,
    plans: &[LaunchPlan<'_>],
) -> Result<(), HookError> {
    let containers = backend.engine.containers_of(&backend.context.runner.owner())?;
    let is_on_host =
        !containers.iter().any(|container| container.role == container::ContainerRole::Job);
    if is_on_host && backend.engine.privilege.only_runner().is_some() {
        ownership::restore_as_runner(backend, &ownership::writable_directories(backend, plans));
    }
    Ok(())
}

/// Checks the request and plans its containers: the step, then the containers that only the template has.
fn plan<'a>(
    backend: &EngineBackend<'_>,
    step: &'a ContainerArgs,
    pod: Option<&'a TemplatePod>,
) -> Result<Vec<LaunchPlan<'a>>, HookError> {
    let overlay = pod.and_then(|pod| pod.main.as_ref());
    let mut plans =
        vec![LaunchPlan::new(backend, ContainerRequest::new(step, PlanRole::Step), overlay)?];
    let mode = plans[0].network_mode();
    for helper in pod.map_or(&[][..], |pod| &pod.helpers) {
        plans.push(LaunchPlan::of_helper(backend, helper, Some(mode))?);
    }
    Ok(plans)
}

/// Pulls the images and connects the step in parallel.
fn fetch_and_attach(
    backend: &EngineBackend<'_>,
    network: &JobNetwork,
    plans: &[LaunchPlan<'_>],
    id: &str,
) -> Result<(Vec<ImageOrBuild>, Option<NetworkEndpoint>), HookError> {
    let (sources, endpoint) = std::thread::scope(|scope| {
        let sources = spawn_or_call(scope, || sources(backend, plans));
        let endpoint = attach(backend, network, plans, id);
        (sources.join(), endpoint)
    });
    // If both failed, the error of the image is reported, because users can fix it.
    Ok((sources?, endpoint?))
}

/// Returns for each container of the step its image, or the build that makes it.
fn sources(
    backend: &EngineBackend<'_>,
    plans: &[LaunchPlan<'_>],
) -> Result<Vec<ImageOrBuild>, HookError> {
    let sources = map_in_parallel(plans, |plan| {
        fetch::source(backend, plan).map_err(HookError::of(&plan.container.title))
    });
    sources.into_iter().collect()
}

/// Connects the step with this id; containers that only the template has share its endpoint.
fn attach(
    backend: &EngineBackend<'_>,
    network: &JobNetwork,
    plans: &[LaunchPlan<'_>],
    id: &str,
) -> Result<Option<NetworkEndpoint>, HookError> {
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
    pod: Option<&TemplatePod>,
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

/// Removes the template containers, pod volumes and endpoint of a step.
fn remove(
    backend: &EngineBackend<'_>,
    ids: &[String],
    pod: Option<&TemplatePod>,
    network: &JobNetwork,
) -> Result<(), HookError> {
    let records = ids[1..].iter().filter_map(|id| backend.engine.directory(id).read().ok());
    let records: Vec<ContainerRecord> = records.collect();
    for record in &records {
        cleanup_job::report_limits(backend, record);
    }
    for problem in backend.engine.stop_all(&records) {
        backend.context.log.warning(&problem);
    }
    // An error does not prevent the removal of the rest.
    let removed = backend.engine.remove_all(&records).map_err(HookError::from);
    let of_pod = pod.map_or(Ok(()), |_| {
        pod::remove(backend.engine, network.id(), Some(&ids[0][..12])).map_err(HookError::from)
    });
    let detached = network.detach(&ids[0]);
    removed.and(of_pod).and(detached)
}
