//! `prepare_job`: creates the pod of a job and copies the runner's files to it.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;
use std::pin::pin;

use container_hook_job::HookError;
use container_hook_job::plan::PlanRole;
use container_hook_job::request::{ContainerArgs, ImageSource, PrepareJob};
use container_hook_job::response::{self, ContainerContext, JobContext, PrepareJobResponse};
use container_hook_job::{JobState, PodState};
use k8s_openapi::api::core::v1::Pod;
use oci_hooks_files::error::chain;
use tokio::{select, try_join};

use super::agent::AgentSession;
use super::audit;
use super::backend::{JOB, KubernetesBackend, KubernetesParts, name};
use super::cleanup::{self, DeletionWait};
use super::client::ClusterOpener;
use super::error::SignalError;
use super::facts::{CONFIG_TIMEOUT, PendingImageConfigs};
use super::files;
use super::image_volumes;
use super::interrupts::run_unless_interrupted;
use super::pod::{self, PodManifest, WorkVolume};
use super::services;
use super::wait::{self, PodExpectation, WaitError};

pub(super) async fn run(
    backend: &KubernetesBackend<'_>,
    job: &PrepareJob,
) -> Result<Option<PrepareJobResponse>, HookError> {
    let mut signals = backend.catch_signals()?;
    let prepared = run_unless_interrupted(signals.as_mut(), prepare(backend, job)).await;
    if let Err(error) = &prepared {
        // After an interrupt the runner waits only a few seconds, less than pods may take to end.
        let wait =
            if is_interrupted(error) { DeletionWait::Not } else { DeletionWait::WhereShared };
        // The first error takes precedence; the next call retries the cleanup.
        if let Err(also) = cleanup::remove_all(backend, wait).await {
            backend.context.log.warning(&chain(&also));
        }
    }
    prepared
}

fn is_interrupted(error: &HookError) -> bool {
    let HookError::Backend(error) = error else { return false };
    matches!(error.downcast_ref(), Some(SignalError::Interrupted { .. }))
}

async fn prepare(
    backend: &KubernetesBackend<'_>,
    job: &PrepareJob,
) -> Result<Option<PrepareJobResponse>, HookError> {
    let mut asked = PendingImageConfigs::default();
    for service in &job.services {
        asked.ask_of_service(backend, service);
    }
    // The restricted profile needs the image's user.
    for job_container in job.container.iter().filter(|_| backend.settings.restricted) {
        asked.ask(backend, job_container);
    }
    // Leftovers of an earlier job whose cleanup did not run.
    let (image_volumes, ()) = try_join!(
        async { Ok(job.container.is_some() && backend.has_image_volumes().await?) },
        cleanup::remove_all(backend, DeletionWait::UntilGone)
    )?;
    if job.container.is_none() && job.services.is_empty() {
        return Ok(None);
    }
    let facts = asked.collect_within(CONFIG_TIMEOUT).await;
    let own = backend.own_pod().await?;
    let make = |image_volumes| {
        let settings = backend.settings_with(image_volumes);
        pod::job(&backend.context, &settings, own, job, &facts)
    };
    let made = make(image_volumes)?;
    log_notes(backend, &made);
    let prepared = run_pod(backend, job, &made).await;
    let Some(warning) = prepared.as_ref().err().and_then(image_volumes::warning) else {
        return prepared.map(Some);
    };
    backend.context.log.debug(&warning);
    cleanup::remove_all(backend, DeletionWait::WhereShared).await?;
    let prepared = run_pod(backend, job, &make(false)?).await?;
    backend.context.log.warning(&warning);
    Ok(Some(prepared))
}

/// Logs the notes and warnings about a pod.
pub fn log_notes(backend: &KubernetesBackend<'_>, made: &PodManifest) {
    made.notes.iter().for_each(|note| backend.context.log.line(note));
    made.warnings.iter().for_each(|warning| backend.context.log.warning(warning));
}

/// Creates the pod of a job, waits until it is ready, and copies the runner's files to it.
async fn run_pod(
    backend: &KubernetesBackend<'_>,
    job: &PrepareJob,
    made: &PodManifest,
) -> Result<PrepareJobResponse, HookError> {
    let created = create(backend, made).await?;
    let opener = backend.opener(name(&created), JOB).starting();
    let mut session = AgentSession::new(&opener);
    let upload = async {
        if job.container.is_none() {
            return Ok(false);
        }
        if made.work == WorkVolume::Copy {
            backend.files()?.upload_all(&mut session, JOB).await?;
        }
        is_alpine(&mut session).await
    };
    let running = job.container.iter().map(|_| JOB.to_owned()).collect();
    let service_names: Vec<_> =
        made.services.iter().map(|service| service.container.clone()).collect();
    let expect = PodExpectation {
        running,
        services: service_names.clone(),
        checks: made.checks.clone(),
        shows_progress: true,
    };
    let mut ready = pin!(wait_until_ready(backend, name(&created), &expect, &opener));
    let mut upload = pin!(upload);
    let mut seen = None;
    let is_alpine = loop {
        select! {
            ready = &mut ready, if seen.is_none() => seen = Some(ready?),
            is_alpine = &mut upload => break is_alpine?,
        }
    };
    let (pod, logged) = match seen {
        Some(ready) => ready,
        // The agent has answered; its kubelet reports this to the API server up to a second later.
        None if has_only_the_job(&created) => (created.clone(), BTreeSet::new()),
        None => ready.await?,
    };
    let pod = match service_names.is_empty() {
        true => pod,
        // A service may have ended while files were copied.
        false => {
            let (pod_name, log) = (name(&created), backend.context.log);
            let pod = wait::check_services(backend.cluster, pod_name, &service_names, log)
                .await?
                .unwrap_or(pod);
            let mut problems = services::new_problems(&pod);
            problems.retain(|problem| !logged.contains(&problem.container));
            services::report(backend, &pod, problems).await;
            pod
        }
    };
    report_services(backend, job, made, &pod);
    Ok(answer(backend, job, made, &pod, is_alpine))
}

/// Returns whether a pod is ready as soon as the agent of the job's container answers.
fn has_only_the_job(pod: &Pod) -> bool {
    let containers = pod.spec.as_ref().map_or(&[][..], |spec| &spec.containers);
    matches!(containers, [job] if job.name == JOB && job.readiness_probe.is_none())
}

/// Creates a pod, and before it the secrets that the pod refers to.
pub async fn create(backend: &KubernetesBackend<'_>, made: &PodManifest) -> Result<Pod, HookError> {
    // Nothing is created before it is in the audit log.
    let role = if made.program.is_some() { PlanRole::Step } else { PlanRole::Job };
    audit::pod(backend, &made.pod, role)?;
    for secret in &made.secrets {
        backend.cluster.create_secret(secret).await?;
    }
    let KubernetesParts { cluster, settings, context, .. } = &backend.parts;
    let created = wait::create(cluster, &made.pod, context.log, settings.prepare_timeout()).await;
    if !image_volumes::is_in(&made.pod) {
        return Ok(created?);
    }
    let problem = match created {
        Ok(created) if image_volumes::is_in(&created) => return Ok(created),
        Ok(_) => "the API server does not support it".to_owned(),
        Err(WaitError::Cluster(error)) if error.is_invalid_object() => chain(&error),
        Err(error) => return Err(error.into()),
    };
    Err(WaitError::ImageVolume { problem }.into())
}

/// Waits until a pod matches `expect`, then marks the container of `opener` as running. Returns the pod, and the
/// containers whose end was logged.
pub async fn wait_until_ready(
    backend: &KubernetesBackend<'_>,
    pod: &str,
    expect: &PodExpectation,
    opener: &ClusterOpener<'_>,
) -> Result<(Pod, BTreeSet<String>), HookError> {
    let KubernetesParts { cluster, settings, context, .. } = &backend.parts;
    let limit = settings.prepare_timeout();
    let ready = wait::wait_for_ready_pod(cluster, pod, expect, context.log, limit).await?;
    opener.mark_running();
    Ok(ready)
}

/// Returns whether the job's image is Alpine, by its release files.
async fn is_alpine(session: &mut AgentSession<'_>) -> Result<bool, HookError> {
    for file in response::RELEASE_FILES {
        let path = Path::new("/").join(file);
        let text = files::read(session, &path).await?;
        if text.is_some_and(|text| response::is_alpine_release(&String::from_utf8_lossy(&text))) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Prints the names and ports of services.
fn report_services(
    backend: &KubernetesBackend<'_>,
    job: &PrepareJob,
    made: &PodManifest,
    pod: &Pod,
) {
    let address = address(pod);
    for service in &made.services {
        let ports: Vec<_> = service.ports.values().map(String::as_str).collect();
        let ports = match ports.as_slice() {
            [] => String::new(),
            ports => format!(", ports {}", ports.join(", ")),
        };
        let way = match (&job.container, address) {
            (Some(_), _) => format!("reachable as {}", service.names.join(", ")),
            // Steps run on the runner, which shares neither network nor names with the pod.
            (None, Some(address)) => format!("reachable at {address}, but not by name"),
            (None, None) => continue,
        };
        let container = &service.container;
        backend.context.log.line(&format!("service {container}: {way}{ports}"));
    }
}

fn address(pod: &Pod) -> Option<IpAddr> {
    pod.status.as_ref()?.pod_ip.as_ref()?.parse().ok()
}

/// Returns the response to the runner.
fn answer(
    backend: &KubernetesBackend<'_>,
    job: &PrepareJob,
    made: &PodManifest,
    pod: &Pod,
    is_alpine: bool,
) -> PrepareJobResponse {
    let network = name(pod).to_owned();
    let services: Vec<_> = made
        .services
        .iter()
        .map(|service| ContainerContext {
            id: container_id(pod, &service.container),
            image: service.image.clone(),
            network: network.clone(),
            context_name: service.context_name.clone(),
            ports: service.ports.clone(),
        })
        .collect();
    let container = job.container.as_ref().map(|args| ContainerContext {
        id: container_id(pod, JOB),
        image: image_name(args),
        network: network.clone(),
        context_name: None,
        ports: made.ports.clone(),
    });
    let pod_state = PodState {
        namespace: backend.cluster.namespace().to_owned(),
        uid: pod.metadata.uid.clone().unwrap_or_default(),
        runner: backend.identity.name.clone(),
        copies: made.work == WorkVolume::Copy,
    };
    let id = container.as_ref().map(|container| container.id.clone());
    let services_ids = services.iter().map(|service| service.id.clone()).collect();
    let mut state = JobState::new(id, services_ids, None);
    (state.job_pod, state.pod) = (Some(network.clone()), Some(pod_state));
    let context = JobContext { container, services };
    PrepareJobResponse { state: state.to_json(), is_alpine, context }
}

/// Returns the runtime's id of a container, without the runtime's name, or the pod's uid while the id is
/// unknown.
fn container_id(pod: &Pod, container: &str) -> String {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
    let status = statuses.into_iter().flatten().find(|status| status.name == container);
    let id = status.and_then(|status| status.container_id.as_deref());
    let id = id.or(pod.metadata.uid.as_deref()).unwrap_or_default();
    id.split_once("://").map_or(id, |(_, id)| id).to_owned()
}

fn image_name(args: &ContainerArgs) -> String {
    match &args.source {
        ImageSource::Image(name) | ImageSource::Dockerfile(name) => name.clone(),
    }
}
