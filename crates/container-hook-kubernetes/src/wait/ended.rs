//! Reasons of a container's end, for messages.

use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod};

use crate::backend::JOB;

/// Final reasons of a container that does not run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContainerEnd {
    #[error("pod {pod} was deleted")]
    Deleted { pod: String },
    #[error("pod {pod} is being deleted")]
    BeingDeleted { pod: String },
    /// The pod has failed, for example by eviction.
    #[error("pod {pod} failed: {reason}")]
    Pod { pod: String, reason: String },
    /// The cluster reports neither the pod's reason nor the container's end.
    #[error("pod {pod} ended with phase {phase}")]
    Phase { pod: String, phase: String },
    #[error("the node of pod {pod} is lost: {reason}")]
    Node { pod: String, reason: String },
    #[error("{container} of pod {pod} {end}")]
    Container { pod: String, container: String, end: String },
}

/// Checks that a container can still run.
///
/// # Errors
///
/// Returns the reason if the container has ended, or if its pod is deleted or being deleted.
pub fn check(pod: Option<&Pod>, name: &str, container: &str) -> Result<(), ContainerEnd> {
    let name = name.to_owned();
    let Some(pod) = pod else { return Err(ContainerEnd::Deleted { pod: name }) };
    check_pod(pod, &name)?;
    let status = statuses(pod).find(|status| status.name == container);
    let terminated = status.and_then(termination_state);
    if let Some(terminated) = terminated {
        return Err(container_end(&name, container, terminated));
    }
    match pod.status.as_ref().and_then(|status| status.phase.as_deref()) {
        Some(phase @ ("Failed" | "Succeeded")) => {
            Err(ContainerEnd::Phase { pod: name, phase: phase.to_owned() })
        }
        _ if pod.metadata.deletion_timestamp.is_some() => {
            Err(ContainerEnd::BeingDeleted { pod: name })
        }
        _ => Ok(()),
    }
}

/// Returns whether a container has ended with no reason but `Completed` or `Error`, while the phase
/// of its pod is still `Running`. The cluster may report a specific reason later, such as an
/// eviction.
pub fn may_be_explained(pod: &Pod, name: &str, container: &str) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let status = statuses(pod).find(|status| status.name == container);
    let reason = status.and_then(termination_state).map(|terminated| terminated.reason.as_deref());
    let has_no_cause = matches!(reason, Some(None | Some("Completed" | "Error")));
    phase == Some("Running") && has_no_cause && check(Some(pod), name, container).is_err()
}

/// Returns the cluster's report about a container that does not answer, for messages.
pub fn describe(pod: Option<&Pod>, name: &str, container: &str) -> String {
    if let Err(end) = check(pod, name, container) {
        return end.to_string();
    }
    let node = pod.and_then(|pod| pod.spec.as_ref()?.node_name.as_deref()).unwrap_or("unknown");
    let status = pod.and_then(|pod| pod.status.as_ref());
    let conditions = status.and_then(|status| status.conditions.as_ref()).into_iter().flatten();
    let unready = conditions.filter(|one| one.type_ == "Ready" && one.status != "True");
    let mut reasons =
        unready.filter_map(|one| join_reason(one.reason.as_deref(), one.message.as_deref()));
    match reasons.next() {
        Some(reason) => format!("pod {name} on node {node} is not ready: {reason}"),
        None => format!("the cluster reports no problem of pod {name} on node {node}"),
    }
}

/// Fails if the pod as a whole has ended, for a reason other than its containers.
pub fn check_pod(pod: &Pod, name: &str) -> Result<(), ContainerEnd> {
    let Some(status) = &pod.status else { return Ok(()) };
    let name = name.to_owned();
    let said = join_reason(status.reason.as_deref(), status.message.as_deref());
    let is_lost = status.reason.as_deref() == Some("NodeLost");
    match (status.phase.as_deref(), said) {
        (_, Some(reason)) if is_lost => Err(ContainerEnd::Node { pod: name, reason }),
        (Some("Unknown"), reason) => {
            let reason = reason.unwrap_or_else(|| "no status is reported".to_owned());
            Err(ContainerEnd::Node { pod: name, reason })
        }
        // Reasons such as `Evicted`; a failed container leaves the pod's reason empty.
        (Some("Failed"), Some(reason)) => Err(ContainerEnd::Pod { pod: name, reason }),
        _ => Ok(()),
    }
}

/// Returns the statuses of all containers except init containers.
pub fn statuses(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let status = pod.status.as_ref();
    status.and_then(|status| status.container_statuses.as_ref()).into_iter().flatten()
}

/// Returns the termination state of a container, if it has ended and is not restarted.
pub fn termination_state(status: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    status.state.as_ref().and_then(|state| state.terminated.as_ref())
}

/// Returns the end of a container as an error. The hook ends a job container only by deleting its
/// pod, so if the container's exit code is that of a signal or 0, the error names other causes.
pub fn container_end(
    pod: &str,
    container: &str,
    terminated: &ContainerStateTerminated,
) -> ContainerEnd {
    let mut end = end(terminated);
    // The agent exits with 143 on `SIGTERM`, with another such code on another `STOPSIGNAL` of the image (`SIGHUP`,
    // `SIGINT`, `SIGQUIT`), and with 0 only if the container's own program does.
    if container == JOB && matches!(terminated.exit_code, 0 | 129..=131 | 143) {
        end = format!(
            "{end}, but the hook did not end it: an eviction, a shutdown of the node, `kubectl delete` or its own \
             program did; see `kubectl get events --field-selector involvedObject.name={pod}`"
        );
    }
    ContainerEnd::Container { pod: pod.to_owned(), container: title(container), end }
}

/// Describes the end of a container: `ended with code 1`.
pub fn end(terminated: &ContainerStateTerminated) -> String {
    let ContainerStateTerminated { exit_code, signal, reason, message, .. } = terminated;
    let message = message.as_deref().map(str::trim).filter(|message| !message.is_empty());
    let how = match (reason.as_deref(), signal) {
        (Some("OOMKilled"), _) => {
            format!("was killed for exceeding its memory limit (OOMKilled, code {exit_code})")
        }
        (Some("StartError" | "ContainerCannotRun"), _) => "could not be started".to_owned(),
        (Some("DeadlineExceeded"), _) => {
            "was killed, because its pod exceeded its deadline".to_owned()
        }
        (Some("Completed" | "Error") | None, Some(signal)) if *signal > 0 => {
            format!("was ended by signal {signal}")
        }
        (Some("Completed" | "Error") | None, _) => format!("ended with code {exit_code}"),
        (Some(reason), _) => format!("ended with code {exit_code} ({reason})"),
    };
    message.map_or(how.clone(), |message| format!("{how}: {}", to_one_line(message)))
}

/// Joins a reason and a message as `REASON: MESSAGE`; `None` if both are missing or empty.
pub fn join_reason(reason: Option<&str>, message: Option<&str>) -> Option<String> {
    let given =
        |text: Option<&str>| text.map(str::trim).filter(|text| !text.is_empty()).map(to_one_line);
    match (given(reason), given(message)) {
        (Some(reason), Some(message)) => Some(format!("{reason}: {message}")),
        (reason, message) => reason.or(message),
    }
}

/// Returns the name of a container for messages.
pub fn title(container: &str) -> String {
    match container {
        JOB => "the job container".to_owned(),
        name => format!("container {name}"),
    }
}

/// Returns a text of the cluster as one line of limited length, without control characters.
pub fn to_one_line(text: &str) -> String {
    const MAX_CHARS: usize = 1000;
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let clean = words.chars().filter(|char| !char.is_control());
    match words.chars().count() > MAX_CHARS {
        true => clean.take(MAX_CHARS).chain(['…']).collect(),
        false => clean.collect(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn end_reason(status: Value) -> String {
        let pod: Pod = serde_json::from_value(json!({"status": status})).unwrap();
        check(Some(&pod), "p", "job").map_or_else(|end| end.to_string(), |()| String::new())
    }

    fn job(terminated: Value) -> Value {
        json!({"phase": "Running", "containerStatuses": [{
            "name": "job", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": terminated}}]})
    }

    #[test]
    fn end_of_a_container_is_reported_with_its_reason() {
        for (terminated, expected) in [
            (json!({"exitCode": 1, "reason": "Error"}), "ended with code 1"),
            (json!({"exitCode": 137, "signal": 9}), "was ended by signal 9"),
            (
                json!({"exitCode": 137, "reason": "OOMKilled"}),
                "was killed for exceeding its memory limit (OOMKilled, code 137)",
            ),
            (
                json!({"exitCode": 128, "reason": "StartError", "message": "no such\n file\u{1b}"}),
                "could not be started: no such file",
            ),
        ] {
            assert_eq!(
                end_reason(job(terminated)),
                format!("the job container of pod p {expected}")
            );
        }
    }

    #[test]
    fn job_container_that_the_hook_did_not_end_is_reported_with_a_hint() {
        for (phase, code) in
            [("Succeeded", 0), ("Failed", 143), ("Running", 143), ("Failed", 129), ("Failed", 131)]
        {
            let mut status = job(json!({"exitCode": code, "reason": "Error"}));
            status["phase"] = json!(phase);
            let end = end_reason(status);
            let start = format!(
                "the job container of pod p ended with code {code}, but the hook did not end it: an eviction, "
            );
            assert!(end.starts_with(&start), "{end}");
            assert!(end.ends_with("`kubectl get events --field-selector involvedObject.name=p`"));
        }
        let mut evicted = job(json!({"exitCode": 143, "reason": "Error"}));
        evicted["phase"] = json!("Failed");
        evicted["reason"] = json!("Evicted");
        assert_eq!(end_reason(evicted), "pod p failed: Evicted");
    }

    #[test]
    fn end_in_a_pod_that_still_runs_may_get_a_reason() {
        let is_open = |mut status: Value, phase: &str| {
            status["phase"] = json!(phase);
            let pod = serde_json::from_value(json!({"status": status})).unwrap();
            may_be_explained(&pod, "p", "job")
        };
        let ended = |reason: &str| job(json!({"exitCode": 137, "reason": reason}));
        assert!(is_open(job(json!({"exitCode": 0})), "Running"));
        assert!(is_open(ended("Error"), "Running"));
        assert!(!is_open(ended("OOMKilled"), "Running"));
        assert!(!is_open(ended("Error"), "Failed"));
        assert!(!is_open(json!({}), "Running"));
    }

    #[test]
    fn end_of_a_pod_is_reported_with_the_message_of_the_cluster() {
        let evicted = json!({"phase": "Failed", "reason": "Evicted",
            "message": "The node was low on resource: memory. "});
        let expected = "pod p failed: Evicted: The node was low on resource: memory.";
        assert_eq!(end_reason(evicted), expected);
        let lost = json!({"phase": "Running", "reason": "NodeLost", "message": "Node n is gone"});
        assert_eq!(end_reason(lost), "the node of pod p is lost: NodeLost: Node n is gone");
        let unknown = json!({"phase": "Unknown"});
        assert_eq!(end_reason(unknown), "the node of pod p is lost: no status is reported");
        assert_eq!(end_reason(json!({"phase": "Succeeded"})), "pod p ended with phase Succeeded");
        assert_eq!(check(None, "p", "job").unwrap_err().to_string(), "pod p was deleted");
    }

    #[test]
    fn silent_container_is_described_by_its_end_or_its_node() {
        let described = |status: Value| {
            let pod: Pod =
                serde_json::from_value(json!({"spec": {"nodeName": "n", "containers": []},
                    "status": status}))
                .unwrap();
            describe(Some(&pod), "p", "job")
        };
        let expected = "the cluster reports no problem of pod p on node n";
        assert_eq!(described(json!({"phase": "Running"})), expected);
        let unready = json!({"type": "Ready", "status": "False", "reason": "NodeNotReady"});
        let expected = "pod p on node n is not ready: NodeNotReady";
        assert_eq!(described(json!({"phase": "Running", "conditions": [unready]})), expected);
        let ended = described(job(json!({"exitCode": 1})));
        assert_eq!(ended, "the job container of pod p ended with code 1");
    }

    #[test]
    fn running_pod_has_not_ended_until_it_is_deleted() {
        assert_eq!(end_reason(json!({"phase": "Running"})), "");
        let mut pod: Pod = serde_json::from_value(json!({"status": {"phase": "Running"}})).unwrap();
        pod.metadata = serde_json::from_value(
            json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "name": "p"}),
        )
        .unwrap();
        let end = check(Some(&pod), "p", "job").unwrap_err();
        assert_eq!(end.to_string(), "pod p is being deleted");
    }

    #[test]
    fn long_messages_are_cut() {
        assert_eq!(to_one_line(&"é".repeat(2000)).chars().count(), 1001);
    }
}
