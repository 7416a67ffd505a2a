//! Starting the containers of a job or a step, and waiting until they are fit for it.

use std::path::Path;
use std::time::Duration;

use super::alpine::is_alpine;
use super::audit;
use super::backend::EngineBackend;
use super::cleanup_job::report_limits;
use super::network::{JobNetwork, Peer};
use super::plan::{Plan, Surroundings};
use super::pod;
use crate::container::{Prepared, Record, Role, Spec, Verdict, Wait};
use crate::container_hook::error::HookError;
use crate::image::Image;
use crate::network::Endpoint;
use crate::rootfs::Backing;

/// How many of the last lines of a container are shown when it does not come up.
const SHOWN_LINES: usize = 100;

/// How long an init container may take: longer than the runner lets any job.
const LONGEST: Duration = Duration::from_secs(35 * 24 * 3600);

/// A container on its way.
pub(super) struct Started<'a> {
    pub(super) plan: &'a Plan<'a>,
    pub(super) image: Image,
    pub(super) id: String,
    pub(super) endpoint: Option<Endpoint>,
}

/// What all containers of a job or step are started in.
#[derive(Clone, Copy)]
pub(super) struct Within<'a> {
    pub(super) network: &'a JobNetwork,
    pub(super) peers: &'a [Peer],
    /// Where the volumes of the pod are.
    pub(super) volumes: &'a Path,
    /// The process whose process namespace all but the first share.
    pub(super) process: Option<u32>,
}

/// A container that runs.
pub(super) struct Launched {
    pub(super) record: Record,
    pub(super) is_alpine: bool,
}

/// Makes the volumes with names available to containers that have some.
pub(super) fn mount_volumes(
    backend: &EngineBackend<'_>,
    plans: &[Plan<'_>],
) -> Result<(), HookError> {
    if plans.iter().any(Plan::has_named_volumes) {
        let limit_bytes = backend.settings.volumes_bytes;
        backend.engine.mount_volumes(&backend.context.runner.owner(), limit_bytes)?;
    }
    Ok(())
}

/// Makes a container, short of its start.
pub(super) fn prepare<'h>(
    backend: &EngineBackend<'h>,
    container: &Started<'_>,
    within: Within<'_>,
) -> Result<Prepared<'h>, HookError> {
    let Started { plan, image, id, endpoint } = container;
    let surroundings = Surroundings {
        connection: within.network.connection(plan, endpoint.as_ref(), within.peers),
        volumes: within.volumes,
        process: within.process,
        user_namespace: within.network.user_namespace(),
        private_ids: within.network.private_ids(),
    };
    let options = plan.bundle(backend, image, id, &surroundings)?;
    let runtime = plan.overlay.map(|overlay| overlay.runtime(backend)).transpose()?.flatten();
    let program = &runtime.as_ref().unwrap_or(&backend.engine.runtime).program;
    audit::container(backend, container, &options, program)?;
    let prepared = backend.engine.prepare(Spec {
        id: id.clone(),
        name: plan.name(),
        owner: backend.context.runner.owner(),
        role: plan.role,
        image,
        layers: Vec::new(),
        disk_bytes: backend.settings.disk_bytes,
        options,
        network: Some(within.network.id().to_owned()),
        output: plan.output(backend),
        runtime,
        stop: plan.stop(image, container.address())?,
    })?;
    report(backend, plan, &prepared);
    Ok(prepared)
}

/// Starts one container.
pub(super) fn launch(
    backend: &EngineBackend<'_>,
    container: &Started<'_>,
    within: Within<'_>,
) -> Result<Launched, HookError> {
    let plan = container.plan;
    let prepared = prepare(backend, container, within)?;
    let is_alpine = plan.role == Role::Job && is_alpine(&prepared.rootfs.path);
    let record = prepared.start()?;
    if let Some(overlay) = plan.overlay
        && let Some(action) = overlay.post_start(container.address())?
        && let Err(how) = backend.engine.check(&record, &action, pod::POST_START)?
    {
        return Err(overlay.post_start_failed(&how).into());
    }
    Ok(Launched { record, is_alpine })
}

/// Starts what the template has besides the request's containers, one after another: init containers
/// are waited for until they have ended, sidecars until they are healthy.
pub(super) fn launch_helpers(
    backend: &EngineBackend<'_>,
    helpers: &[Started<'_>],
    within: Within<'_>,
) -> Result<(), HookError> {
    for helper in helpers {
        launch_helper(backend, helper, within).map_err(HookError::of(&helper.plan.title))?;
    }
    Ok(())
}

fn launch_helper(
    backend: &EngineBackend<'_>,
    helper: &Started<'_>,
    within: Within<'_>,
) -> Result<(), HookError> {
    let Launched { record, .. } = launch(backend, helper, within)?;
    if helper.plan.role == Role::Sidecar {
        return match check_health(backend, helper, &record)? {
            Some(problem) => Err(HookError::Unhealthy(vec![problem])),
            None => Ok(()),
        };
    }
    let code = match backend.engine.wait(&record, LONGEST)? {
        Wait::Ended { code } => code,
        Wait::Running => None,
    };
    report_limits(backend, &record);
    if code != Some(0) {
        show_output(backend, helper.plan, &record)?;
        return Err(HookError::Init { container: helper.plan.title.clone(), code });
    }
    Ok(backend.engine.remove(&record)?)
}

/// Waits for all containers that say how their health is found out, all at once.
pub(super) fn wait_until_healthy(
    backend: &EngineBackend<'_>,
    containers: &[Started<'_>],
    launched: &[Launched],
) -> Result<(), HookError> {
    let all: Vec<_> = containers.iter().zip(launched).collect();
    let results = in_parallel(&all, |(container, launched)| {
        check_health(backend, container, &launched.record)
            .map_err(HookError::of(&container.plan.title))
    });
    let problems: Vec<_> = results.into_iter().collect::<Result<_, _>>()?;
    let problems: Vec<_> = problems.into_iter().flatten().collect();
    if problems.is_empty() { Ok(()) } else { Err(HookError::Unhealthy(problems)) }
}

/// Waits until a container is healthy; returns what is wrong and shows what it wrote, if it is not.
fn check_health(
    backend: &EngineBackend<'_>,
    container: &Started<'_>,
    record: &Record,
) -> Result<Option<String>, HookError> {
    let plan = container.plan;
    for health in plan.health(&container.image.config, container.address())? {
        let verdict = backend.engine.wait_until_healthy(record, &health)?;
        if let Some(problem) = unhealthy(backend, plan, verdict) {
            show_output(backend, plan, record)?;
            return Ok(Some(problem));
        }
    }
    Ok(None)
}

/// Says how it went; returns what is wrong, if anything is.
fn unhealthy(backend: &EngineBackend<'_>, plan: &Plan<'_>, verdict: Verdict) -> Option<String> {
    match verdict {
        Verdict::Healthy { after } => {
            backend.context.log.line(&format!(
                "{} is healthy after {} ms",
                plan.title,
                after.as_millis()
            ));
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

fn show_output(
    backend: &EngineBackend<'_>,
    plan: &Plan<'_>,
    record: &Record,
) -> Result<(), HookError> {
    let lines = backend.engine.logs(record, SHOWN_LINES)?;
    let texts: Vec<_> = lines.into_iter().map(|line| line.text).collect();
    backend.context.log.group(&format!("Last output of {}", plan.title));
    backend.context.log.output(&plan.name(), &texts.join(&b'\n'));
    backend.context.log.end_group();
    Ok(())
}

/// Says what people should know of a container that is about to start.
fn report(backend: &EngineBackend<'_>, plan: &Plan<'_>, prepared: &Prepared<'_>) {
    if let Backing::Copy { reason } = &prepared.rootfs.backing {
        backend.context.log.warning(&format!(
            "{}: the image is copied, which takes time and space, because there is no overlay: {reason}",
            plan.title
        ));
    }
    for warning in &prepared.bundle.warnings {
        backend.context.log.warning(&format!("{}: {warning}", plan.title));
    }
    for problem in &prepared.bundle.problems {
        backend.context.log.warning(&format!("{}: {problem}", plan.title));
    }
    for file in &prepared.bundle.hooks {
        backend.context.log.debug(&format!("{}: gets the hook of {}", plan.title, file.display()));
    }
    for text in &prepared.bundle.said {
        backend.context.log.output(&plan.name(), text.as_bytes());
    }
}

impl Started<'_> {
    /// Returns the container's own address.
    fn address(&self) -> Option<std::net::IpAddr> {
        self.endpoint.as_ref().and_then(|endpoint| endpoint.addresses.first().copied())
    }
}

/// Does the same for each, all at once, and returns the results in order.
pub(super) fn in_parallel<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    if let [item] = items {
        return vec![work(item)];
    }
    std::thread::scope(|scope| {
        let threads: Vec<_> = items.iter().map(|item| scope.spawn(|| work(item))).collect();
        let results = threads.into_iter().map(|thread| thread.join());
        results.map(|result| result.expect("work does not panic")).collect()
    })
}
