//! `run_container_step`: a container action, from its start to its end.

use std::process::ExitStatus;

use super::audit;
use super::cleanup_job;
use super::error::HookError;
use super::fetch;
use super::give_back;
use super::hook::{Hook, Outcome};
use super::launch::{Started, Within, in_parallel, launch_helpers, prepare};
use super::network::{JobNetwork, Peer};
use super::plan::{Asked, Plan};
use super::pod::{self, Pod};
use super::prepare_job::helper_plan;
use super::request::ContainerArgs;
use crate::container::{Record, Role, new_id};
use crate::image::Image;

pub(super) fn run(
    hook: &Hook<'_>,
    step: &ContainerArgs,
    pass_on: &dyn Fn(u32),
) -> Result<Outcome, HookError> {
    let owner = hook.runner.owner();
    let jobs = hook.jobs();
    let pod = Pod::of_step(hook, step)?;
    let plans = plan(hook, step, pod.as_ref())?;
    let images =
        in_parallel(&plans, |plan| fetch::image(hook, plan).map_err(HookError::of(&plan.title)));
    let images = images.into_iter().collect::<Result<Vec<_>, _>>()?;

    let _lock = jobs.lock(&owner)?;
    // A step of a job without containers has a network to itself.
    let job = jobs.read(&owner)?;
    let is_alone = job.is_none();
    let mut network = match &job {
        Some(job) => JobNetwork::open(hook, &job.network)?,
        None => {
            let id = new_id()[..12].to_owned();
            jobs.write(hook.runner, &id, &[], give_back::lent(hook, &plans))?;
            JobNetwork::create(hook, &id)?
        }
    };
    let peers = job.map(|job| job.peers).unwrap_or_default();
    let ids: Vec<_> = plans.iter().map(|_| new_id()).collect();
    let parts = plans.iter().zip(images).zip(&ids).map(|((plan, image), id)| (plan, image, id));
    let result = hook
        .mount_volumes(&plans)
        .and_then(|()| run_in(hook, parts.collect(), pod.as_ref(), &mut network, &peers, pass_on));
    let cleaned = if is_alone {
        cleanup_job::remove_all(hook)
    } else {
        remove(hook, &ids, pod.as_ref(), &mut network)
    };
    // The step's own failure is what people want to hear of.
    let status = result?;
    cleaned?;
    Ok(Outcome::Ended(status))
}

/// Checks everything that was asked for: the step comes first, then what only the template has.
fn plan<'a>(
    hook: &Hook<'_>,
    step: &'a ContainerArgs,
    pod: Option<&'a Pod>,
) -> Result<Vec<Plan<'a>>, HookError> {
    let overlay = pod.and_then(|pod| pod.main.as_ref());
    let asked = Asked { args: step, role: Role::Step, names: Vec::new(), overlay };
    let mut plans = vec![Plan::new(hook, asked)?];
    let mode = plans[0].network_mode();
    for helper in pod.map_or(&[][..], |pod| &pod.helpers) {
        plans.push(helper_plan(hook, helper, Some(mode))?);
    }
    Ok(plans)
}

fn run_in(
    hook: &Hook<'_>,
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
        audit::ports(hook, &plan.title, id, &endpoint)?;
        Some(endpoint)
    } else {
        None
    };
    let volumes = pod::directory(hook.engine, network.id(), &id[..12]);
    if let Some(pod) = pod {
        pod::make(hook, pod, &volumes)?;
    }
    let starting = parts.into_iter().map(|(plan, image, id)| Started {
        plan,
        image,
        id: id.clone(),
        endpoint: endpoint.clone(),
    });
    let starting: Vec<_> = starting.collect();
    let within = Within { network, peers, volumes: &volumes, process: None };
    launch_helpers(hook, &starting[1..], within)?;
    let prepared = prepare(hook, &starting[0], within).map_err(of_step())?;
    let ran = prepared.run(pass_on).map_err(HookError::from).map_err(of_step())?;
    for hit in ran.limits_hit {
        hook.log.warning(&format!("{} {hit}", plan.title));
    }
    Ok(ran.status)
}

/// Removes what a step of a job had for itself.
fn remove(
    hook: &Hook<'_>,
    ids: &[String],
    pod: Option<&Pod>,
    network: &mut JobNetwork,
) -> Result<(), HookError> {
    let records = ids[1..].iter().filter_map(|id| hook.engine.directory(id).read().ok());
    let records: Vec<Record> = records.collect();
    for record in &records {
        cleanup_job::report_limits(hook, record);
    }
    for problem in hook.engine.stop_all(&records) {
        hook.log.warning(&problem);
    }
    hook.engine.remove_all(&records)?;
    if pod.is_some() {
        pod::remove(hook.engine, network.id(), Some(&ids[0][..12]))?;
    }
    network.detach(&ids[0])
}
