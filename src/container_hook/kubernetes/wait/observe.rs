//! What an answer about a pod means: ready, not yet, or never.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateWaiting, ContainerStatus, Pod, Probe,
};

use super::ended::{self, ContainerEnd, check_pod, end, one_line, said, terminated, title};
use super::pull::Pull;

/// How long a container may not be created, for what may pass: the runtime is slow, or has not yet
/// forgotten another one.
const MAX_CREATION: Duration = Duration::from_secs(20);

/// What a pod is waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::container_hook::kubernetes) struct Expect {
    /// The containers that have to run; their end is a failure. Others have to have started, and those
    /// that have a readiness probe have to be ready.
    pub(in crate::container_hook::kubernetes) running: Vec<String>,
    /// Whether people read what goes well, and not only what is waited for: they do not where an action writes
    /// its own to the same log.
    pub(in crate::container_hook::kubernetes) shows_progress: bool,
}

/// Why a pod will never be ready.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PodFault {
    #[error(transparent)]
    End(#[from] ContainerEnd),
    #[error("image {image} of {container} cannot be pulled: {problem}")]
    Image { container: String, image: String, problem: String },
    #[error("{container} cannot be started: {problem}")]
    Start { container: String, problem: String },
    #[error("{container}, which prepares the pod, {end}")]
    Init { container: String, end: String },
    #[error("{container} is not ready after {} s", after.as_secs())]
    Unready { container: String, after: Duration },
}

/// What is known of a pod after an answer.
#[derive(Debug)]
pub(super) struct Observation {
    pub(super) verdict: Verdict,
    /// What goes well, once each.
    pub(super) progress: Vec<String>,
    /// What keeps the pod from being ready, and people are told, once each.
    pub(super) lines: Vec<String>,
    /// Containers that ended though nothing depends on them, and how.
    pub(super) ended: Vec<(String, String)>,
    /// What is waited for at the moment.
    pub(super) waits: Vec<String>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Ready,
    Waiting,
    /// Never, for this reason; with the container whose log says more.
    Failed(PodFault, Option<String>),
}

/// What of earlier answers counts.
#[derive(Debug, Default)]
pub(super) struct Observer {
    pulls: BTreeMap<String, Pull>,
    /// Since when containers are not created.
    stuck: BTreeMap<String, Duration>,
    /// Since when containers run, by our own clock.
    runs: BTreeMap<String, Duration>,
}

impl Observer {
    /// Returns what an answer means at a time: how long the pod has been waited for.
    pub(super) fn look(
        &mut self,
        pod: Option<&Pod>,
        name: &str,
        expect: &Expect,
        now: Duration,
    ) -> Observation {
        let mut seen = Observation {
            verdict: Verdict::Waiting,
            progress: Vec::new(),
            lines: Vec::new(),
            ended: Vec::new(),
            waits: Vec::new(),
        };
        let fault = match pod {
            None => Err((ContainerEnd::Deleted { pod: name.to_owned() }.into(), None)),
            Some(pod) => self.pod(pod, name, expect, now, &mut seen),
        };
        match fault {
            Err((fault, log)) => seen.verdict = Verdict::Failed(fault, log),
            Ok(()) if seen.waits.is_empty() => seen.verdict = Verdict::Ready,
            Ok(()) => {}
        }
        seen
    }

    fn pod(
        &mut self,
        pod: &Pod,
        name: &str,
        expect: &Expect,
        now: Duration,
        seen: &mut Observation,
    ) -> Result<(), (PodFault, Option<String>)> {
        check_pod(pod, name).map_err(|end| (end.into(), None))?;
        let going = || ContainerEnd::Going { pod: name.to_owned() };
        if pod.metadata.deletion_timestamp.is_some() {
            return Err((going().into(), None));
        }
        if let Some(problem) = unscheduled(pod) {
            let line = format!("waits for a node: {problem}");
            seen.lines.push(line.clone());
            seen.waits.push(line);
            return Ok(());
        }
        let spec = pod.spec.as_ref();
        if let Some(node) = spec.and_then(|spec| spec.node_name.as_deref()) {
            seen.progress.push(format!("pod {name} is on node {node}"));
        }
        let starts_again =
            spec.and_then(|spec| spec.restart_policy.as_deref()).is_some_and(|one| one != "Never");
        let containers = spec.and_then(|spec| spec.init_containers.as_ref()).into_iter().flatten();
        for container in containers {
            self.init(container, pod, starts_again, now, seen)?;
        }
        for container in spec.map_or(&[][..], |spec| &spec.containers) {
            let has_to_run = expect.running.contains(&container.name);
            self.container(container, (pod, name), has_to_run, starts_again, now, seen)?;
        }
        Ok(())
    }

    /// Looks at a container that prepares the pod. What waits for it says so itself.
    fn init(
        &mut self,
        container: &Container,
        pod: &Pod,
        starts_again: bool,
        now: Duration,
        seen: &mut Observation,
    ) -> Result<(), (PodFault, Option<String>)> {
        let statuses =
            pod.status.as_ref().and_then(|status| status.init_container_statuses.as_ref());
        let status = statuses.into_iter().flatten().find(|status| status.name == container.name);
        let Some(status) = status else { return Ok(()) };
        self.image(container, status, now, seen)?;
        let ended = terminated(status).filter(|ended| ended.exit_code != 0 && !starts_again);
        match ended {
            Some(ended) => {
                let name = container.name.clone();
                let (container, end) = (title(&name), end(ended));
                Err((PodFault::Init { container, end }, Some(name)))
            }
            None => Ok(()),
        }
    }

    fn container(
        &mut self,
        container: &Container,
        (pod, pod_name): (&Pod, &str),
        has_to_run: bool,
        starts_again: bool,
        now: Duration,
        seen: &mut Observation,
    ) -> Result<(), (PodFault, Option<String>)> {
        let name = &container.name;
        let status = ended::statuses(pod).find(|status| status.name == *name);
        let Some(status) = status else {
            seen.waits.push(format!("{} is not created yet", title(name)));
            return Ok(());
        };
        self.image(container, status, now, seen)?;
        let probe = container.readiness_probe.as_ref();
        if let Some(terminated) = terminated(status) {
            let end = end(terminated);
            if (has_to_run || probe.is_some()) && !starts_again {
                let (pod, container) = (pod_name.to_owned(), title(name));
                let end = ContainerEnd::Container { pod, container, end };
                return Err((end.into(), Some(name.clone())));
            }
            seen.ended.push((name.clone(), end));
            if has_to_run || probe.is_some() {
                seen.waits.push(format!("{} is started again", title(name)));
            }
            return Ok(());
        }
        let state = status.state.as_ref();
        if state.and_then(|state| state.running.as_ref()).is_none() {
            let waiting = state.and_then(|state| state.waiting.as_ref());
            let reason =
                waiting.and_then(|one| said(one.reason.as_deref(), one.message.as_deref()));
            let reason = reason.unwrap_or_else(|| "not created yet".to_owned());
            seen.waits.push(format!("{}: {reason}", title(name)));
            return Ok(());
        }
        let since = *self.runs.entry(name.clone()).or_insert(now);
        let Some(probe) = probe else { return Ok(()) };
        if status.ready {
            seen.progress.push(format!("{} is ready", title(name)));
            return Ok(());
        }
        let after = now.saturating_sub(since);
        if after > patience(probe) {
            let container = title(name);
            return Err((PodFault::Unready { container, after }, Some(name.clone())));
        }
        seen.waits.push(format!("{} is not ready yet", title(name)));
        Ok(())
    }

    /// Looks at what keeps a container from being started: its image, or its creation.
    fn image(
        &mut self,
        container: &Container,
        status: &ContainerStatus,
        now: Duration,
        seen: &mut Observation,
    ) -> Result<(), (PodFault, Option<String>)> {
        let name = &container.name;
        let image = container.image.as_deref().unwrap_or_default();
        let Some(ContainerStateWaiting { reason, message }) = waiting(status) else {
            self.pulls.remove(name);
            self.stuck.remove(name);
            if status.state.as_ref().is_some_and(|state| *state != ContainerState::default()) {
                seen.progress.push(format!("image {image} is pulled"));
            }
            return Ok(());
        };
        let message = message.as_deref().unwrap_or_default();
        let unpullable = |problem: &str| {
            let (container, image) = (title(name), one_line(image));
            (PodFault::Image { container, image, problem: one_line(problem) }, None)
        };
        let unstartable = |reason: &str| {
            let problem = said(Some(reason), Some(message)).unwrap_or_default();
            (PodFault::Start { container: title(name), problem }, None)
        };
        match reason.as_deref().unwrap_or_default() {
            reason @ ("InvalidImageName" | "ErrImageNeverPull") => {
                Err(unpullable(&said(Some(reason), Some(message)).unwrap_or_default()))
            }
            reason @ ("ErrImagePull"
            | "ImagePullBackOff"
            | "RegistryUnavailable"
            | "ImageInspectError"
            | "SignatureValidationFailed") => {
                let pull = self.pulls.entry(name.clone()).or_insert_with(|| Pull::new(now));
                pull.note(reason, message);
                if pull.is_hopeless(now) {
                    return Err(unpullable(pull.message()));
                }
                seen.lines.push(format!("image {image} is not pulled yet: {}", pull.message()));
                Ok(())
            }
            reason @ ("CreateContainerConfigError" | "RunContainerError") => {
                Err(unstartable(reason))
            }
            reason @ "CreateContainerError" => {
                let since = *self.stuck.entry(name.clone()).or_insert(now);
                match now.saturating_sub(since) >= MAX_CREATION {
                    true => Err(unstartable(reason)),
                    false => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }
}

fn waiting(status: &ContainerStatus) -> Option<&ContainerStateWaiting> {
    status.state.as_ref().and_then(|state| state.waiting.as_ref())
}

/// Returns why there is no node for a pod, if the scheduler has said so.
fn unscheduled(pod: &Pod) -> Option<String> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let condition = conditions.iter().find(|one| one.type_ == "PodScheduled")?;
    if condition.status != "False" {
        return None;
    }
    // The reason says no more than that.
    let message = said(None, condition.message.as_deref());
    let reason = || said(condition.reason.as_deref(), None);
    message.or_else(reason).or_else(|| Some("the scheduler gives no reason".to_owned()))
}

/// Returns how long a container that runs may not be ready: all of its failures, and their pauses.
fn patience(probe: &Probe) -> Duration {
    let seconds = |value: Option<i32>, or: u64| {
        value.and_then(|value| u64::try_from(value).ok()).filter(|value| *value > 0).unwrap_or(or)
    };
    let attempts = seconds(probe.failure_threshold, 3).max(seconds(probe.success_threshold, 1));
    let attempt = seconds(probe.period_seconds, 10) + seconds(probe.timeout_seconds, 1);
    // The kubelet begins at a random moment of the first period.
    Duration::from_secs(seconds(probe.initial_delay_seconds, 0) + attempt * (attempts + 1))
}

#[cfg(test)]
#[path = "observe_tests.rs"]
mod tests;
