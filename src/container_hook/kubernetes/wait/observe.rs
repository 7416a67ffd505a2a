//! What an answer about a pod means: ready, not yet, or never.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateWaiting, ContainerStatus, Pod, Probe,
};

use super::ended::{self, ContainerEnd, check_pod, end, one_line, said, terminated, title};

/// How long a container may not be created, for what may pass: the runtime is slow, or has not yet
/// forgotten another one.
const MAX_CREATION: Duration = Duration::from_secs(20);

/// What a pod is waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expect {
    /// The containers that have to run; their end is a failure. Others have to have started, and those
    /// that have a readiness probe have to be ready.
    pub running: Vec<String>,
    /// Whether people read what goes well, and not only what is waited for: they do not where an action writes
    /// its own to the same log.
    pub shows_progress: bool,
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
pub struct Observation {
    pub verdict: Verdict,
    /// What goes well, once each.
    pub progress: Vec<String>,
    /// What keeps the pod from being ready, and people are told, once each.
    pub lines: Vec<String>,
    /// Containers that ended though nothing depends on them, and how.
    pub ended: Vec<(String, String)>,
    /// What is waited for at the moment.
    pub waits: Vec<String>,
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
pub struct Observer {
    pulls: BTreeMap<String, Pull>,
    /// Since when containers are not created.
    stuck: BTreeMap<String, Duration>,
    /// Since when containers run, by our own clock.
    runs: BTreeMap<String, Duration>,
}

impl Observer {
    /// Returns what an answer means at a time: how long the pod has been waited for.
    pub fn look(
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

/// After how many pauses of the kubelet, or how long, there is no more hope.
const MAX_BACK_OFFS: u32 = 3;

const MAX_WAIT: Duration = Duration::from_secs(60);

/// What registries and containerd say when the next time is no better, in lower case.
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

/// The attempts to pull the image of one container.
#[derive(Debug)]
pub struct Pull {
    since: Duration,
    back_offs: u32,
    is_back_off: bool,
    /// What the kubelet said of the last attempt.
    message: String,
}

impl Pull {
    pub(super) fn new(now: Duration) -> Self {
        Pull { since: now, back_offs: 0, is_back_off: false, message: String::new() }
    }

    /// Notes what the kubelet says at a time.
    pub(super) fn note(&mut self, reason: &str, message: &str) {
        let is_back_off = reason == "ImagePullBackOff";
        if is_back_off && !self.is_back_off {
            self.back_offs += 1;
        }
        self.is_back_off = is_back_off;
        // That it pauses says nothing; newer ones say why, too.
        let says_why = !is_back_off || message.contains("Err");
        if says_why && !message.is_empty() || self.message.is_empty() {
            self.message = one_line(if message.is_empty() { reason } else { message });
        }
    }

    /// Returns whether another attempt is of no use, or has had its time.
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

    fn expect() -> Expect {
        Expect { running: vec!["job".to_owned()], shows_progress: true }
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

    fn running() -> Value {
        json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}})
    }

    fn waiting(reason: &str, message: &str) -> Value {
        json!({"waiting": {"reason": reason, "message": message}})
    }

    fn ended(code: i32) -> Value {
        json!({"terminated": {"exitCode": code, "reason": "Error"}})
    }

    /// Gives the service a probe: 2 s at first, then 4 attempts of 3 s and 1 s each.
    fn with_probe(mut pod: Value, is_ready: bool) -> Value {
        pod["spec"]["containers"][1]["readinessProbe"] = json!({"initialDelaySeconds": 2, "periodSeconds": 3, "timeoutSeconds": 1, "failureThreshold": 4});
        pod["status"]["containerStatuses"][1]["ready"] = json!(is_ready);
        pod
    }

    fn look_at(observer: &mut Observer, pod: Value, seconds: u64) -> Observation {
        let pod: Pod = serde_json::from_value(pod).unwrap();
        observer.look(Some(&pod), "p", &expect(), Duration::from_secs(seconds))
    }

    fn look(pod: Value) -> Observation {
        look_at(&mut Observer::default(), pod, 0)
    }

    /// Returns why a pod will never be ready; nothing if it may be.
    fn fault(pod: Value) -> String {
        match look(pod).verdict {
            Verdict::Failed(fault, _) => fault.to_string(),
            _ => String::new(),
        }
    }

    #[test]
    fn a_pod_is_ready_when_all_have_started() {
        let seen = look(pod(&running(), &running()));
        assert_eq!(seen.verdict, Verdict::Ready);
        let lines = ["pod p is on node n1", "image node:22 is pulled", "image redis is pulled"];
        assert_eq!(seen.progress, lines);
        let seen = look(pod(&running(), &waiting("ContainerCreating", "")));
        assert_eq!(
            (seen.verdict, seen.waits.join(";").as_str()),
            (Verdict::Waiting, "container redis: ContainerCreating")
        );
    }

    #[test]
    fn a_pod_without_states_is_waited_for() {
        let mut bare = pod(&running(), &running());
        bare["status"] = json!({});
        assert_eq!(look(bare.clone()).verdict, Verdict::Waiting);
        bare["status"]["containerStatuses"] = json!([]);
        let seen = look(bare);
        assert_eq!(seen.waits[0], "the job container is not created yet");
    }

    #[test]
    fn what_can_never_start_is_said_at_once() {
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
            assert_eq!(fault(pod(&running(), &waiting(reason, message))), expected);
        }
    }

    #[test]
    fn a_pull_that_may_work_later_is_waited_for_with_a_line() {
        let fails = |reason| pod(&waiting(reason, "dial tcp: i/o timeout"), &running());
        let mut observer = Observer::default();
        let seen = look_at(&mut observer, fails("ErrImagePull"), 3);
        assert_eq!(seen.verdict, Verdict::Waiting);
        let line = "image node:22 is not pulled yet: dial tcp: i/o timeout".to_owned();
        assert!(seen.lines.contains(&line), "{:?}", seen.lines);
        assert_eq!(look_at(&mut observer, fails("ImagePullBackOff"), 62).verdict, Verdict::Waiting);
        let Verdict::Failed(fault, _) = look_at(&mut observer, fails("ErrImagePull"), 63).verdict
        else {
            panic!("a minute is over");
        };
        let expected = "image node:22 of the job container cannot be pulled: dial tcp: i/o timeout";
        assert_eq!(fault.to_string(), expected);
        // One that worked in between begins anew.
        let mut observer = Observer::default();
        look_at(&mut observer, fails("ErrImagePull"), 3);
        look_at(&mut observer, pod(&running(), &running()), 50);
        assert_eq!(look_at(&mut observer, fails("ErrImagePull"), 100).verdict, Verdict::Waiting);
    }

    #[test]
    fn an_image_of_an_init_container_counts_as_well() {
        let mut pod = pod(&waiting("PodInitializing", ""), &waiting("PodInitializing", ""));
        pod["status"]["initContainerStatuses"] = json!([{"name": "fs-init", "image": "", "imageID": "",
            "ready": false, "restartCount": 0, "state": waiting("ErrImagePull", "manifest unknown")}]);
        let expected = "image runner:1 of container fs-init cannot be pulled: manifest unknown";
        assert_eq!(fault(pod), expected);
    }

    #[test]
    fn a_container_that_prepares_and_fails_is_the_reason() {
        let mut pod = pod(&waiting("PodInitializing", ""), &waiting("PodInitializing", ""));
        pod["status"]["phase"] = json!("Failed");
        pod["status"]["initContainerStatuses"] = json!([{"name": "fs-init", "image": "", "imageID": "",
            "ready": false, "restartCount": 0, "state": ended(2)}]);
        let Verdict::Failed(fault, log) = look(pod.clone()).verdict else { panic!() };
        assert_eq!(
            fault.to_string(),
            "container fs-init, which prepares the pod, ended with code 2"
        );
        assert_eq!(log.as_deref(), Some("fs-init"));
        pod["status"]["phase"] = json!("Pending");
        pod["status"]["initContainerStatuses"][0]["state"] = ended(0);
        assert_eq!(look(pod).verdict, Verdict::Waiting);
    }

    #[test]
    fn a_creation_that_fails_for_long_is_given_up() {
        let stuck = || pod(&waiting("CreateContainerError", "name is reserved"), &running());
        let mut observer = Observer::default();
        assert_eq!(look_at(&mut observer, stuck(), 0).verdict, Verdict::Waiting);
        assert_eq!(look_at(&mut observer, stuck(), 19).verdict, Verdict::Waiting);
        let Verdict::Failed(fault, _) = look_at(&mut observer, stuck(), 20).verdict else {
            panic!()
        };
        let expected =
            "the job container cannot be started: CreateContainerError: name is reserved";
        assert_eq!(fault.to_string(), expected);
    }

    #[test]
    fn a_queue_is_waited_in_with_the_words_of_the_scheduler() {
        let mut pod = pod(&running(), &running());
        pod["spec"].as_object_mut().unwrap().remove("nodeName");
        pod["status"] = json!({"phase": "Pending", "conditions": [{"type": "PodScheduled",
            "status": "False", "reason": "Unschedulable",
            "message": "0/3 nodes are available: 3 Insufficient cpu."}]});
        let seen = look(pod.clone());
        assert_eq!(seen.verdict, Verdict::Waiting);
        assert_eq!(seen.lines, ["waits for a node: 0/3 nodes are available: 3 Insufficient cpu."]);
        pod["status"]["conditions"][0]["message"] = json!("");
        assert_eq!(look(pod).lines, ["waits for a node: Unschedulable"]);
    }

    #[test]
    fn the_end_of_the_job_container_is_a_failure() {
        let Verdict::Failed(fault, log) = look(pod(&ended(1), &running())).verdict else {
            panic!()
        };
        assert_eq!(fault.to_string(), "the job container of pod p ended with code 1");
        assert_eq!(log.as_deref(), Some("job"));
        let killed = json!({"terminated": {"exitCode": 137, "reason": "OOMKilled"}});
        assert!(fault_of(&killed).contains("more memory than it may (OOMKilled, code 137)"));
    }

    fn fault_of(job: &Value) -> String {
        fault(pod(job, &running()))
    }

    #[test]
    fn a_service_without_a_probe_may_end_and_is_reported() {
        for code in [0, 1] {
            let seen = look(pod(&running(), &ended(code)));
            assert_eq!(seen.verdict, Verdict::Ready);
            assert_eq!(seen.ended, [("redis".to_owned(), format!("ended with code {code}"))]);
        }
    }

    #[test]
    fn a_service_with_a_probe_has_to_be_ready() {
        assert_eq!(look(with_probe(pod(&running(), &running()), true)).verdict, Verdict::Ready);
        let unready = || with_probe(pod(&running(), &running()), false);
        let mut observer = Observer::default();
        assert_eq!(look_at(&mut observer, unready(), 10).verdict, Verdict::Waiting);
        assert_eq!(look_at(&mut observer, unready(), 32).verdict, Verdict::Waiting);
        let Verdict::Failed(fault, log) = look_at(&mut observer, unready(), 33).verdict else {
            panic!()
        };
        assert_eq!(fault.to_string(), "container redis is not ready after 23 s");
        assert_eq!(log.as_deref(), Some("redis"));
        let fault = fault_with_probe(&ended(1));
        assert_eq!(fault, "container redis of pod p ended with code 1");
    }

    fn fault_with_probe(redis: &Value) -> String {
        fault(with_probe(pod(&running(), redis), false))
    }

    #[test]
    fn what_is_started_again_has_not_ended() {
        let mut again = pod(&ended(1), &running());
        again["spec"]["restartPolicy"] = json!("Always");
        let seen = look(again);
        assert_eq!(seen.verdict, Verdict::Waiting);
        assert_eq!(seen.waits, ["the job container is started again"]);
    }

    #[test]
    fn the_pod_itself_may_fail_or_go() {
        let mut evicted = pod(&running(), &running());
        evicted["status"] =
            json!({"phase": "Failed", "reason": "Evicted", "message": "low on memory"});
        assert_eq!(fault(evicted), "pod p failed: Evicted: low on memory");
        let mut going = pod(&running(), &running());
        going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert_eq!(fault(going), "pod p is being deleted");
        let gone = Observer::default().look(None, "p", &expect(), Duration::ZERO);
        let Verdict::Failed(fault, _) = gone.verdict else { panic!() };
        assert_eq!(fault.to_string(), "pod p was deleted");
    }

    #[test]
    fn a_hostile_status_is_harmless() {
        let long = "x\u{1b}[2J\n".repeat(100_000);
        let fault = fault(pod(&waiting("CreateContainerConfigError", &long), &running()));
        assert!(fault.chars().count() < 1200 && !fault.contains('\u{1b}'));
        let mut pod = with_probe(pod(&running(), &running()), false);
        let probe = &mut pod["spec"]["containers"][1]["readinessProbe"];
        *probe = json!({"periodSeconds": i32::MAX, "failureThreshold": i32::MAX,
            "timeoutSeconds": -1, "initialDelaySeconds": i32::MIN});
        assert_eq!(look(pod).verdict, Verdict::Waiting);
    }

    const AT: Duration = Duration::from_secs(5);

    fn pull(said: &[(&str, &str)]) -> Pull {
        let mut pull = Pull::new(AT);
        said.iter().for_each(|(reason, message)| pull.note(reason, message));
        pull
    }

    #[test]
    fn what_the_registry_denies_is_not_waited_for() {
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
    fn what_may_pass_gets_a_minute_or_three_pauses() {
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
    fn a_pause_that_says_why_is_quoted() {
        let newer = "Back-off pulling image \"a\": ErrImagePull: manifest unknown";
        let pull = pull(&[("ErrImagePull", ""), ("ImagePullBackOff", newer)]);
        assert_eq!(pull.message(), newer);
        assert!(pull.is_hopeless(AT));
    }
}
