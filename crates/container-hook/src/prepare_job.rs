//! `prepare_job`: starts the job container and the services, and waits until they are healthy.

use std::collections::BTreeMap;

use container_hook_job::HookError;
use container_hook_job::options::CreateOptions;
use container_hook_job::plan::{ContainerRequest, JobRequest, PlanRole};
use container_hook_job::request::{ImageSource, PrepareJob};
use container_hook_job::response::{ContainerContext, JobContext, PrepareJobResponse};
use container_hook_job::service_names;
use container_hook_job::{JobState, StepAccess};
use oci_hooks_engine::container::{new_id, step_directory};
use oci_hooks_engine::network::{Network, NetworkEndpoint};
use oci_hooks_files::error::chain;
use oci_hooks_host::thread::spawn_or_call;

use super::audit;
use super::backend::EngineBackend;
use super::job::Peer;
use super::launch::{
    LaunchedContainer, launch_all, launch_helpers, launch_until_healthy, map_in_parallel,
    mount_volumes, wait_until_healthy,
};
use super::network::JobNetwork;
use super::plan::{LaunchContext, LaunchPlan, PendingContainer};
use super::pod::{self, TemplatePod};
use super::{cleanup_job, confine, fetch, ownership};
use super::{services, unenforced};

pub(super) fn run(
    backend: &EngineBackend<'_>,
    job: &PrepareJob,
) -> Result<Option<PrepareJobResponse>, HookError> {
    let request = JobRequest::new(&backend.context, job);
    let names = request.services.iter().map(|service| service.names.clone()).collect();
    let pod = TemplatePod::of_job(backend, job, names)?;
    let plans = plan(backend, request, pod.as_ref())?;
    unenforced::log_ineffective_options(
        backend.context.log,
        plans.iter().map(|plan| &plan.container),
    );
    unenforced::report(backend, &plans)?;
    cleanup_job::remove_predecessors(backend)?;
    let _lock = backend.jobs().lock(&backend.context.runner.owner())?;
    // Removes leftovers of an earlier job whose cleanup did not run.
    cleanup_job::remove_all(backend)?;
    if plans.is_empty() {
        return Ok(None);
    }
    let started = start(backend, &plans, pod.as_ref()).inspect_err(|_| {
        // The first error is returned. If the cleanup fails, the next call tries again.
        let told = cleanup_job::report_limits_of_job(backend)
            .and_then(|()| services::log_ended_services(backend, "before the job was ready"))
            .and_then(|_| services::show_all(backend));
        if let Err(also) = told.and(cleanup_job::remove_all(backend)) {
            backend.context.log.warning(&chain(&also));
        }
    });
    started.map(Some)
}

/// Checks the request and the template, and creates no container.
pub(super) fn check(backend: &EngineBackend<'_>, job: &PrepareJob) -> Result<(), HookError> {
    let request = JobRequest::new(&backend.context, job);
    let names = request.services.iter().map(|service| service.names.clone()).collect();
    let pod = TemplatePod::of_job(backend, job, names)?;
    plan(backend, request, pod.as_ref()).map(drop)
}

/// Checks the request and plans its containers: the job container, if the job has one, then the services, then
/// the containers that only the template has.
fn plan<'a>(
    backend: &EngineBackend<'_>,
    request: JobRequest<'a>,
    pod: Option<&'a TemplatePod>,
) -> Result<Vec<LaunchPlan<'a>>, HookError> {
    let JobRequest { container, services } = request;
    let job = container.map(|mut container| {
        container.names = names_of_job(container.options.as_ref().ok(), &services);
        LaunchPlan::new(backend, container, pod.and_then(|pod| pod.main.as_ref()))
    });
    let has_job = job.is_some();
    let services = services.into_iter().enumerate().map(|(at, service)| {
        LaunchPlan::new(backend, service, pod.and_then(|pod| pod.services.get(at)))
    });
    let mut plans = HookError::collect(job.into_iter().chain(services))?;
    let mode = plans.first().filter(|_| has_job).map(LaunchPlan::network_mode);
    // Template containers help those of the request, and are useless without them.
    let helpers = pod.filter(|_| !plans.is_empty()).map_or(&[][..], |pod| &pod.helpers);
    for helper in helpers {
        plans.push(LaunchPlan::of_helper(backend, helper, mode)?);
    }
    for LaunchPlan { container, .. } in &plans {
        let checked = Network::check_ports(backend.network, &container.ports);
        checked.map_err(HookError::from).map_err(HookError::of(&container.title))?;
    }
    Ok(plans)
}

/// Returns the host names that `options:` gives the job container, without names that a service has.
fn names_of_job(options: Option<&CreateOptions>, services: &[ContainerRequest<'_>]) -> Vec<String> {
    let names = options.into_iter().flat_map(|options| {
        options.network.aliases.iter().chain(&options.name).chain(&options.hostname)
    });
    let is_taken = |name: &String| services.iter().any(|service| service.names.contains(name));
    names.filter(|name| service_names::is_allowed(name) && !is_taken(name)).cloned().collect()
}

fn start(
    backend: &EngineBackend<'_>,
    plans: &[LaunchPlan<'_>],
    pod: Option<&TemplatePod>,
) -> Result<PrepareJobResponse, HookError> {
    let network_id = new_id()[..12].to_owned();
    let jobs = backend.jobs();
    let writable = ownership::writable_directories(backend, plans);
    ownership::record(backend.engine, &writable)?;
    jobs.write(backend.context.runner, &network_id, &[], writable.clone())?;
    let ids: Vec<_> = plans.iter().map(|_| new_id()).collect();
    // The network is created while images are pulled.
    let (connected, images) = std::thread::scope(|scope| {
        let connected = spawn_or_call(scope, || connect(backend, plans, &ids, &network_id));
        let images = map_in_parallel(plans, |plan| {
            fetch::image(backend, plan).map_err(HookError::of(&plan.container.title))
        });
        (connected.join(), images)
    });
    let (network, endpoints) = connected?;
    let images = images.into_iter().collect::<Result<Vec<_>, _>>()?;
    let pending = plans.iter().zip(images).zip(ids.into_iter().zip(endpoints));
    let pending = pending.map(|((plan, image), (id, endpoint))| PendingContainer {
        plan,
        image,
        id,
        endpoint,
    });
    let pending: Vec<_> = pending.collect();
    let peers: Vec<Peer> = pending.iter().filter_map(PendingContainer::peer).collect();
    jobs.write(backend.context.runner, &network_id, &peers, writable)?;
    let volumes = pod::directory(backend.engine, &network_id, "job");
    if let Some(pod) = pod {
        pod::make(pod, &volumes)?;
    }
    mount_volumes(backend, plans)?;

    let count = pending.iter().filter(|one| !one.plan.container.role.is_helper()).count();
    let (asked, helpers) = pending.split_at(count);
    let context =
        LaunchContext { network: &network, peers: &peers, volumes: &volumes, process: None };
    let launched = if pod.is_some_and(TemplatePod::shares_processes) {
        let launched = launch_shared(backend, asked, helpers, context)?;
        wait_until_healthy(backend, asked, launched)?
    } else {
        launch_helpers(backend, helpers, context)?;
        launch_until_healthy(backend, asked, context)?
    };
    services::report_names(backend, asked);
    services::report_ended(backend, "before the job's steps")?;

    Ok(answer(backend, &network_id, asked, &launched))
}

/// Returns the response to the runner about the started containers.
fn answer(
    backend: &EngineBackend<'_>,
    network_id: &str,
    asked: &[PendingContainer<'_>],
    launched: &[LaunchedContainer],
) -> PrepareJobResponse {
    let has_job = asked.first().is_some_and(|first| first.plan.container.role == PlanRole::Job);
    let (job, services) = asked.split_at(usize::from(has_job));
    let takes_steps = launched.first().is_some_and(|first| first.record.steps.is_some());
    let steps = takes_steps.then(|| StepAccess {
        directory: step_directory(&backend.engine.run),
        owner: backend.context.runner.owner(),
        shares_directories: launched.first().is_some_and(|first| first.shares_directories),
        denied_by: confine::nesting_denied_by(backend),
    });
    let state = JobState::new(
        job.first().map(|job| job.id.clone()),
        services.iter().map(|service| service.id.clone()).collect(),
        steps,
    );
    let container_context = |container: &PendingContainer<'_>| ContainerContext {
        id: container.id.clone(),
        image: container.image_name(),
        network: network_id.to_owned(),
        context_name: container.plan.container.args.context_name.clone(),
        ports: container.ports(),
    };
    PrepareJobResponse {
        state: state.to_json(),
        is_alpine: launched.first().is_some_and(|launched| has_job && launched.is_alpine),
        context: JobContext {
            container: job
                .first()
                .map(|job| ContainerContext { context_name: None, ..container_context(job) }),
            services: services.iter().map(container_context).collect(),
        },
    }
}

/// Creates the network of a job and connects its containers. Template containers share the endpoint of the job
/// container or, in a job without one, of the first template container.
fn connect(
    backend: &EngineBackend<'_>,
    plans: &[LaunchPlan<'_>],
    ids: &[String],
    network_id: &str,
) -> Result<(JobNetwork, Vec<Option<NetworkEndpoint>>), HookError> {
    let network = JobNetwork::create(backend, network_id, plans)?;
    let is_helper = |plan: &&LaunchPlan<'_>| plan.container.role.is_helper();
    let is_in_pod =
        |plan: &LaunchPlan<'_>| is_helper(&plan) || plan.container.role == PlanRole::Job;
    let (mut owners, mut ends) = (Vec::new(), Vec::new());
    // Index of the shared endpoint; `which` has the endpoint of each container, if connected.
    let mut of_pod = None;
    let which: Vec<Option<usize>> = plans
        .iter()
        .enumerate()
        .map(|(at, plan)| {
            let is_in_pod = is_in_pod(plan);
            if !plan.is_connected() || is_in_pod && of_pod.is_some() {
                return of_pod.filter(|_| plan.is_connected());
            }
            let mut ports = plan.container.ports.clone();
            if is_in_pod {
                // The first container of the pod publishes the ports of all its template containers.
                let helpers = plans[at + 1..].iter().filter(is_helper);
                ports.extend(helpers.flat_map(|helper| helper.container.ports.iter().cloned()));
                of_pod = Some(ends.len());
            }
            owners.push(at);
            ends.push((ids[at].as_str(), ports));
            Some(ends.len() - 1)
        })
        .collect();
    let title = |end: usize| &plans[owners[end]].container.title;
    let endpoints =
        network.attach_all(&ends).map_err(|(end, error)| HookError::of(title(end))(error))?;
    for (end, endpoint) in endpoints.iter().enumerate() {
        audit::ports(backend, title(end), ends[end].0, endpoint)?;
    }
    let endpoints = which.into_iter().map(|end| end.map(|end| endpoints[end].clone())).collect();
    Ok((network, endpoints))
}

/// Starts the containers of a job whose template sets `shareProcessNamespace`: the job container first, because the
/// template's containers join the PID namespace of its init process.
fn launch_shared(
    backend: &EngineBackend<'_>,
    asked: &[PendingContainer<'_>],
    helpers: &[PendingContainer<'_>],
    context: LaunchContext<'_>,
) -> Result<Vec<LaunchedContainer>, HookError> {
    let has_job = asked.first().is_some_and(|first| first.plan.container.role == PlanRole::Job);
    let (job, services) = asked.split_at(usize::from(has_job));
    let mut launched = launch_all(backend, job, context)?;
    let process = launched.first().and_then(|job| job.record.process).map(|process| process.pid);
    launch_helpers(backend, helpers, LaunchContext { process, ..context })?;
    launched.extend(launch_all(backend, services, context)?);
    Ok(launched)
}

impl PendingContainer<'_> {
    /// Returns the host names and addresses of the container; none for init containers, which have exited by the
    /// time other containers could connect.
    fn peer(&self) -> Option<Peer> {
        let addresses = self.endpoint.as_ref().map(|endpoint| endpoint.addresses.clone());
        let peer = || Peer {
            names: self.plan.container.names.clone(),
            addresses: addresses.unwrap_or_default(),
        };
        (self.plan.container.role != PlanRole::Init).then(peer)
    }

    /// Returns the image name as requested.
    fn image_name(&self) -> String {
        match &self.plan.container.args.source {
            ImageSource::Image(name) | ImageSource::Dockerfile(name) => name.clone(),
        }
    }

    /// Returns the host port of each published container port, without protocols, which the response has no
    /// field for. If a port is published twice, the first counts.
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
