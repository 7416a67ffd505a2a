//! `run_container_step`: a container action as a pod of its own, from its start to its end.

use super::agent::{self, Session};
use super::backend::{JOB, KubernetesBackend, name};
use super::build::{self, BuiltImage};
use super::cleanup::GRACE_SECONDS;
use super::client::ClusterOpener;
use super::early::EarlyOpener;
use super::facts::{AskedFacts, LONG_PATIENCE};
use super::files::FilesError;
use super::interrupts::{Remembered, unless_interrupted};
use super::pod::{self, MadePod, StepProgram, WorkVolume};
use super::prepare;
use super::script_step::{new_id, outcome, until_cancelled};
use super::wait::Expect;
use crate::container::StepSignals;
use crate::container_hook::backend::Outcome;
use crate::container_hook::error::HookError;
use crate::container_hook::request::{ContainerArgs, ImageSource};
use crate::container_hook::state::JobState;
use crate::sys::error::chain;
use crate::sys::init::frames::Step;

pub(super) async fn run(
    backend: &KubernetesBackend<'_>,
    step: &ContainerArgs,
    state: Option<&JobState>,
) -> Result<Outcome, HookError> {
    let mut signals = backend.catch_signals()?;
    // A job of which we know no pod has steps all the same; but not one of somebody else's pod.
    let job_pod = match state.is_some_and(|state| state.container.is_some()) {
        true => Some(backend.job_pod(state)?),
        false => None,
    };
    let built = build(backend, step, signals.as_mut()).await?;
    let step = built.as_ref().unwrap_or(step);
    let made = unless_interrupted(signals.as_mut(), make(backend, step, job_pod)).await?;
    let ended = run_in(backend, &made, job_pod, signals.as_mut()).await;
    let removed = remove(backend, &made).await;
    // The step's own failure is what people want to hear of.
    let outcome = ended?;
    if let Err(error) = removed {
        backend.context.log.warning(&chain(&error));
    }
    Ok(outcome)
}

/// Returns a step with the image of its Dockerfile in the place of that; none if it has none.
async fn build(
    backend: &KubernetesBackend<'_>,
    step: &ContainerArgs,
    signals: &mut dyn StepSignals,
) -> Result<Option<ContainerArgs>, HookError> {
    let ImageSource::Dockerfile(dockerfile) = &step.source else { return Ok(None) };
    let BuiltImage { name, registry } = build::image(backend, dockerfile, signals).await?;
    Ok(Some(ContainerArgs { source: ImageSource::Image(name), registry, ..step.clone() }))
}

/// Returns the pod that the step is to run in, of which there is nothing yet.
async fn make(
    backend: &KubernetesBackend<'_>,
    step: &ContainerArgs,
    job_pod: Option<&str>,
) -> Result<MadePod, HookError> {
    let mut asked = AskedFacts::default();
    // What the image runs has to be known, since it is our agent that runs it.
    if step.entry_point.is_none() {
        asked.ask(backend, step);
    }
    let (own, job) = tokio::try_join!(backend.own(), async {
        match job_pod {
            Some(name) => backend.cluster.pod(name).await,
            None => Ok(None),
        }
    })?;
    let facts = asked.within(LONG_PATIENCE).await;
    let made = pod::step(&backend.context, backend.settings, own, step, &facts, job.as_ref())?;
    for note in &made.notes {
        backend.context.log.line(note);
    }
    Ok(made)
}

async fn run_in(
    backend: &KubernetesBackend<'_>,
    made: &MadePod,
    job_pod: Option<&str>,
    signals: &mut dyn StepSignals,
) -> Result<Outcome, HookError> {
    let pod = name(&made.pod);
    let id = new_id();
    let program = made.program.as_ref().map(frame).unwrap_or_default();
    let opener = EarlyOpener::new(ClusterOpener::new(backend.cluster, pod, JOB));
    let mut session = Session::new(&opener);
    let copies = made.work == WorkVolume::Copy;
    let of_job = job_pod.filter(|_| copies);
    let of_job = of_job.map(|pod| ClusterOpener::new(backend.cluster, pod, JOB));
    let mut job = of_job.as_ref().map(|opener| Session::new(opener));
    let files = backend.files()?;
    let sent = async {
        match &mut job {
            Some(job) => {
                files.before_step(job).await?;
                files.to_step_pod(job, &mut session, &id).await?;
            }
            None if copies => drop(files.to_lone_step_pod(&mut session, &id).await?),
            None => drop(session.link().await.map_err(FilesError::from)?),
        }
        Ok::<_, HookError>(())
    };
    let expect = Expect { running: vec![JOB.to_owned()], shows_progress: false };
    let prepared = async {
        prepare::create(backend, made).await?;
        // Not until the pod is ready: a container that takes the stream runs.
        tokio::pin!(sent);
        tokio::select! {
            sent = &mut sent => sent,
            ready = prepare::until_ready(backend, pod, &expect, &opener) => {
                ready?;
                sent.await
            }
        }
    };
    unless_interrupted(signals, prepared).await?;
    let mut signals = Remembered::new(signals);
    let end = agent::run(&mut session, &id, program, &mut signals, backend.streams).await;
    let taken = async {
        match &mut job {
            Some(job) => {
                files.take_from_step_pod(&mut session, job, &id).await?;
                files.after_step(job).await
            }
            None if copies => files.take_from_lone_step_pod(&mut session, &id).await,
            None => Ok(()),
        }
    };
    let got = until_cancelled(signals.is_cancelled, taken).await;
    outcome(backend, end, got)
}

fn frame(program: &StepProgram) -> Step {
    let bytes = |text: &String| text.clone().into_bytes();
    Step {
        args: program.args.iter().map(bytes).collect(),
        env: program.env.iter().map(|(name, value)| (bytes(name), bytes(value))).collect(),
        directory: program.directory.as_ref().map(bytes).unwrap_or_default(),
        ..Step::default()
    }
}

/// Removes the pod of a step and its secrets; nobody waits until they are gone.
async fn remove(backend: &KubernetesBackend<'_>, made: &MadePod) -> Result<(), HookError> {
    let pod = backend.cluster.delete_pod(name(&made.pod), Some(GRACE_SECONDS)).await;
    for secret in &made.secrets {
        let name = secret.metadata.name.as_deref().unwrap_or_default();
        backend.cluster.delete_secret(name).await?;
    }
    Ok(pod?)
}
