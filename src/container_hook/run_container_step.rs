//! `run_container_step`: a container action, from its start to its end.

use super::cleanup_job;
use super::error::HookError;
use super::hook::{Hook, Outcome};
use super::network::{JobNetwork, Peer};
use super::plan::Plan;
use super::request::ContainerArgs;
use super::{fetch, prepare_job};
use crate::container::{Output, Role, Spec, new_id};

pub(super) fn run(
    hook: &Hook<'_>,
    step: &ContainerArgs,
    pass_on: &dyn Fn(u32),
) -> Result<Outcome, HookError> {
    let owner = hook.runner.owner();
    let jobs = hook.jobs();
    let plan = Plan::new(hook, step, Role::Step, Vec::new())?;
    let image = fetch::image(hook, &plan).map_err(HookError::of(&plan.title))?;

    let _lock = jobs.lock(&owner)?;
    // A step of a job without containers has a network to itself.
    let job = jobs.read(&owner)?;
    let is_alone = job.is_none();
    let mut network = match &job {
        Some(job) => JobNetwork::open(hook, &job.network)?,
        None => {
            let id = new_id()[..12].to_owned();
            jobs.write(hook.runner, &id, &[])?;
            JobNetwork::create(hook, &id)?
        }
    };
    let peers = job.map(|job| job.peers).unwrap_or_default();
    let id = new_id();
    let result = run_in(hook, &plan, &image, &id, &mut network, &peers, pass_on);
    let cleaned = if is_alone { cleanup_job::remove_all(hook) } else { network.detach(&id) };
    // The step's own failure is what people want to hear of.
    let status = result.map_err(HookError::of(&plan.title))?;
    cleaned?;
    Ok(Outcome::Ended(status))
}

fn run_in(
    hook: &Hook<'_>,
    plan: &Plan<'_>,
    image: &crate::image::Image,
    id: &str,
    network: &mut JobNetwork,
    peers: &[Peer],
    pass_on: &dyn Fn(u32),
) -> Result<std::process::ExitStatus, HookError> {
    let endpoint = if plan.is_connected() { Some(network.attach(id, plan)?) } else { None };
    let connection = network.connection(plan, endpoint.as_ref(), peers);
    let options = plan.bundle(hook, image, id, &connection)?;
    let prepared = hook.engine.prepare(Spec {
        id: id.to_owned(),
        name: plan.name(),
        owner: hook.runner.owner(),
        role: plan.role,
        image,
        options,
        network: Some(network.id().to_owned()),
        output: Output::Discard,
    })?;
    prepare_job::report(hook, plan, &prepared);
    Ok(prepared.run(pass_on)?)
}
