//! `prepare_job`: the job container and the services, started and healthy.

use std::collections::BTreeMap;

use super::aliases::{ServiceNames, aliases};
use super::alpine::is_alpine;
use super::cleanup_job;
use super::error::HookError;
use super::fetch;
use super::hook::{Hook, Outcome};
use super::network::{JobNetwork, Peer};
use super::options::CreateOptions;
use super::plan::Plan;
use super::request::{ContainerArgs, ImageSource, PrepareJob};
use super::response::{
    ContainerContext, JobContext, PrepareJobResponse, ResponseFile, ServiceContext,
};
use super::state::State;
use super::worker_log::service_names as service_names_in_log;
use crate::container::{Output, Prepared, Record, Role, Spec, Verdict, new_id};
use crate::image::{Image, Reference};
use crate::network::Endpoint;
use crate::rootfs::Backing;
use crate::sys::error::chain;

/// How many of the last lines of a service are shown when it does not come up.
const SHOWN_LINES: usize = 100;

pub(super) fn run(
    hook: &Hook<'_>,
    job: &PrepareJob,
    response: Option<ResponseFile>,
) -> Result<Outcome, HookError> {
    let plans = plan(hook, job)?;
    let _lock = hook.jobs().lock(&hook.runner.owner())?;
    // What an earlier job left whose cleanup did not run.
    cleanup_job::remove_all(hook)?;
    if plans.is_empty() {
        return Ok(Outcome::Done);
    }
    let answered = start(hook, &plans).and_then(|answer| match response {
        Some(response) => Ok(response.write(&answer)?),
        None => Ok(()),
    });
    if let Err(error) = answered {
        // The first error is what people have to hear of; the next call tries again.
        if let Err(also) = cleanup_job::remove_all(hook) {
            hook.log.warning(&chain(&also));
        }
        return Err(error);
    }
    Ok(Outcome::Done)
}

/// Checks everything that was asked for. The job container comes first, if there is one.
fn plan<'a>(hook: &Hook<'_>, job: &'a PrepareJob) -> Result<Vec<Plan<'a>>, HookError> {
    let names = service_names(hook, &job.services)?;
    let container = job.container.iter().map(|args| Plan::new(hook, args, Role::Job, Vec::new()));
    let services = job.services.iter().zip(names);
    let services = services.map(|(args, names)| Plan::new(hook, args, Role::Service, names));
    container.chain(services).collect()
}

/// Returns the names of each service.
fn service_names(
    hook: &Hook<'_>,
    services: &[ContainerArgs],
) -> Result<Vec<Vec<String>>, HookError> {
    let written = match &hook.runner.diag {
        Some(diag) => service_names_in_log(diag, services.len())?,
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

/// A container on its way.
struct Started<'a> {
    plan: &'a Plan<'a>,
    image: Image,
    id: String,
    endpoint: Option<Endpoint>,
}

fn start(hook: &Hook<'_>, plans: &[Plan<'_>]) -> Result<PrepareJobResponse, HookError> {
    let network_id = new_id()[..12].to_owned();
    let jobs = hook.jobs();
    jobs.write(hook.runner, &network_id, &[])?;
    let (network, images) = std::thread::scope(|scope| {
        let network = scope.spawn(|| JobNetwork::create(hook, &network_id));
        let images =
            in_parallel(plans, |plan| fetch::image(hook, plan).map_err(HookError::of(&plan.title)));
        (network.join().expect("making a network does not panic"), images)
    });
    let mut network = network?;
    let mut starting = Vec::new();
    for (plan, image) in plans.iter().zip(images) {
        let id = new_id();
        let endpoint = if plan.is_connected() {
            Some(network.attach(&id, plan).map_err(HookError::of(&plan.title))?)
        } else {
            None
        };
        starting.push(Started { plan, image: image?, id, endpoint });
    }
    let peers: Vec<Peer> = starting.iter().map(Started::peer).collect();
    jobs.write(hook.runner, &network_id, &peers)?;

    let started = in_parallel(&starting, |container| {
        launch(hook, container, &network, &network_id, &peers)
            .map_err(HookError::of(&container.plan.title))
    });
    let launched = started.into_iter().collect::<Result<Vec<_>, _>>()?;
    wait_until_healthy(hook, &starting, &launched)?;

    let has_job = starting.first().is_some_and(|first| first.plan.role == Role::Job);
    let (job, services) = starting.split_at(usize::from(has_job));
    let state = State::new(
        job.first().map(|job| job.id.clone()),
        services.iter().map(|service| service.id.clone()).collect(),
    );
    Ok(PrepareJobResponse {
        state: state.to_json(),
        is_alpine: launched.first().is_some_and(|(_, is_alpine)| has_job && *is_alpine),
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

/// Starts one container; says also whether it is Alpine.
fn launch(
    hook: &Hook<'_>,
    container: &Started<'_>,
    network: &JobNetwork,
    network_id: &str,
    peers: &[Peer],
) -> Result<(Record, bool), HookError> {
    let Started { plan, image, id, endpoint } = container;
    let connection = network.connection(plan, endpoint.as_ref(), peers);
    let options = plan.bundle(hook, image, id, &connection)?;
    let prepared = hook.engine.prepare(Spec {
        id: id.clone(),
        name: plan.name(),
        owner: hook.runner.owner(),
        role: plan.role,
        image,
        options,
        network: Some(network_id.to_owned()),
        output: match plan.role {
            // Ours, which says nothing, unless somebody named another program.
            Role::Job if plan.args.entry_point.is_none() => Output::Discard,
            _ => Output::Log { bytes: hook.settings.log_bytes },
        },
    })?;
    report(hook, plan, &prepared);
    let is_alpine = plan.role == Role::Job && is_alpine(&prepared.rootfs.path);
    Ok((prepared.start()?, is_alpine))
}

/// Says what people should know of a container that is about to start.
pub(super) fn report(hook: &Hook<'_>, plan: &Plan<'_>, prepared: &Prepared<'_>) {
    if let Backing::Copy { reason } = &prepared.rootfs.backing {
        hook.log.warning(&format!(
            "{}: the image is copied, which takes time and space, because there is no overlay: {reason}",
            plan.title
        ));
    }
    for warning in &prepared.bundle.warnings {
        hook.log.warning(&format!("{}: {warning}", plan.title));
    }
    for problem in &prepared.bundle.problems {
        hook.log.warning(&format!("{}: {problem}", plan.title));
    }
    for file in &prepared.bundle.hooks {
        hook.log.debug(&format!("{}: gets the hook of {}", plan.title, file.display()));
    }
    for text in &prepared.bundle.said {
        hook.log.output(&plan.name(), text.as_bytes());
    }
}

/// Waits for all containers that say how their health is found out, all at once.
fn wait_until_healthy(
    hook: &Hook<'_>,
    containers: &[Started<'_>],
    launched: &[(Record, bool)],
) -> Result<(), HookError> {
    let all: Vec<_> = containers.iter().zip(launched).collect();
    let results = in_parallel(&all, |(container, (record, _))| {
        let Some(health) = container.plan.health(&container.image.config) else { return Ok(None) };
        let verdict = hook.engine.wait_until_healthy(record, &health)?;
        Ok(unhealthy(hook, container.plan, verdict))
    });
    let mut problems = Vec::new();
    for ((container, (record, _)), result) in all.iter().zip(results) {
        let result: Result<Option<String>, HookError> = result;
        let Some(problem) = result.map_err(HookError::of(&container.plan.title))? else { continue };
        problems.push(problem);
        hook.log.group(&format!("Last output of {}", container.plan.title));
        let lines = hook.engine.logs(record, SHOWN_LINES)?;
        let texts: Vec<_> = lines.into_iter().map(|line| line.text).collect();
        hook.log.output(&container.plan.name(), &texts.join(&b'\n'));
        hook.log.end_group();
    }
    if problems.is_empty() { Ok(()) } else { Err(HookError::Unhealthy(problems)) }
}

/// Says how it went; returns what is wrong, if anything is.
fn unhealthy(hook: &Hook<'_>, plan: &Plan<'_>, verdict: Verdict) -> Option<String> {
    match verdict {
        Verdict::Healthy { after } => {
            hook.log.line(&format!("{} is healthy after {} ms", plan.title, after.as_millis()));
            None
        }
        Verdict::Unhealthy { checks, last } => Some(format!(
            "{} is unhealthy: {checks} checks failed, the last with {last}",
            plan.title
        )),
        Verdict::Ended { code: Some(code) } => {
            Some(format!("{} ended with code {code} before it was healthy", plan.title))
        }
        Verdict::Ended { code: None } => {
            Some(format!("{} ended before it was healthy", plan.title))
        }
    }
}

impl Started<'_> {
    fn peer(&self) -> Peer {
        let addresses = self.endpoint.as_ref().map(|endpoint| endpoint.addresses.clone());
        Peer { names: self.plan.names.clone(), addresses: addresses.unwrap_or_default() }
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

/// Does the same for each, all at once, and returns the results in order.
fn in_parallel<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    if let [item] = items {
        return vec![work(item)];
    }
    std::thread::scope(|scope| {
        let threads: Vec<_> = items.iter().map(|item| scope.spawn(|| work(item))).collect();
        let results = threads.into_iter().map(|thread| thread.join());
        results.map(|result| result.expect("work does not panic")).collect()
    })
}
