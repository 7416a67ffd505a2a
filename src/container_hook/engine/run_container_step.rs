//! `run_container_step`: a container action, from its start to its end.

use std::process::ExitStatus;

use super::audit;
use super::backend::EngineBackend;
use super::cleanup_job;
use super::fetch;
use super::give_back;
use super::launch::{Started, Within, in_parallel, launch_helpers, mount_volumes, prepare};
use super::network::{JobNetwork, Peer};
use super::plan::{Asked, Plan};
use super::pod::{self, Pod};
use super::prepare_job::helper_plan;
use crate::container::{Record, Role, new_id};
use crate::container_hook::error::HookError;
use crate::container_hook::request::ContainerArgs;
use crate::image::Image;

pub(super) fn run(
    backend: &EngineBackend<'_>,
    step: &ContainerArgs,
    pass_on: &dyn Fn(u32),
) -> Result<ExitStatus, HookError> {
    let owner = backend.context.runner.owner();
    let jobs = backend.jobs();
    let pod = Pod::of_step(backend, step)?;
    let plans = plan(backend, step, pod.as_ref())?;
    let images =
        in_parallel(&plans, |plan| fetch::image(backend, plan).map_err(HookError::of(&plan.title)));
    let images = images.into_iter().collect::<Result<Vec<_>, _>>()?;

    let _lock = jobs.lock(&owner)?;
    // A step of a job without containers has a network to itself.
    let job = jobs.read(&owner)?;
    let is_alone = job.is_none();
    let mut network = match &job {
        Some(job) => JobNetwork::open(backend, &job.network)?,
        None => {
            let id = new_id()[..12].to_owned();
            jobs.write(backend.context.runner, &id, &[], give_back::lent(backend, &plans))?;
            JobNetwork::create(backend, &id)?
        }
    };
    let peers = job.map(|job| job.peers).unwrap_or_default();
    let ids: Vec<_> = plans.iter().map(|_| new_id()).collect();
    let parts = plans.iter().zip(images).zip(&ids).map(|((plan, image), id)| (plan, image, id));
    let result = mount_volumes(backend, &plans).and_then(|()| {
        run_in(backend, parts.collect(), pod.as_ref(), &mut network, &peers, pass_on)
    });
    let cleaned = if is_alone {
        cleanup_job::remove_all(backend)
    } else {
        remove(backend, &ids, pod.as_ref(), &mut network)
    };
    // The step's own failure is what people want to hear of.
    let status = result?;
    cleaned?;
    Ok(status)
}

/// Checks everything that was asked for: the step comes first, then what only the template has.
fn plan<'a>(
    backend: &EngineBackend<'_>,
    step: &'a ContainerArgs,
    pod: Option<&'a Pod>,
) -> Result<Vec<Plan<'a>>, HookError> {
    let overlay = pod.and_then(|pod| pod.main.as_ref());
    let asked = Asked { args: step, role: Role::Step, names: Vec::new(), overlay };
    let mut plans = vec![Plan::new(backend, asked)?];
    let mode = plans[0].network_mode();
    for helper in pod.map_or(&[][..], |pod| &pod.helpers) {
        plans.push(helper_plan(backend, helper, Some(mode))?);
    }
    Ok(plans)
}

fn run_in(
    backend: &EngineBackend<'_>,
    parts: Vec<(&Plan<'_>, Image, &String)>,
    pod: Option<&Pod>,
    network: &mut JobNetwork,
    peers: &[Peer],
    pass_on: &dyn Fn(u32),
) -> Result<ExitStatus, HookError> {
    let (plan, id) = (parts[0].0, parts[0].2);
    let of_step = || HookError::of(&plan.title);
    let endpoint = if plan.is_connected() {
        let ports = parts.iter().flat_map(|(plan, ..)| plan.ports.iter().cloned()).collect();
        let endpoint = network.attach(id, ports).map_err(of_step())?;
        audit::ports(backend, &plan.title, id, &endpoint)?;
        Some(endpoint)
    } else {
        None
    };
    let volumes = pod::directory(backend.engine, network.id(), &id[..12]);
    if let Some(pod) = pod {
        pod::make(backend, pod, &volumes)?;
    }
    let starting = parts.into_iter().map(|(plan, image, id)| Started {
        plan,
        image,
        id: id.clone(),
        endpoint: endpoint.clone(),
    });
    let starting: Vec<_> = starting.collect();
    let within = Within { network, peers, volumes: &volumes, process: None };
    launch_helpers(backend, &starting[1..], within)?;
    let prepared = prepare(backend, &starting[0], within).map_err(of_step())?;
    let ran = prepared.run(pass_on).map_err(HookError::from).map_err(of_step())?;
    for hit in ran.limits_hit {
        backend.context.log.warning(&format!("{} {hit}", plan.title));
    }
    Ok(ran.status)
}

/// Removes what a step of a job had for itself.
fn remove(
    backend: &EngineBackend<'_>,
    ids: &[String],
    pod: Option<&Pod>,
    network: &mut JobNetwork,
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
