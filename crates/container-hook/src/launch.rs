//! Starts the containers of a job or a step, and waits until they are healthy.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use container_hook_job::HookError;
use container_hook_job::plan::PlanRole;
use container_hook_job::response::{MAX_RELEASE_BYTES, RELEASE_FILES, is_alpine_release};
use oci_hooks_engine::container::{
    ContainerRecord, ContainerSpec, HealthVerdict, PreparedContainer, WaitOutcome,
};
use oci_hooks_engine::rootfs::RootfsBacking;
use oci_hooks_files::beneath::ConfinedRoot;
use oci_hooks_files::fs::READ_FLAGS;
use oci_hooks_host::thread::{ConcurrentWork, spawn_or_call};
use rustix::fs::Mode;

use super::audit;
use super::backend::EngineBackend;
use super::cleanup_job::report_limits;
use super::maximums;
use super::plan::{LaunchContext, LaunchPlan, PendingContainer};
use super::pod;
use super::services::show_last;
use super::share;
use super::volumes;

/// A container whose program has been started.
pub struct LaunchedContainer {
    pub record: ContainerRecord,
    pub is_alpine: bool,
    /// Set if the container's user was granted access to the runner's directories.
    pub shares_directories: bool,
}

/// Mounts the runner's named volumes, if a container uses one.
pub fn mount_volumes(
    backend: &EngineBackend<'_>,
    plans: &[LaunchPlan<'_>],
) -> Result<(), HookError> {
    if plans.iter().any(LaunchPlan::has_named_volumes) {
        let limit_bytes = backend.settings.limits.volumes.map(|size| size.0);
        volumes::record(backend.engine, backend.context.runner)?;
        backend.engine.mount_volumes(&backend.context.runner.owner(), limit_bytes)?;
    }
    Ok(())
}

/// Creates a container without starting it.
pub fn prepare<'h>(
    backend: &EngineBackend<'h>,
    container: &PendingContainer<'_>,
    context: LaunchContext<'_>,
) -> Result<PreparedContainer<'h>, HookError> {
    let PendingContainer { plan, image, id, .. } = container;
    let options = container.bundle(backend, context)?;
    audit::container(backend, container, &options, &plan.runtime(backend).program)?;
    let prepared = backend.engine.prepare(ContainerSpec {
        id: id.clone(),
        name: plan.container.name(),
        owner: backend.context.runner.owner(),
        role: plan.container.role.into(),
        image,
        layers: Vec::new(),
        disk_bytes: backend.settings.limits.disk.map(|size| size.0),
        options,
        network: Some(context.network.id().to_owned()),
        group: maximums::group(backend, context.network.id()),
        output: plan.output(backend),
        runtime: plan.additions.runtime.clone(),
        stop: plan.stop(image, container.address()),
        takes_steps: plan.can_start_steps(backend),
    })?;
    report(backend, plan, &prepared);
    share::with_container(backend, plan, &prepared.bundle.user);
    Ok(prepared)
}

/// Creates and starts a container, and runs its `postStart` hook.
pub fn launch(
    backend: &EngineBackend<'_>,
    container: &PendingContainer<'_>,
    context: LaunchContext<'_>,
) -> Result<LaunchedContainer, HookError> {
    let plan = container.plan;
    let prepared = prepare(backend, container, context)?;
    let shares_directories = share::is_needed(backend, &prepared.bundle.user);
    let is_alpine = plan.container.role == PlanRole::Job && is_alpine(&prepared.rootfs.path);
    let record = prepared.start()?;
    if let Some(hook) = &plan.additions.post_start {
        let action = hook.action.to_container_action(container.address());
        let ran = backend.engine.perform(&record, &action, pod::POST_START_TIMEOUT)?;
        ran.map_err(|problem| hook.place.fault(problem))?;
    }
    Ok(LaunchedContainer { record, is_alpine, shares_directories })
}

/// Starts the containers that only the template has, one after another: waits until init containers have exited and
/// sidecars are healthy.
pub fn launch_helpers(
    backend: &EngineBackend<'_>,
    helpers: &[PendingContainer<'_>],
    context: LaunchContext<'_>,
) -> Result<(), HookError> {
    for helper in helpers {
        if helper.plan.container.role == PlanRole::Sidecar {
            launch_until_healthy(backend, slice::from_ref(helper), context)?;
        } else {
            run_init(backend, helper, context)
                .map_err(HookError::of(&helper.plan.container.title))?;
        }
    }
    Ok(())
}

fn run_init(
    backend: &EngineBackend<'_>,
    container: &PendingContainer<'_>,
    context: LaunchContext<'_>,
) -> Result<(), HookError> {
    let LaunchedContainer { record, .. } = launch(backend, container, context)?;
    // The runner limits the time of the job.
    let code = loop {
        let outcome = backend.engine.wait(&record, Duration::from_secs(3600))?;
        if let WaitOutcome::Ended { code } = outcome {
            break code;
        }
    };
    report_limits(backend, &record);
    if code != Some(0) {
        show_last(backend, &record);
        return Err(HookError::Init { code });
    }
    Ok(backend.engine.remove(&record)?)
}

/// Starts containers in parallel.
pub fn launch_all(
    backend: &EngineBackend<'_>,
    containers: &[PendingContainer<'_>],
    context: LaunchContext<'_>,
) -> Result<Vec<LaunchedContainer>, HookError> {
    let launched = map_in_parallel(containers, |container| {
        launch(backend, container, context).map_err(HookError::of(&container.plan.container.title))
    });
    launched.into_iter().collect()
}

/// Starts containers in parallel, and waits until those with health checks are healthy. The checks of a container
/// begin as soon as it has started, even if others have not.
pub fn launch_until_healthy(
    backend: &EngineBackend<'_>,
    containers: &[PendingContainer<'_>],
    context: LaunchContext<'_>,
) -> Result<Vec<LaunchedContainer>, HookError> {
    let has_failed = AtomicBool::new(false);
    let results = map_in_parallel(containers, |container| {
        let launched = launch(backend, container, context);
        let checked = launched.and_then(|launched| {
            let problem = check_health(backend, container, &launched.record, &has_failed)?;
            Ok((launched, problem))
        });
        // The job has failed, so the health checks of the others stop.
        has_failed.fetch_or(checked.is_err(), Ordering::Relaxed);
        checked.map_err(HookError::of(&container.plan.container.title))
    });
    let results = results.into_iter().collect::<Result<Vec<_>, _>>()?;
    let (launched, problems): (Vec<_>, Vec<_>) = results.into_iter().unzip();
    check_all_health(backend, containers, launched, problems)
}

/// Waits in parallel until all containers with health checks are healthy.
pub fn wait_until_healthy(
    backend: &EngineBackend<'_>,
    containers: &[PendingContainer<'_>],
    launched: Vec<LaunchedContainer>,
) -> Result<Vec<LaunchedContainer>, HookError> {
    let has_failed = AtomicBool::new(false);
    let all: Vec<_> = containers.iter().zip(&launched).collect();
    let results = map_in_parallel(&all, |(container, launched)| {
        let checked = check_health(backend, container, &launched.record, &has_failed);
        has_failed.fetch_or(checked.is_err(), Ordering::Relaxed);
        checked.map_err(HookError::of(&container.plan.container.title))
    });
    let problems = results.into_iter().collect::<Result<Vec<_>, _>>()?;
    check_all_health(backend, containers, launched, problems)
}

/// Returns the containers if all are healthy; else shows the output of the unhealthy ones and returns an error.
fn check_all_health(
    backend: &EngineBackend<'_>,
    containers: &[PendingContainer<'_>],
    launched: Vec<LaunchedContainer>,
    problems: Vec<Option<String>>,
) -> Result<Vec<LaunchedContainer>, HookError> {
    for ((container, launched), problem) in containers.iter().zip(&launched).zip(&problems) {
        // The output of services is shown when the failed job is removed.
        if problem.is_some() && container.plan.container.role != PlanRole::Service {
            show_last(backend, &launched.record);
        }
    }
    let problems: Vec<_> = problems.into_iter().flatten().collect();
    if problems.is_empty() { Ok(launched) } else { Err(HookError::Unhealthy(problems)) }
}

/// Waits until a container is healthy or `is_over` is set; returns the problem if it is unhealthy.
fn check_health(
    backend: &EngineBackend<'_>,
    container: &PendingContainer<'_>,
    record: &ContainerRecord,
    is_over: &AtomicBool,
) -> Result<Option<String>, HookError> {
    let plan = container.plan;
    for health in plan.health(&container.image.config, container.address()) {
        let verdict = backend.engine.wait_until_healthy(record, &health, is_over)?;
        if let Some(problem) = report_health(backend, plan, verdict) {
            return Ok(Some(problem));
        }
    }
    Ok(None)
}

/// Logs that a container is healthy, or returns its problem.
fn report_health(
    backend: &EngineBackend<'_>,
    plan: &LaunchPlan<'_>,
    verdict: HealthVerdict,
) -> Option<String> {
    match verdict {
        HealthVerdict::Healthy { after } => {
            backend.context.log.line(&format!(
                "{} is healthy after {} ms",
                plan.container.title,
                after.as_millis()
            ));
            None
        }
        // The container that failed first reports the reason.
        HealthVerdict::Abandoned => None,
        HealthVerdict::Unhealthy { checks, last } => Some(format!(
            "{} is unhealthy: {checks} checks failed, the last with {last}",
            plan.container.title
        )),
        HealthVerdict::Ended { code: Some(code) } => {
            Some(format!("{} ended with code {code} before it was healthy", plan.container.title))
        }
        HealthVerdict::Ended { code: None } => {
            Some(format!("{} ended before it was healthy", plan.container.title))
        }
    }
}

/// Logs warnings, problems and injected hooks of a container that is about to start.
fn report(backend: &EngineBackend<'_>, plan: &LaunchPlan<'_>, prepared: &PreparedContainer<'_>) {
    if let RootfsBacking::Copy { reason } = &prepared.rootfs.backing {
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
    for hook in &prepared.bundle.hooks {
        backend.context.log.debug(&format!(
            "{}: injecting hook {}",
            plan.container.title,
            hook.file.display()
        ));
    }
    for text in &prepared.bundle.hook_stderr {
        backend.context.log.output(&plan.container.name(), text.as_bytes());
    }
}

/// Applies a function to all items in parallel, and returns the results in order.
pub fn map_in_parallel<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    if let [item] = items {
        return vec![work(item)];
    }
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            items.iter().map(|item| spawn_or_call(scope, || work(item))).collect();
        threads.into_iter().map(ConcurrentWork::join).collect()
    })
}

/// Returns whether a root file system is Alpine's, by its release files.
///
/// The reference hook runs the image's shell and `grep` instead, which an image may lack.
pub fn is_alpine(rootfs: &Path) -> bool {
    let Ok(root) = ConfinedRoot::new(rootfs) else { return false };
    RELEASE_FILES
        .iter()
        .filter_map(|file| read_release(&root, Path::new(file)))
        .any(|text| is_alpine_release(&text))
}

/// Reads a regular file of the image.
fn read_release(root: &ConfinedRoot, path: &Path) -> Option<String> {
    let file = File::from(root.open_as_root(path, READ_FLAGS, Mode::empty()).ok()?);
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(MAX_RELEASE_BYTES).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}
