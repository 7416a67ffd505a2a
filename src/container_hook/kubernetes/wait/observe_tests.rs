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
    assert_eq!(fault.to_string(), "container fs-init, which prepares the pod, ended with code 2");
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
    let Verdict::Failed(fault, _) = look_at(&mut observer, stuck(), 20).verdict else { panic!() };
    let expected = "the job container cannot be started: CreateContainerError: name is reserved";
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
    let Verdict::Failed(fault, log) = look(pod(&ended(1), &running())).verdict else { panic!() };
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
    evicted["status"] = json!({"phase": "Failed", "reason": "Evicted", "message": "low on memory"});
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
