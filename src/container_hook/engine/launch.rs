//! Starting the containers of a job or a step, and waiting until they are fit for it.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};

use super::audit;
use super::backend::EngineBackend;
use super::ceilings;
use super::cleanup_job::report_limits;
use super::lend;
use super::plan::{BundleInputs, LaunchContext, PendingContainer, Plan};
use super::pod;
use super::services::show_last;
use super::volumes;
use crate::container::{Prepared, Record, Spec, Verdict, Wait};
use crate::container_hook::error::HookError;
use crate::container_hook::plan::Role;
use crate::container_hook::response::{MAX_RELEASE_BYTES, RELEASE_FILES, says_alpine};
use crate::rootfs::Backing;
use crate::sys::beneath::Beneath;
use crate::sys::thread::{Beside, beside};

/// The time that an init container has: longer than the runner lets any job.
const INIT_TIMEOUT: Duration = Duration::from_secs(35 * 24 * 3600);

/// A container whose program has been started.
pub struct Launched {
    pub record: Record,
    pub is_alpine: bool,
    /// Whether the runner's directories were lent to its user.
    pub is_lent: bool,
}

/// Makes the volumes with names available to containers that have some.
pub fn mount_volumes(backend: &EngineBackend<'_>, plans: &[Plan<'_>]) -> Result<(), HookError> {
    if plans.iter().any(Plan::has_named_volumes) {
        let limit_bytes = backend.settings.volumes_bytes;
        volumes::record(backend.engine, backend.context.runner)?;
        backend.engine.mount_volumes(&backend.context.runner.owner(), limit_bytes)?;
    }
    Ok(())
}

/// Makes a container, short of its start.
pub fn prepare<'h>(
    backend: &EngineBackend<'h>,
    container: &PendingContainer<'_>,
    context: LaunchContext<'_>,
) -> Result<Prepared<'h>, HookError> {
    let PendingContainer { plan, image, id, endpoint } = container;
    let inputs = BundleInputs {
        connection: context.network.connection(
            plan.network_mode(),
            endpoint.as_ref(),
            context.peers,
        ),
        volumes: context.volumes,
        process: context.process,
        user_namespace: context
            .network
            .user_namespace()
            .filter(|_| backend.settings.user_namespace),
        private_ids: context.network.private_ids(),
    };
    let options = plan.bundle(backend, image, id, &inputs)?;
    let runtime = plan.additions.runtime.clone();
    let program = &runtime.as_ref().unwrap_or(&backend.engine.runtime).program;
    audit::container(backend, container, &options, program)?;
    let prepared = backend.engine.prepare(Spec {
        id: id.clone(),
        name: plan.container.name(),
        owner: backend.context.runner.owner(),
        role: plan.container.role.into(),
        image,
        layers: Vec::new(),
        disk_bytes: backend.settings.disk_bytes,
        options,
        network: Some(context.network.id().to_owned()),
        group: ceilings::group(backend, context.network.id()),
        output: plan.output(backend),
        runtime,
        stop: plan.stop(image, container.address()),
        takes_steps: plan.takes_steps(backend),
    })?;
    report(backend, plan, &prepared);
    lend::to_container(backend, plan, &prepared.bundle.user);
    Ok(prepared)
}

/// Makes and starts a container, and runs its `postStart` hook.
pub fn launch(
    backend: &EngineBackend<'_>,
    container: &PendingContainer<'_>,
    context: LaunchContext<'_>,
) -> Result<Launched, HookError> {
    let plan = container.plan;
    let prepared = prepare(backend, container, context)?;
    let is_lent = lend::is_needed(backend, &prepared.bundle.user);
    let is_alpine = plan.container.role == Role::Job && is_alpine(&prepared.rootfs.path);
    let record = prepared.start()?;
    if let Some(action) = plan.additions.post_start(container.address())
        && let Err(how) = backend.engine.check(&record, &action, pod::POST_START_TIMEOUT)?
        && let Some(fault) = plan.additions.post_start_failed(&how)
    {
        return Err(fault.into());
    }
    Ok(Launched { record, is_alpine, is_lent })
}

/// Starts what the template has besides the request's containers, one after another: init containers
/// are waited for until they have ended, sidecars until they are healthy.
pub fn launch_helpers(
    backend: &EngineBackend<'_>,
    helpers: &[PendingContainer<'_>],
    context: LaunchContext<'_>,
) -> Result<(), HookError> {
    for helper in helpers {
        launch_helper(backend, helper, context)
            .map_err(HookError::of(&helper.plan.container.title))?;
    }
    Ok(())
}

fn launch_helper(
    backend: &EngineBackend<'_>,
    helper: &PendingContainer<'_>,
    context: LaunchContext<'_>,
) -> Result<(), HookError> {
    let Launched { record, .. } = launch(backend, helper, context)?;
    if helper.plan.container.role == Role::Sidecar {
        let alone = AtomicBool::new(false);
        let Some(problem) = check_health(backend, helper, &record, &alone)? else { return Ok(()) };
        show_last(backend, &record);
        return Err(HookError::Unhealthy(vec![problem]));
    }
    let code = match backend.engine.wait(&record, INIT_TIMEOUT)? {
        Wait::Ended { code } => code,
        Wait::Running => None,
    };
    report_limits(backend, &record);
    if code != Some(0) {
        show_last(backend, &record);
        return Err(HookError::Init { container: helper.plan.container.title.clone(), code });
    }
    Ok(backend.engine.remove(&record)?)
}

/// Starts containers, all at once.
pub fn launch_all(
    backend: &EngineBackend<'_>,
    containers: &[PendingContainer<'_>],
    context: LaunchContext<'_>,
) -> Result<Vec<Launched>, HookError> {
    let launched = in_parallel(containers, |container| {
        launch(backend, container, context).map_err(HookError::of(&container.plan.container.title))
    });
    launched.into_iter().collect()
}

/// Starts containers, all at once, and waits for each that says how its health is found out as soon as it
/// is started: the others may still be on their way.
pub fn launch_until_healthy(
    backend: &EngineBackend<'_>,
    containers: &[PendingContainer<'_>],
    context: LaunchContext<'_>,
) -> Result<Vec<Launched>, HookError> {
    let has_failed = AtomicBool::new(false);
    let results = in_parallel(containers, |container| {
        let launched = launch(backend, container, context);
        let checked = launched.and_then(|launched| {
            let problem = check_health(backend, container, &launched.record, &has_failed)?;
            Ok((launched, problem))
        });
        // Nothing comes of the job: nobody waits for the others.
        has_failed.fetch_or(checked.is_err(), Ordering::Relaxed);
        checked.map_err(HookError::of(&container.plan.container.title))
    });
    let results = results.into_iter().collect::<Result<Vec<_>, _>>()?;
    let (launched, problems): (Vec<_>, Vec<_>) = results.into_iter().unzip();
    judge(backend, containers, launched, problems)
}

/// Waits for all containers that say how their health is found out, all at once.
pub fn wait_until_healthy(
    backend: &EngineBackend<'_>,
    containers: &[PendingContainer<'_>],
    launched: Vec<Launched>,
) -> Result<Vec<Launched>, HookError> {
    let has_failed = AtomicBool::new(false);
    let all: Vec<_> = containers.iter().zip(&launched).collect();
    let results = in_parallel(&all, |(container, launched)| {
        let checked = check_health(backend, container, &launched.record, &has_failed);
        has_failed.fetch_or(checked.is_err(), Ordering::Relaxed);
        checked.map_err(HookError::of(&container.plan.container.title))
    });
    let problems = results.into_iter().collect::<Result<Vec<_>, _>>()?;
    judge(backend, containers, launched, problems)
}

/// Returns the containers if nothing is wrong with any, and else shows what those wrote that are in the way.
fn judge(
    backend: &EngineBackend<'_>,
    containers: &[PendingContainer<'_>],
    launched: Vec<Launched>,
    problems: Vec<Option<String>>,
) -> Result<Vec<Launched>, HookError> {
    for ((container, launched), problem) in containers.iter().zip(&launched).zip(&problems) {
        // What services wrote is shown when nothing comes of the job.
        if problem.is_some() && container.plan.container.role != Role::Service {
            show_last(backend, &launched.record);
        }
    }
    let problems: Vec<_> = problems.into_iter().flatten().collect();
    if problems.is_empty() { Ok(launched) } else { Err(HookError::Unhealthy(problems)) }
}

/// Waits until a container is healthy, or it is all over; returns what is wrong, if it is not.
fn check_health(
    backend: &EngineBackend<'_>,
    container: &PendingContainer<'_>,
    record: &Record,
    is_over: &AtomicBool,
) -> Result<Option<String>, HookError> {
    let plan = container.plan;
    for health in plan.health(&container.image.config, container.address()) {
        let verdict = backend.engine.wait_until_healthy(record, &health, is_over)?;
        if let Some(problem) = unhealthy(backend, plan, verdict) {
            return Ok(Some(problem));
        }
    }
    Ok(None)
}

/// Reports a verdict; returns what is wrong, if anything is.
fn unhealthy(backend: &EngineBackend<'_>, plan: &Plan<'_>, verdict: Verdict) -> Option<String> {
    match verdict {
        Verdict::Healthy { after } => {
            backend.context.log.line(&format!(
                "{} is healthy after {} ms",
                plan.container.title,
                after.as_millis()
            ));
            None
        }
        // Why, somebody else says.
        Verdict::Abandoned => None,
        Verdict::Unhealthy { checks, last } => Some(format!(
            "{} is unhealthy: {checks} checks failed, the last with {last}",
            plan.container.title
        )),
        Verdict::Ended { code: Some(code) } => {
            Some(format!("{} ended with code {code} before it was healthy", plan.container.title))
        }
        Verdict::Ended { code: None } => {
            Some(format!("{} ended before it was healthy", plan.container.title))
        }
    }
}

/// Reports what people should know of a container that is about to start.
fn report(backend: &EngineBackend<'_>, plan: &Plan<'_>, prepared: &Prepared<'_>) {
    if let Backing::Copy { reason } = &prepared.rootfs.backing {
        backend.context.log.warning(&format!(
            "{}: overlayfs unavailable ({reason}): copying the image, which is slower and uses more disk",
            plan.container.title
        ));
    }
    for warning in &prepared.bundle.warnings {
        backend.context.log.warning(&format!("{}: {warning}", plan.container.title));
    }
    for problem in &prepared.bundle.problems {
        backend.context.log.warning(&format!("{}: {problem}", plan.container.title));
    }
    for file in &prepared.bundle.hooks {
        backend.context.log.debug(&format!(
            "{}: injecting hook {}",
            plan.container.title,
            file.display()
        ));
    }
    for text in &prepared.bundle.hook_stderr {
        backend.context.log.output(&plan.container.name(), text.as_bytes());
    }
}

/// Does the same for each, all at once, and returns the results in order.
pub fn in_parallel<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    if let [item] = items {
        return vec![work(item)];
    }
    std::thread::scope(|scope| {
        let threads: Vec<_> = items.iter().map(|item| beside(scope, || work(item))).collect();
        threads.into_iter().map(Beside::join).collect()
    })
}

/// Returns whether a root file system calls itself Alpine.
///
/// The reference asks the image's own shell and `grep` for the same; an image may have neither.
pub fn is_alpine(rootfs: &Path) -> bool {
    let Ok(root) = Beneath::new(rootfs) else { return false };
    RELEASE_FILES
        .iter()
        .filter_map(|file| read_release(&root, Path::new(file)))
        .any(|text| says_alpine(&text))
}

/// Reads a file of the image, if it is one.
fn read_release(root: &Beneath, path: &Path) -> Option<String> {
    // Without waiting for somebody to write, if it is a pipe.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::from(root.open_as_root(path, flags, Mode::empty()).ok()?);
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(MAX_RELEASE_BYTES).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}
