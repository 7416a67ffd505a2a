//! `run_container_step`: runs a container action as its own pod.

use container_hook_job::HookError;
use container_hook_job::JobState;
use container_hook_job::RequestOutcome;
use container_hook_job::request::{ContainerArgs, ImageSource};
use k8s_openapi::api::core::v1::Pod;
use oci_hooks_engine::container::StepSignals;
use oci_hooks_files::error::chain;
use oci_hooks_init::frames::ContainerStep;

use super::agent::{self, AgentSession};
use super::backend::{JOB, KubernetesBackend, name};
use super::build::{self, BuiltImage};
use super::cleanup::GRACE_SECONDS;
use super::facts::{PendingImageConfigs, REQUIRED_CONFIG_TIMEOUT};
use super::files::FilesError;
use super::image_volumes;
use super::interrupts::{CancelFlagged, run_unless_interrupted};
use super::own_pod::OwnPod;
use super::pod::{self, ImageFacts, PodManifest, StepProgram, WorkVolume};
use super::prepare;
use super::script_step::{download_until_cancelled, is_reachable, new_id, outcome};
use super::services;
use super::wait::PodExpectation;

pub(super) async fn run(
    backend: &KubernetesBackend<'_>,
    step: &ContainerArgs,
    state: Option<&JobState>,
) -> Result<RequestOutcome, HookError> {
    let mut signals = backend.catch_signals()?;
    // A job without a container still has container steps, but a pod of another runner is rejected.
    let job_pod = match state.is_some_and(|state| state.container.is_some()) {
        true => Some(backend.job_pod(state)?),
        false => None,
    };
    let built = build(backend, step, signals.as_mut()).await?;
    let step = built.as_ref().unwrap_or(step);
    let facts = run_unless_interrupted(signals.as_mut(), facts(backend, step, job_pod)).await?;
    let make = |image_volumes| {
        let settings = backend.settings_with(image_volumes);
        let StepFacts { own, image, job, .. } = &facts;
        pod::step(&backend.context, &settings, own, step, image, job.as_ref())
    };
    let mut made = make(facts.image_volumes)?;
    prepare::log_notes(backend, &made);
    let mut ended = run_in(backend, &made, job_pod, signals.as_mut()).await;
    if let Some(warning) = ended.as_ref().err().and_then(image_volumes::warning) {
        backend.context.log.debug(&warning);
        log_failure(backend, remove(backend, &made).await);
        made = make(false)?;
        ended = run_in(backend, &made, job_pod, signals.as_mut()).await;
        if ended.is_ok() {
            backend.context.log.warning(&warning);
        }
    }
    let (removed, ()) =
        tokio::join!(remove(backend, &made), services::report_after_step(backend, state));
    // The step's own error takes precedence over the cleanup's error.
    let outcome = ended?;
    log_failure(backend, removed);
    Ok(outcome)
}

fn log_failure(backend: &KubernetesBackend<'_>, removed: Result<(), HookError>) {
    if let Err(error) = removed {
        backend.context.log.warning(&chain(&error));
    }
}

/// Builds the step's Dockerfile and returns the step with the built image; `None` for a step
/// without a Dockerfile.
async fn build(
    backend: &KubernetesBackend<'_>,
    step: &ContainerArgs,
    signals: &mut dyn StepSignals,
) -> Result<Option<ContainerArgs>, HookError> {
    let ImageSource::Dockerfile(dockerfile) = &step.source else { return Ok(None) };
    let BuiltImage { name, registry } = build::image(backend, dockerfile, signals).await?;
    Ok(Some(ContainerArgs { source: ImageSource::Image(name), registry, ..step.clone() }))
}

/// Facts about a step's pod besides the request.
struct StepFacts<'a> {
    own: &'a OwnPod,
    image: ImageFacts,
    job: Option<Pod>,
    image_volumes: bool,
}

async fn facts<'a>(
    backend: &'a KubernetesBackend<'_>,
    step: &ContainerArgs,
    job_pod: Option<&str>,
) -> Result<StepFacts<'a>, HookError> {
    let mut asked = PendingImageConfigs::default();
    // The agent starts the image's program, so the image's entry point has to be known.
    if step.entry_point.is_none() {
        asked.ask(backend, step);
    }
    let (own, job) = tokio::try_join!(backend.own_pod(), async {
        match job_pod {
            Some(name) => backend.cluster.pod(name).await,
            None => Ok(None),
        }
    })?;
    let image_volumes = match &job {
        Some(job) => image_volumes::is_in(job),
        None => backend.has_image_volumes().await?,
    };
    let image = asked.collect_within(REQUIRED_CONFIG_TIMEOUT).await;
    Ok(StepFacts { own, image, job, image_volumes })
}

async fn run_in(
    backend: &KubernetesBackend<'_>,
    made: &PodManifest,
    job_pod: Option<&str>,
    signals: &mut dyn StepSignals,
) -> Result<RequestOutcome, HookError> {
    let pod = name(&made.pod);
    let id = new_id();
    let program = made.program.as_ref().map(frame).unwrap_or_default();
    let opener = backend.opener(pod, JOB).starting();
    let mut session = AgentSession::new(&opener);
    let copies = made.work == WorkVolume::Copy;
    let of_job = job_pod.filter(|_| copies);
    let of_job = of_job.map(|pod| backend.opener(pod, JOB));
    let mut job = of_job.as_ref().map(|opener| AgentSession::new(opener));
    let files = backend.files()?;
    let sent = async {
        match &mut job {
            Some(job) => {
                files.upload_for_step(job).await?;
                files.to_step_pod(job, &mut session, &id).await?;
            }
            None if copies => files.upload_all(&mut session, &id).await?,
            None => drop(session.link().await.map_err(FilesError::from)?),
        }
        Ok::<_, HookError>(())
    };
    let expect = PodExpectation { running: vec![JOB.to_owned()], ..Default::default() };
    let prepared = async {
        prepare::create(backend, made).await?;
        // No need to wait until the pod is ready: a container that accepts the stream is running.
        tokio::pin!(sent);
        tokio::select! {
            sent = &mut sent => sent,
            ready = prepare::wait_until_ready(backend, pod, &expect, &opener) => {
                ready?;
                sent.await
            }
        }
    };
    run_unless_interrupted(signals, prepared).await?;
    let mut signals = CancelFlagged::new(signals);
    let step = backend.step(&id, "the action's container");
    let end = agent::run(&mut session, step, program, &mut signals).await;
    let taken = async {
        match &mut job {
            _ if !is_reachable(&end) => Ok(()),
            Some(job) => {
                files.take_from_step_pod(&mut session, job, &id).await?;
                files.download_after_step(job).await
            }
            None if copies => files.take_from_lone_step_pod(&mut session, &id).await,
            None => Ok(()),
        }
    };
    let got = download_until_cancelled(signals.is_cancelled, taken).await;
    outcome(backend, end, got)
}

fn frame(program: &StepProgram) -> ContainerStep {
    let bytes = |text: &String| text.clone().into_bytes();
    ContainerStep {
        args: program.args.iter().map(bytes).collect(),
        env: program.env.iter().map(|(name, value)| (bytes(name), bytes(value))).collect(),
        directory: program.directory.as_ref().map(bytes).unwrap_or_default(),
        ..ContainerStep::default()
    }
}

/// Removes the pod and the secrets of a step, without waiting until the pod is deleted.
async fn remove(backend: &KubernetesBackend<'_>, made: &PodManifest) -> Result<(), HookError> {
    let pod = backend.cluster.delete_pod(name(&made.pod), Some(GRACE_SECONDS)).await;
    for secret in &made.secrets {
        let name = secret.metadata.name.as_deref().unwrap_or_default();
        backend.cluster.delete_secret(name).await?;
    }
    Ok(pod?)
}
