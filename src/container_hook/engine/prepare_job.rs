//! `prepare_job`: the job container and the services, started and healthy.

use std::collections::BTreeMap;

use super::audit;
use super::backend::EngineBackend;
use super::cleanup_job;
use super::fetch;
use super::give_back;
use super::launch::wait_until_healthy;
use super::launch::{
    Launched, Started, Within, in_parallel, launch, launch_helpers, mount_volumes,
};
use super::network::{JobNetwork, Peer};
use super::plan::{Asked, Plan};
use super::pod::{self, Helper, Overlay, Pod};
use crate::container::{Role, new_id};
use crate::container_hook::aliases::{ServiceNames, aliases};
use crate::container_hook::error::HookError;
use crate::container_hook::options::{CreateOptions, NetworkMode};
use crate::container_hook::request::{ContainerArgs, ImageSource, PrepareJob};
use crate::container_hook::response::{
    ContainerContext, JobContext, PrepareJobResponse, ServiceContext,
};
use crate::container_hook::state::JobState;
use crate::container_hook::worker_log::service_names as service_names_in_log;
use crate::image::Reference;
use crate::network::Endpoint;
use crate::sys::error::chain;

pub(super) fn run(
    backend: &EngineBackend<'_>,
    job: &PrepareJob,
) -> Result<Option<PrepareJobResponse>, HookError> {
    let names = service_names(backend, &job.services)?;
    let pod = Pod::of_job(backend, job, &names)?;
    let plans = plan(backend, job, names, pod.as_ref())?;
    let _lock = backend.jobs().lock(&backend.context.runner.owner())?;
    // What an earlier job left whose cleanup did not run.
    cleanup_job::remove_all(backend)?;
    if plans.is_empty() {
        return Ok(None);
    }
    let started = start(backend, &plans, pod.as_ref()).inspect_err(|_| {
        // The first error is what people have to hear of; the next call tries again.
        let removed =
            cleanup_job::report_limits_of_job(backend).and(cleanup_job::remove_all(backend));
        if let Err(also) = removed {
            backend.context.log.warning(&chain(&also));
        }
    });
    started.map(Some)
}

/// Checks everything that was asked for. The job container comes first, if there is one, then the
/// services, then what only the template has.
fn plan<'a>(
    backend: &EngineBackend<'_>,
    job: &'a PrepareJob,
    names: Vec<Vec<String>>,
    pod: Option<&'a Pod>,
) -> Result<Vec<Plan<'a>>, HookError> {
    let mut asked = Vec::new();
    if let Some(args) = &job.container {
        let overlay = pod.and_then(|pod| pod.main.as_ref());
        asked.push(Asked { args, role: Role::Job, names: Vec::new(), overlay });
    }
    for (at, (args, names)) in job.services.iter().zip(names).enumerate() {
        let overlay: Option<&Overlay> = pod.and_then(|pod| pod.services.get(at));
        asked.push(Asked { args, role: Role::Service, names, overlay });
    }
    // Without containers of the request there is nothing to help.
    let helpers = pod.filter(|_| !asked.is_empty()).map_or(&[][..], |pod| &pod.helpers);
    let mut plans: Vec<_> =
        asked.into_iter().map(|asked| Plan::new(backend, asked)).collect::<Result<_, _>>()?;
    let mode = plans.first().filter(|plan| plan.role == Role::Job).map(|job| job.network_mode());
    for helper in helpers {
        plans.push(helper_plan(backend, helper, mode)?);
    }
    Ok(plans)
}

/// Checks a container that only the template has; it is connected as the one that it helps.
pub(super) fn helper_plan<'a>(
    backend: &EngineBackend<'_>,
    helper: &'a Helper,
    mode: Option<NetworkMode>,
) -> Result<Plan<'a>, HookError> {
    let (args, role, names) = (&helper.args, helper.role, vec![helper.name.clone()]);
    let mut plan = Plan::new(backend, Asked { args, role, names, overlay: Some(&helper.overlay) })?;
    if let Some(mode) = mode {
        plan.options.network.mode = mode;
    }
    Ok(plan)
}

/// Returns the names of each service.
fn service_names(
    backend: &EngineBackend<'_>,
    services: &[ContainerArgs],
) -> Result<Vec<Vec<String>>, HookError> {
    let written = match &backend.context.runner.diag {
        Some(diag) => service_names_in_log(&backend.context.runner.files, diag, services.len())?,
        None => None,
    };
    let mut written = written.into_iter().flatten();
    let names = services.iter().map(|service| {
        let options = service.create_options.as_deref().unwrap_or_default();
        let image = match &service.source {
            ImageSource::Image(image) => {
                image.parse().ok().map(|r: Reference| r.base_name().to_owned())
            }
            ImageSource::Dockerfile(_) => None,
        };
        let name = service.context_name.clone().or_else(|| written.next());
        // What is wrong with the options is said when the service itself is looked at.
        let options = CreateOptions::parse(options).unwrap_or_default();
        ServiceNames::new(name.as_deref(), &options, &image.unwrap_or_default())
    });
    Ok(aliases(&names.collect::<Vec<_>>()))
}

fn start(
    backend: &EngineBackend<'_>,
    plans: &[Plan<'_>],
    pod: Option<&Pod>,
) -> Result<PrepareJobResponse, HookError> {
    let network_id = new_id()[..12].to_owned();
    let jobs = backend.jobs();
    let lent = give_back::lent(backend, plans);
    jobs.write(backend.context.runner, &network_id, &[], lent.clone())?;
    let (network, images) = std::thread::scope(|scope| {
        let network = scope.spawn(|| JobNetwork::create(backend, &network_id));
        let images = in_parallel(plans, |plan| {
            fetch::image(backend, plan).map_err(HookError::of(&plan.title))
        });
        (network.join().expect("making a network does not panic"), images)
    });
    let mut network = network?;
    let images = images.into_iter().collect::<Result<Vec<_>, _>>()?;
    let mut starting = Vec::new();
    for (plan, image) in plans.iter().zip(images) {
        let id = new_id();
        let endpoint = attach(backend, &mut network, &id, (plan, plans, &starting))?;
        starting.push(Started { plan, image, id, endpoint });
    }
    let peers: Vec<Peer> = starting.iter().filter_map(Started::peer).collect();
    jobs.write(backend.context.runner, &network_id, &peers, lent)?;
    let volumes = pod::directory(backend.engine, &network_id, "job");
    if let Some(pod) = pod {
        pod::make(backend, pod, &volumes)?;
    }
    mount_volumes(backend, plans)?;

    let count = starting.iter().filter(|one| !one.plan.is_helper()).count();
    let (asked, helpers) = starting.split_at(count);
    let within = Within { network: &network, peers: &peers, volumes: &volumes, process: None };
    let launched = if pod.is_some_and(Pod::shares_processes) {
        launch_shared(backend, asked, helpers, within)?
    } else {
        launch_helpers(backend, helpers, within)?;
        launch_all(backend, asked, within)?
    };
    wait_until_healthy(backend, asked, &launched)?;

    let has_job = asked.first().is_some_and(|first| first.plan.role == Role::Job);
    let (job, services) = asked.split_at(usize::from(has_job));
    let state = JobState::new(
        job.first().map(|job| job.id.clone()),
        services.iter().map(|service| service.id.clone()).collect(),
    );
    Ok(PrepareJobResponse {
        state: state.to_json(),
        is_alpine: launched.first().is_some_and(|launched| has_job && launched.is_alpine),
        context: JobContext {
            container: job
                .first()
                .map(|job| ContainerContext { id: job.id.clone(), network: network_id.clone() }),
            services: services
                .iter()
                .map(|service| ServiceContext {
                    id: service.id.clone(),
                    network: network_id.clone(),
                    ports: service.ports(),
                })
                .collect(),
        },
    })
}

/// Connects a container. Those that only the template has share the end of the job container or, in
/// a job without one, that of the first of them.
fn attach(
    backend: &EngineBackend<'_>,
    network: &mut JobNetwork,
    id: &str,
    (plan, plans, connected): (&Plan<'_>, &[Plan<'_>], &[Started<'_>]),
) -> Result<Option<Endpoint>, HookError> {
    if !plan.is_connected() {
        return Ok(None);
    }
    let is_in_pod = |plan: &Plan<'_>| plan.is_helper() || plan.role == Role::Job;
    let mut ports = plan.ports.clone();
    if is_in_pod(plan) {
        let same = connected.iter().find(|other| is_in_pod(other.plan));
        if let Some(same) = same {
            return Ok(same.endpoint.clone());
        }
        let others = plans.iter().filter(|other| other.is_helper() && !std::ptr::eq(*other, plan));
        ports.extend(others.flat_map(|other| other.ports.iter().cloned()));
    }
    let endpoint = network.attach(id, ports).map_err(HookError::of(&plan.title))?;
    audit::ports(backend, &plan.title, id, &endpoint)?;
    Ok(Some(endpoint))
}

fn launch_all(
    backend: &EngineBackend<'_>,
    containers: &[Started<'_>],
    within: Within<'_>,
) -> Result<Vec<Launched>, HookError> {
    let launched = in_parallel(containers, |container| {
        launch(backend, container, within).map_err(HookError::of(&container.plan.title))
    });
    launched.into_iter().collect()
}

/// Starts the job container first: its first process, which is ours, is the one that the others
/// share the process namespace of.
fn launch_shared(
    backend: &EngineBackend<'_>,
    asked: &[Started<'_>],
    helpers: &[Started<'_>],
    within: Within<'_>,
) -> Result<Vec<Launched>, HookError> {
    let has_job = asked.first().is_some_and(|first| first.plan.role == Role::Job);
    let (job, services) = asked.split_at(usize::from(has_job));
    let mut launched = launch_all(backend, job, within)?;
    let process = launched.first().and_then(|job| job.record.process).map(|process| process.pid);
    launch_helpers(backend, helpers, Within { process, ..within })?;
    launched.extend(launch_all(backend, services, within)?);
    Ok(launched)
}

impl Started<'_> {
    /// Returns how others reach the container; none if it is gone by the time they could.
    fn peer(&self) -> Option<Peer> {
        let addresses = self.endpoint.as_ref().map(|endpoint| endpoint.addresses.clone());
        let peer =
            || Peer { names: self.plan.names.clone(), addresses: addresses.unwrap_or_default() };
        (self.plan.role != Role::Init).then(peer)
    }

    /// Returns the host's port for each published one of the container, without protocols: the
    /// runner has no place for them. Of a port published twice, the first is shown.
    fn ports(&self) -> BTreeMap<String, String> {
        let mut ports = BTreeMap::new();
        for published in self.endpoint.iter().flat_map(|endpoint| &endpoint.published) {
            ports
                .entry(published.container_port.to_string())
                .or_insert_with(|| published.host_port.to_string());
        }
        ports
    }
}
