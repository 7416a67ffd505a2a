//! `prepare_job`: the pod of a job, ready, with the files of the runner in it.

use std::net::IpAddr;
use std::path::Path;
use std::pin::pin;

use k8s_openapi::api::core::v1::Pod;
use tokio::{select, try_join};

use super::agent::Session;
use super::audit;
use super::backend::{JOB, KubernetesBackend, name};
use super::cleanup::{self, Wait};
use super::client::ClusterOpener;
use super::early::EarlyOpener;
use super::error::KubernetesError;
use super::facts::{AskedFacts, PATIENCE};
use super::files;
use super::interrupts::unless_interrupted;
use super::pod::{self, MadePod, WorkVolume};
use super::wait::{self, Expect};
use crate::container_hook::error::HookError;
use crate::container_hook::plan::Role;
use crate::container_hook::request::{ContainerArgs, ImageSource, PrepareJob};
use crate::container_hook::response::{
    self, ContainerContext, JobContext, PrepareJobResponse, ServiceContext,
};
use crate::container_hook::state::{JobState, PodState};
use crate::sys::error::chain;

pub(super) async fn run(
    backend: &KubernetesBackend<'_>,
    job: &PrepareJob,
) -> Result<Option<PrepareJobResponse>, HookError> {
    let mut signals = backend.catch_signals()?;
    let prepared = unless_interrupted(signals.as_mut(), prepare(backend, job)).await;
    if let Err(error) = &prepared {
        // Whoever interrupts us waits for some seconds, not for what ends in its own time.
        let wait = if is_interrupted(error) { Wait::Not } else { Wait::WhereShared };
        // The first error is what people have to hear of; the next call tries again.
        if let Err(also) = cleanup::remove_all(backend, wait).await {
            backend.context.log.warning(&chain(&also));
        }
    }
    prepared
}

fn is_interrupted(error: &HookError) -> bool {
    let HookError::Backend(error) = error else { return false };
    matches!(error.downcast_ref(), Some(KubernetesError::Interrupted { .. }))
}

async fn prepare(
    backend: &KubernetesBackend<'_>,
    job: &PrepareJob,
) -> Result<Option<PrepareJobResponse>, HookError> {
    let mut asked = AskedFacts::default();
    for service in &job.services {
        asked.ask_of_service(backend, service);
    }
    // What an earlier job left whose cleanup did not run.
    let (own, ()) = try_join!(
        async { Ok(backend.own().await?) },
        cleanup::remove_all(backend, Wait::UntilGone)
    )?;
    if job.container.is_none() && job.services.is_empty() {
        return Ok(None);
    }
    let facts = asked.within(PATIENCE).await;
    let made = pod::job(&backend.context, backend.settings, own, job, &facts)?;
    for note in &made.notes {
        backend.context.log.line(note);
    }
    let created = create(backend, &made).await?;
    let opener = EarlyOpener::new(ClusterOpener::new(backend.cluster, name(&created), JOB));
    let mut session = Session::new(&opener);
    let brought = async {
        if job.container.is_none() {
            return Ok(false);
        }
        if made.work == WorkVolume::Copy {
            backend.files()?.prepare(&mut session).await?;
        }
        is_alpine(&mut session).await
    };
    let running = job.container.iter().map(|_| JOB.to_owned()).collect();
    let expect = Expect { running, shows_progress: true };
    let mut ready = pin!(until_ready(backend, name(&created), &expect, &opener));
    let mut brought = pin!(brought);
    let mut seen = None;
    let is_alpine = loop {
        select! {
            pod = &mut ready, if seen.is_none() => seen = Some(pod?),
            is_alpine = &mut brought => break is_alpine?,
        }
    };
    let pod = match seen {
        Some(pod) => pod,
        // It has answered, of which its kubelet tells the server up to a second later.
        None if has_only_the_job(&created) => created.clone(),
        None => ready.await?,
    };
    report_services(backend, job, &made, &pod);
    Ok(Some(answer(backend, job, &made, &pod, is_alpine)))
}

/// Returns whether nothing of a pod is waited for but that the first process of the job's container answers.
fn has_only_the_job(pod: &Pod) -> bool {
    let containers = pod.spec.as_ref().map_or(&[][..], |spec| &spec.containers);
    matches!(containers, [job] if job.name == JOB && job.readiness_probe.is_none())
}

/// Makes a pod, and the secrets that it refers to before it.
pub async fn create(backend: &KubernetesBackend<'_>, made: &MadePod) -> Result<Pod, HookError> {
    // What is made is written down before, and nothing is made that is not.
    let role = if made.program.is_some() { Role::Step } else { Role::Job };
    audit::pod(backend, &made.pod, role)?;
    for secret in &made.secrets {
        backend.cluster.create_secret(secret).await?;
    }
    let KubernetesBackend { cluster, settings, context, .. } = backend;
    Ok(wait::create(cluster, &made.pod, context.log, settings.prepare_timeout).await?)
}

/// Waits until a pod is as expected; `opener` opens streams to one of its containers meanwhile.
pub async fn until_ready(
    backend: &KubernetesBackend<'_>,
    pod: &str,
    expect: &Expect,
    opener: &EarlyOpener<'_>,
) -> Result<Pod, HookError> {
    let KubernetesBackend { cluster, settings, context, .. } = backend;
    let limit = settings.prepare_timeout;
    let ready = wait::until_ready(cluster, pod, expect, context.log, limit).await?;
    opener.is_running();
    Ok(ready)
}

/// Returns whether the image of the job says that it is Alpine.
async fn is_alpine(session: &mut Session<'_>) -> Result<bool, HookError> {
    for file in response::RELEASE_FILES {
        let path = Path::new("/").join(file);
        let text = files::read(session, &path, response::MAX_RELEASE_BYTES).await?;
        if text.is_some_and(|text| response::says_alpine(&String::from_utf8_lossy(&text))) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Says by which names and ports services are reached.
fn report_services(backend: &KubernetesBackend<'_>, job: &PrepareJob, made: &MadePod, pod: &Pod) {
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
            (None, Some(address)) => format!("reachable at {address}, by no name"),
            (None, None) => continue,
        };
        let container = &service.container;
        backend.context.log.line(&format!("service {container}: {way}{ports}"));
    }
}

fn address(pod: &Pod) -> Option<IpAddr> {
    pod.status.as_ref()?.pod_ip.as_ref()?.parse().ok()
}

/// Returns what the runner is told of the pod.
fn answer(
    backend: &KubernetesBackend<'_>,
    job: &PrepareJob,
    made: &MadePod,
    pod: &Pod,
    is_alpine: bool,
) -> PrepareJobResponse {
    let network = name(pod).to_owned();
    let services: Vec<_> = made
        .services
        .iter()
        .map(|service| ServiceContext {
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

/// Returns the id that the runtime of the node has for a container, without the runtime's name; that of
/// the pod while no other is known.
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
