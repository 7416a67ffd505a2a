//! Interprets the API server's answers about a pod: ready, waiting, or failed.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateWaiting, ContainerStatus, Pod, Probe,
};

use crate::image_volumes;
use crate::pod::{HealthCheck, INIT};

use super::ended::{
    self, ContainerEnd, check_pod, container_end, end, join_reason, termination_state, title,
    to_one_line,
};

/// Maximum time of `CreateContainerError`, which may be temporary: the runtime may be slow, or may not have
/// removed an earlier container yet.
const MAX_CREATION: Duration = Duration::from_secs(20);

/// Conditions for a ready pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodExpectation {
    /// Containers that have to run; their end is a failure. Other containers have to have started. Containers
    /// with a readiness probe have to be ready.
    pub running: Vec<String>,
    /// Containers of services, which fail the pod if they end with another code than 0.
    pub services: Vec<String>,
    /// Health checks that are also run by this process, which counts their failures.
    pub checks: Vec<HealthCheck>,
    /// If set, successful progress is logged. Not set for container actions, whose output goes to the same
    /// log.
    pub shows_progress: bool,
}

/// Reasons why a pod will never be ready.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PodFault {
    #[error(transparent)]
    End(#[from] ContainerEnd),
    #[error("image {image} of {container} cannot be pulled: {problem}")]
    Image { container: String, image: String, problem: String },
    #[error("{container} cannot be started: {problem}")]
    Start { container: String, problem: String },
    #[error("{container}, which prepares the pod, {end}")]
    Init { container: String, end: String },
    #[error("{container}, which prepares the pod, cannot be started: {problem}; {hint}")]
    Program { container: String, problem: String, hint: String },
    #[error(
        "{container} is unhealthy: its health check failed {failures} times in succession, the last time because {problem}"
    )]
    Unhealthy { container: String, failures: u32, problem: String },
    #[error("{container} is not ready after {} s: its readiness probe has not succeeded", after.as_secs())]
    Unready { container: String, after: Duration },
}

/// Result of one answer about a pod.
#[derive(Debug)]
pub struct PodObservation {
    pub verdict: PodVerdict,
    pub progress: Vec<String>,
    /// Problems to log, without duplicates.
    pub lines: Vec<String>,
    /// Containers that have ended without failing the pod, each with a description of its end.
    pub ended: Vec<(String, String)>,
    /// Conditions that are not met yet.
    pub waits: Vec<String>,
    /// Containers that run but are not ready.
    pub unready: Vec<String>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum PodVerdict {
    Ready,
    Waiting,
    /// The pod will never be ready. The name is that of the container whose log explains the fault,
    /// if there is one.
    Failed(PodFault, Option<String>),
}

/// Observations of a pod that are kept from one poll to the next.
#[derive(Debug, Default)]
pub struct PodObserver {
    pulls: BTreeMap<String, PullAttempts>,
    /// Image that the pod mounts. The kubelet reports its pull as that of the job container's image.
    mounted_image: Option<String>,
    /// Time since the wait began at which each container's creation first failed.
    stuck: BTreeMap<String, Duration>,
    /// Time since the wait began at which each container was first seen running.
    runs: BTreeMap<String, Duration>,
}

impl PodObserver {
    /// Interprets a response of the API server. `pod` is `None` if the pod does not exist, and
    /// `now` is the time since the wait began.
    pub fn observe_pod(
        &mut self,
        pod: Option<&Pod>,
        name: &str,
        expect: &PodExpectation,
        now: Duration,
    ) -> PodObservation {
        let mut seen = PodObservation {
            verdict: PodVerdict::Waiting,
            progress: Vec::new(),
            lines: Vec::new(),
            ended: Vec::new(),
            waits: Vec::new(),
            unready: Vec::new(),
        };
        let fault = match pod {
            None => Err((ContainerEnd::Deleted { pod: name.to_owned() }.into(), None)),
            Some(pod) => self.pod(pod, name, expect, now, &mut seen),
        };
        match fault {
            Err((fault, log)) => seen.verdict = PodVerdict::Failed(fault, log),
            Ok(()) if seen.waits.is_empty() => seen.verdict = PodVerdict::Ready,
            Ok(()) => {}
        }
        seen
    }

    fn pod(
        &mut self,
        pod: &Pod,
        name: &str,
        expect: &PodExpectation,
        now: Duration,
        seen: &mut PodObservation,
    ) -> Result<(), (PodFault, Option<String>)> {
        check_pod(pod, name).map_err(|end| (end.into(), None))?;
        let going = || ContainerEnd::BeingDeleted { pod: name.to_owned() };
        if pod.metadata.deletion_timestamp.is_some() {
            return Err((going().into(), None));
        }
        if let Some(problem) = unscheduled_reason(pod) {
            let line = format!("the pod waits for a node: {problem}");
            seen.lines.push(line.clone());
            seen.waits.push(line);
            return Ok(());
        }
        let spec = pod.spec.as_ref();
        if let Some(node) = spec.and_then(|spec| spec.node_name.as_deref()) {
            seen.progress.push(format!("pod {name} is on node {node}"));
        }
        self.mounted_image = image_volumes::mounted_image(pod).map(str::to_owned);
        let starts_again =
            spec.and_then(|spec| spec.restart_policy.as_deref()).is_some_and(|one| one != "Never");
        let containers = spec.and_then(|spec| spec.init_containers.as_ref()).into_iter().flatten();
        for container in containers {
            self.init(container, pod, starts_again, now, seen)?;
        }
        for container in spec.map_or(&[][..], |spec| &spec.containers) {
            self.container(container, (pod, name), expect, starts_again, now, seen)?;
        }
        Ok(())
    }

    /// Checks an init container for failures. A waiting init container is not reported, because the
    /// other containers wait for it.
    fn init(
        &mut self,
        container: &Container,
        pod: &Pod,
        starts_again: bool,
        now: Duration,
        seen: &mut PodObservation,
    ) -> Result<(), (PodFault, Option<String>)> {
        let statuses =
            pod.status.as_ref().and_then(|status| status.init_container_statuses.as_ref());
        let status = statuses.into_iter().flatten().find(|status| status.name == container.name);
        let Some(status) = status else { return Ok(()) };
        self.image(container, status, now, seen).map_err(|(fault, log)| match fault {
            PodFault::Start { container: title, problem } => {
                (program(container, title, problem), log)
            }
            fault => (fault, log),
        })?;
        let ended = termination_state(status).filter(|ended| ended.exit_code != 0 && !starts_again);
        match ended {
            Some(ended) => {
                let name = container.name.clone();
                let is_missing =
                    matches!(ended.reason.as_deref(), Some("StartError" | "ContainerCannotRun"));
                if is_missing {
                    let problem =
                        to_one_line(ended.message.as_deref().unwrap_or("no reason is given"));
                    return Err((program(container, title(&name), problem), None));
                }
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
        expect: &PodExpectation,
        starts_again: bool,
        now: Duration,
        seen: &mut PodObservation,
    ) -> Result<(), (PodFault, Option<String>)> {
        let name = &container.name;
        let status = ended::statuses(pod).find(|status| status.name == *name);
        let Some(status) = status else {
            seen.waits.push(format!("{} is not created yet", title(name)));
            return Ok(());
        };
        self.image(container, status, now, seen)?;
        let probe = container.readiness_probe.as_ref();
        let has_to_run = expect.running.contains(name) || probe.is_some();
        if let Some(terminated) = termination_state(status) {
            let has_failed = expect.services.contains(name) && terminated.exit_code != 0;
            if (has_to_run || has_failed) && !starts_again {
                let end = container_end(pod_name, name, terminated);
                return Err((end.into(), Some(name.clone())));
            }
            seen.ended.push((name.clone(), end(terminated)));
            if has_to_run {
                seen.waits.push(format!("{} is being restarted", title(name)));
            }
            return Ok(());
        }
        let state = status.state.as_ref();
        if state.and_then(|state| state.running.as_ref()).is_none() {
            let waiting = state.and_then(|state| state.waiting.as_ref());
            let reason =
                waiting.and_then(|one| join_reason(one.reason.as_deref(), one.message.as_deref()));
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
        seen.unready.push(name.clone());
        let is_counted = expect.checks.iter().any(|check| check.container == *name);
        if !is_counted && after > readiness_limit(probe) {
            let container = title(name);
            return Err((PodFault::Unready { container, after }, Some(name.clone())));
        }
        seen.waits.push(format!("{} is not ready yet", title(name)));
        Ok(())
    }

    /// Checks the image and the creation of a container.
    fn image(
        &mut self,
        container: &Container,
        status: &ContainerStatus,
        now: Duration,
        seen: &mut PodObservation,
    ) -> Result<(), (PodFault, Option<String>)> {
        let name = &container.name;
        let image = container.image.as_deref().unwrap_or_default();
        let Some(ContainerStateWaiting { reason, message }) = waiting_state(status) else {
            self.pulls.remove(name);
            self.stuck.remove(name);
            if status.state.as_ref().is_some_and(|state| *state != ContainerState::default()) {
                seen.progress.push(format!("image {image} is pulled"));
            }
            return Ok(());
        };
        let message = message.as_deref().unwrap_or_default();
        let mounted = self.mounted_image.as_deref();
        let image = mounted
            .filter(|mounted| message.contains(mounted) && !image.contains(mounted))
            .unwrap_or(image);
        let unpullable = |problem: &str| {
            let (container, image) = (title(name), to_one_line(image));
            (PodFault::Image { container, image, problem: to_one_line(problem) }, None)
        };
        let unstartable = |reason: &str| {
            let problem = join_reason(Some(reason), Some(message)).unwrap_or_default();
            (PodFault::Start { container: title(name), problem }, None)
        };
        match reason.as_deref().unwrap_or_default() {
            reason @ ("InvalidImageName" | "ErrImageNeverPull") => {
                Err(unpullable(&join_reason(Some(reason), Some(message)).unwrap_or_default()))
            }
            reason @ ("ErrImagePull"
            | "ImagePullBackOff"
            | "RegistryUnavailable"
            | "ImageInspectError"
            | "SignatureValidationFailed") => {
                let pull = self.pulls.entry(name.clone()).or_insert_with(|| PullAttempts::new(now));
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

/// Returns the fault of an init container that cannot be started, with a hint if it is the hook's
/// own.
fn program(container: &Container, title: String, problem: String) -> PodFault {
    if container.name != INIT {
        return PodFault::Start { container: title, problem };
    }
    let image = to_one_line(container.image.as_deref().unwrap_or_default());
    let hint = format!(
        "the image {image} needs the program container-hook in its PATH; set another image with `runner-image` \
         under [kubernetes] of the settings, or with ACTIONS_RUNNER_IMAGE"
    );
    PodFault::Program { container: title, problem, hint }
}

fn waiting_state(status: &ContainerStatus) -> Option<&ContainerStateWaiting> {
    status.state.as_ref().and_then(|state| state.waiting.as_ref())
}

/// Returns the scheduler's reason why a pod has no node, if any.
fn unscheduled_reason(pod: &Pod) -> Option<String> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let condition = conditions.iter().find(|one| one.type_ == "PodScheduled")?;
    if condition.status != "False" {
        return None;
    }
    // The reason adds nothing to the message.
    let message = join_reason(None, condition.message.as_deref());
    let reason = || join_reason(condition.reason.as_deref(), None);
    message.or_else(reason).or_else(|| Some("the scheduler gives no reason".to_owned()))
}

/// Returns the time in which a running container has to become ready: the initial delay of its
/// probe, all attempts, and one more.
fn readiness_limit(probe: &Probe) -> Duration {
    let seconds = |value: Option<i32>, or: u64| {
        value.and_then(|value| u64::try_from(value).ok()).filter(|value| *value > 0).unwrap_or(or)
    };
    let attempts = seconds(probe.failure_threshold, 3).max(seconds(probe.success_threshold, 1));
    let attempt = seconds(probe.period_seconds, 10) + seconds(probe.timeout_seconds, 1);
    // The kubelet starts at a random moment of the first period.
    Duration::from_secs(seconds(probe.initial_delay_seconds, 0) + attempt * (attempts + 1))
}

/// Number of the kubelet's back-offs after which pulling an image fails.
const MAX_BACK_OFFS: u32 = 3;

/// Time since the first failed pull after which pulling an image fails.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// Messages of registries and of containerd for permanent failures, in lower case.
const PERMANENT: [&str; 14] = [
    "not found",
    "notfound",
    "manifest unknown",
    "name unknown",
    "does not exist",
    "denied",
    "unauthorized",
    "authentication required",
    "authorization failed",
    "no basic auth credentials",
    "403 forbidden",
    "no match for platform",
    "does not match the specified platform",
    "invalid reference format",
];

/// Attempts to pull the image of one container.
#[derive(Debug)]
pub struct PullAttempts {
    since: Duration,
    back_offs: u32,
    is_back_off: bool,
    /// The kubelet's message about the last attempt.
    message: String,
}

impl PullAttempts {
    pub(super) fn new(now: Duration) -> Self {
        PullAttempts { since: now, back_offs: 0, is_back_off: false, message: String::new() }
    }

    /// Records the kubelet's reason and message.
    pub(super) fn note(&mut self, reason: &str, message: &str) {
        let is_back_off = reason == "ImagePullBackOff";
        if is_back_off && !self.is_back_off {
            self.back_offs += 1;
        }
        self.is_back_off = is_back_off;
        // A back-off alone gives no cause; newer kubelets append the cause.
        let says_why = !is_back_off || message.contains("Err");
        if says_why && !message.is_empty() || self.message.is_empty() {
            self.message = to_one_line(if message.is_empty() { reason } else { message });
        }
    }

    /// Returns whether pulling the image has failed for good: the message is of a permanent
    /// failure, or `MAX_BACK_OFFS` or `MAX_WAIT` is reached.
    fn is_hopeless(&self, now: Duration) -> bool {
        let message = self.message.to_lowercase();
        PERMANENT.iter().any(|words| message.contains(words))
            || self.back_offs >= MAX_BACK_OFFS
            || now.saturating_sub(self.since) >= MAX_WAIT
    }

    pub(super) fn message(&self) -> &str {
        &self.message
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn expect() -> PodExpectation {
        PodExpectation {
            running: vec!["job".to_owned()],
            shows_progress: true,
            ..Default::default()
        }
    }

    /// A pod of a job with a service `redis`, on a node, with these states.
    fn pod(job: &Value, redis: &Value) -> Value {
        let status = |name: &str, state: &Value| {
            json!({"name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": state})
        };
        json!({
            "metadata": {"name": "p"},
            "spec": {
                "nodeName": "n1",
                "restartPolicy": "Never",
                "initContainers": [{"name": "fs-init", "image": "runner:1"}],
                "containers": [{"name": "job", "image": "node:22"}, {"name": "redis", "image": "redis"}]
            },
            "status": {"phase": "Pending", "containerStatuses": [status("job", job), status("redis", redis)]}
        })
    }

    fn running_status() -> Value {
        json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}})
    }

    fn waiting_status(reason: &str, message: &str) -> Value {
        json!({"waiting": {"reason": reason, "message": message}})
    }

    fn ended_status(code: i32) -> Value {
        json!({"terminated": {"exitCode": code, "reason": "Error"}})
    }

    /// Gives the service a probe: a delay of 2 s, then 4 attempts of 3 s and 1 s each.
    fn with_probe(mut pod: Value, is_ready: bool) -> Value {
        pod["spec"]["containers"][1]["readinessProbe"] = json!({"initialDelaySeconds": 2, "periodSeconds": 3, "timeoutSeconds": 1, "failureThreshold": 4});
        pod["status"]["containerStatuses"][1]["ready"] = json!(is_ready);
        pod
    }

    fn observe_at(observer: &mut PodObserver, pod: Value, seconds: u64) -> PodObservation {
        let pod: Pod = serde_json::from_value(pod).unwrap();
        observer.observe_pod(Some(&pod), "p", &expect(), Duration::from_secs(seconds))
    }

    fn observe_once(pod: Value) -> PodObservation {
        observe_at(&mut PodObserver::default(), pod, 0)
    }

    /// Returns the reason why a pod will never be ready; empty if it may be.
    fn fault(pod: Value) -> String {
        match observe_once(pod).verdict {
            PodVerdict::Failed(fault, _) => fault.to_string(),
            _ => String::new(),
        }
    }

    #[test]
    fn pod_is_ready_when_all_containers_have_started() {
        let seen = observe_once(pod(&running_status(), &running_status()));
        assert_eq!(seen.verdict, PodVerdict::Ready);
        let lines = ["pod p is on node n1", "image node:22 is pulled", "image redis is pulled"];
        assert_eq!(seen.progress, lines);
        let seen = observe_once(pod(&running_status(), &waiting_status("ContainerCreating", "")));
        assert_eq!(
            (seen.verdict, seen.waits.join(";").as_str()),
            (PodVerdict::Waiting, "container redis: ContainerCreating")
        );
    }

    #[test]
    fn pod_without_container_states_is_pending() {
        let mut bare = pod(&running_status(), &running_status());
        bare["status"] = json!({});
        assert_eq!(observe_once(bare.clone()).verdict, PodVerdict::Waiting);
        bare["status"]["containerStatuses"] = json!([]);
        let seen = observe_once(bare);
        assert_eq!(seen.waits[0], "the job container is not created yet");
    }

    #[test]
    fn permanent_start_errors_are_reported_at_once() {
        for (reason, message, expected) in [
            (
                "InvalidImageName",
                "couldn't parse image reference \"A\": invalid reference format",
                "image redis of container redis cannot be pulled: InvalidImageName: couldn't parse image \
             reference \"A\": invalid reference format",
            ),
            (
                "ErrImageNeverPull",
                "Container image \"a\" is not present with pull policy of Never",
                "image redis of container redis cannot be pulled: ErrImageNeverPull: Container image \"a\" \
             is not present with pull policy of Never",
            ),
            (
                "CreateContainerConfigError",
                "secret \"s\" not found",
                "container redis cannot be started: CreateContainerConfigError: secret \"s\" not found",
            ),
            (
                "RunContainerError",
                "exec: \"x\": executable file not found in $PATH",
                "container redis cannot be started: RunContainerError: exec: \"x\": executable file not \
             found in $PATH",
            ),
            (
                "ErrImagePull",
                "rpc error: code = NotFound desc = docker.io/library/redis:9: not found",
                "image redis of container redis cannot be pulled: rpc error: code = NotFound desc = \
             docker.io/library/redis:9: not found",
            ),
        ] {
            assert_eq!(fault(pod(&running_status(), &waiting_status(reason, message))), expected);
        }
    }

    #[test]
    fn retryable_pull_is_waited_for_with_a_message() {
        let fails =
            |reason| pod(&waiting_status(reason, "dial tcp: i/o timeout"), &running_status());
        let mut observer = PodObserver::default();
        let seen = observe_at(&mut observer, fails("ErrImagePull"), 3);
        assert_eq!(seen.verdict, PodVerdict::Waiting);
        let line = "image node:22 is not pulled yet: dial tcp: i/o timeout".to_owned();
        assert!(seen.lines.contains(&line), "{:?}", seen.lines);
        assert_eq!(
            observe_at(&mut observer, fails("ImagePullBackOff"), 62).verdict,
            PodVerdict::Waiting
        );
        let PodVerdict::Failed(fault, _) =
            observe_at(&mut observer, fails("ErrImagePull"), 63).verdict
        else {
            panic!("a minute is over");
        };
        let expected = "image node:22 of the job container cannot be pulled: dial tcp: i/o timeout";
        assert_eq!(fault.to_string(), expected);
        // The limits start again for a container that has run in between.
        let mut observer = PodObserver::default();
        observe_at(&mut observer, fails("ErrImagePull"), 3);
        observe_at(&mut observer, pod(&running_status(), &running_status()), 50);
        assert_eq!(
            observe_at(&mut observer, fails("ErrImagePull"), 100).verdict,
            PodVerdict::Waiting
        );
    }

    #[test]
    fn image_errors_of_init_containers_are_reported() {
        let mut pod =
            pod(&waiting_status("PodInitializing", ""), &waiting_status("PodInitializing", ""));
        pod["status"]["initContainerStatuses"] = json!([{"name": "fs-init", "image": "", "imageID": "",
            "ready": false, "restartCount": 0, "state": waiting_status("ErrImagePull", "manifest unknown")}]);
        let expected = "image runner:1 of container fs-init cannot be pulled: manifest unknown";
        assert_eq!(fault(pod), expected);
    }

    #[test]
    fn failed_init_container_is_the_reason() {
        let mut pod =
            pod(&waiting_status("PodInitializing", ""), &waiting_status("PodInitializing", ""));
        pod["status"]["phase"] = json!("Failed");
        pod["status"]["initContainerStatuses"] = json!([{"name": "fs-init", "image": "", "imageID": "",
            "ready": false, "restartCount": 0, "state": ended_status(2)}]);
        let PodVerdict::Failed(fault, log) = observe_once(pod.clone()).verdict else { panic!() };
        assert_eq!(
            fault.to_string(),
            "container fs-init, which prepares the pod, ended with code 2"
        );
        assert_eq!(log.as_deref(), Some("fs-init"));
        pod["status"]["phase"] = json!("Pending");
        pod["status"]["initContainerStatuses"][0]["state"] = ended_status(0);
        assert_eq!(observe_once(pod).verdict, PodVerdict::Waiting);
    }

    #[test]
    fn repeated_creation_errors_end_the_wait() {
        let stuck =
            || pod(&waiting_status("CreateContainerError", "name is reserved"), &running_status());
        let mut observer = PodObserver::default();
        assert_eq!(observe_at(&mut observer, stuck(), 0).verdict, PodVerdict::Waiting);
        assert_eq!(observe_at(&mut observer, stuck(), 19).verdict, PodVerdict::Waiting);
        let PodVerdict::Failed(fault, _) = observe_at(&mut observer, stuck(), 20).verdict else {
            panic!()
        };
        let expected =
            "the job container cannot be started: CreateContainerError: name is reserved";
        assert_eq!(fault.to_string(), expected);
    }

    #[test]
    fn unscheduled_pod_shows_the_message_of_the_scheduler() {
        let mut pod = pod(&running_status(), &running_status());
        pod["spec"].as_object_mut().unwrap().remove("nodeName");
        pod["status"] = json!({"phase": "Pending", "conditions": [{"type": "PodScheduled",
            "status": "False", "reason": "Unschedulable",
            "message": "0/3 nodes are available: 3 Insufficient cpu."}]});
        let seen = observe_once(pod.clone());
        assert_eq!(seen.verdict, PodVerdict::Waiting);
        assert_eq!(
            seen.lines,
            ["the pod waits for a node: 0/3 nodes are available: 3 Insufficient cpu."]
        );
        pod["status"]["conditions"][0]["message"] = json!("");
        assert_eq!(observe_once(pod).lines, ["the pod waits for a node: Unschedulable"]);
    }

    #[test]
    fn end_of_the_job_container_is_a_failure() {
        let PodVerdict::Failed(fault, log) =
            observe_once(pod(&ended_status(1), &running_status())).verdict
        else {
            panic!()
        };
        assert_eq!(fault.to_string(), "the job container of pod p ended with code 1");
        assert_eq!(log.as_deref(), Some("job"));
        let killed = json!({"terminated": {"exitCode": 137, "reason": "OOMKilled"}});
        assert!(fault_of(&killed).contains("its memory limit (OOMKilled, code 137)"));
    }

    fn fault_of(job: &Value) -> String {
        fault(pod(job, &running_status()))
    }

    #[test]
    fn service_without_a_probe_may_end_and_is_reported() {
        for code in [0, 1] {
            let seen = observe_once(pod(&running_status(), &ended_status(code)));
            assert_eq!(seen.verdict, PodVerdict::Ready);
            assert_eq!(seen.ended, [("redis".to_owned(), format!("ended with code {code}"))]);
        }
    }

    #[test]
    fn service_with_a_probe_must_become_ready() {
        assert_eq!(
            observe_once(with_probe(pod(&running_status(), &running_status()), true)).verdict,
            PodVerdict::Ready
        );
        let unready = || with_probe(pod(&running_status(), &running_status()), false);
        let mut observer = PodObserver::default();
        assert_eq!(observe_at(&mut observer, unready(), 10).verdict, PodVerdict::Waiting);
        assert_eq!(observe_at(&mut observer, unready(), 32).verdict, PodVerdict::Waiting);
        let PodVerdict::Failed(fault, log) = observe_at(&mut observer, unready(), 33).verdict
        else {
            panic!()
        };
        assert_eq!(
            fault.to_string(),
            "container redis is not ready after 23 s: its readiness probe has not succeeded"
        );
        assert_eq!(log.as_deref(), Some("redis"));
        let fault = fault_with_probe(&ended_status(1));
        assert_eq!(fault, "container redis of pod p ended with code 1");
    }

    fn fault_with_probe(redis: &Value) -> String {
        fault(with_probe(pod(&running_status(), redis), false))
    }

    #[test]
    fn restarted_container_has_not_ended() {
        let mut again = pod(&ended_status(1), &running_status());
        again["spec"]["restartPolicy"] = json!("Always");
        let seen = observe_once(again);
        assert_eq!(seen.verdict, PodVerdict::Waiting);
        assert_eq!(seen.waits, ["the job container is being restarted"]);
    }

    #[test]
    fn a_service_that_fails_is_a_failure_of_the_pod() {
        let expect = PodExpectation { services: vec!["redis".to_owned()], ..expect() };
        let look = |code| {
            let pod: Pod =
                serde_json::from_value(pod(&running_status(), &ended_status(code))).unwrap();
            PodObserver::default().observe_pod(Some(&pod), "p", &expect, Duration::ZERO).verdict
        };
        let PodVerdict::Failed(fault, log) = look(5) else { panic!() };
        assert_eq!(fault.to_string(), "container redis of pod p ended with code 5");
        assert_eq!(log.as_deref(), Some("redis"));
        // A service may have finished its work.
        assert_eq!(look(0), PodVerdict::Ready);
    }

    #[test]
    fn a_missing_program_of_the_hook_is_reported_with_a_hint() {
        let mut pod =
            pod(&waiting_status("PodInitializing", ""), &waiting_status("PodInitializing", ""));
        pod["status"]["initContainerStatuses"] = json!([{"name": "fs-init", "image": "", "imageID": "",
            "ready": false, "restartCount": 0, "state": {"terminated": {"exitCode": 128,
            "reason": "StartError", "message": "executable file not found in $PATH"}}}]);
        let fault = fault(pod);
        let start = "container fs-init, which prepares the pod, cannot be started: executable file not found in \
                     $PATH; the image runner:1 needs the program container-hook in its PATH";
        assert!(fault.starts_with(start), "{fault}");
    }

    #[test]
    fn failed_or_deleted_pod_is_a_failure() {
        let mut evicted = pod(&running_status(), &running_status());
        evicted["status"] =
            json!({"phase": "Failed", "reason": "Evicted", "message": "low on memory"});
        assert_eq!(fault(evicted), "pod p failed: Evicted: low on memory");
        let mut going = pod(&running_status(), &running_status());
        going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert_eq!(fault(going), "pod p is being deleted");
        let gone = PodObserver::default().observe_pod(None, "p", &expect(), Duration::ZERO);
        let PodVerdict::Failed(fault, _) = gone.verdict else { panic!() };
        assert_eq!(fault.to_string(), "pod p was deleted");
    }

    #[test]
    fn hostile_pod_status_is_shortened_and_does_not_overflow() {
        let long = "x\u{1b}[2J\n".repeat(100_000);
        let fault =
            fault(pod(&waiting_status("CreateContainerConfigError", &long), &running_status()));
        assert!(fault.chars().count() < 1200 && !fault.contains('\u{1b}'));
        let mut pod = with_probe(pod(&running_status(), &running_status()), false);
        let probe = &mut pod["spec"]["containers"][1]["readinessProbe"];
        *probe = json!({"periodSeconds": i32::MAX, "failureThreshold": i32::MAX,
            "timeoutSeconds": -1, "initialDelaySeconds": i32::MIN});
        assert_eq!(observe_once(pod).verdict, PodVerdict::Waiting);
    }

    const AT: Duration = Duration::from_secs(5);

    fn pull(said: &[(&str, &str)]) -> PullAttempts {
        let mut pull = PullAttempts::new(AT);
        said.iter().for_each(|(reason, message)| pull.note(reason, message));
        pull
    }

    #[test]
    fn denied_pull_is_hopeless_at_once() {
        for message in [
            "rpc error: code = NotFound desc = failed to pull and unpack image \"docker.io/library/nop:1\": \
             failed to resolve reference \"docker.io/library/nop:1\": docker.io/library/nop:1: not found",
            "pull access denied, repository does not exist or may require authorization",
            "failed to authorize: unexpected status: 401 Unauthorized",
            "no match for platform in manifest: not found",
            "manifest unknown",
        ] {
            assert!(pull(&[("ErrImagePull", message)]).is_hopeless(AT), "{message}");
        }
    }

    #[test]
    fn temporary_pull_error_is_retried_for_a_minute_or_three_pauses() {
        let fails = ("ErrImagePull", "dial tcp: i/o timeout");
        let pauses = ("ImagePullBackOff", "Back-off pulling image \"a\"");
        let one = pull(&[fails, pauses, pauses, pauses]);
        assert!(!one.is_hopeless(AT + Duration::from_secs(59)));
        assert!(one.is_hopeless(AT + Duration::from_secs(60)));
        assert_eq!(one.message(), "dial tcp: i/o timeout");
        assert!(!pull(&[fails, pauses, fails, pauses]).is_hopeless(AT));
        assert!(pull(&[fails, pauses, fails, pauses, fails, pauses]).is_hopeless(AT));
    }

    #[test]
    fn reason_of_a_pull_pause_is_quoted() {
        let newer = "Back-off pulling image \"a\": ErrImagePull: manifest unknown";
        let pull = pull(&[("ErrImagePull", ""), ("ImagePullBackOff", newer)]);
        assert_eq!(pull.message(), newer);
        assert!(pull.is_hopeless(AT));
    }
}
