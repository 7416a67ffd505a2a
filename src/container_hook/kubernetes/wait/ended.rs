//! Why a container runs no more, in words.

use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod};

/// A container that was to run does not, and never will again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContainerEnd {
    #[error("pod {pod} was deleted")]
    Deleted { pod: String },
    #[error("pod {pod} is being deleted")]
    Going { pod: String },
    /// The pod was evicted, for instance.
    #[error("pod {pod} failed: {reason}")]
    Pod { pod: String, reason: String },
    #[error("the node of pod {pod} is lost: {reason}")]
    Node { pod: String, reason: String },
    #[error("{container} of pod {pod} {end}")]
    Container { pod: String, container: String, end: String },
}

/// Fails if a container has ended, or cannot go on: its pod is gone, or going.
///
/// # Errors
///
/// Returns why.
pub fn check(pod: Option<&Pod>, name: &str, container: &str) -> Result<(), ContainerEnd> {
    let name = name.to_owned();
    let Some(pod) = pod else { return Err(ContainerEnd::Deleted { pod: name }) };
    check_pod(pod, &name)?;
    let status = statuses(pod).find(|status| status.name == container);
    let terminated = status.and_then(terminated);
    if let Some(terminated) = terminated {
        let end = end(terminated);
        return Err(ContainerEnd::Container { pod: name, container: title(container), end });
    }
    match pod.status.as_ref().and_then(|status| status.phase.as_deref()) {
        Some(phase @ ("Failed" | "Succeeded")) => {
            Err(ContainerEnd::Pod { pod: name, reason: format!("its phase is {phase}") })
        }
        _ if pod.metadata.deletion_timestamp.is_some() => Err(ContainerEnd::Going { pod: name }),
        _ => Ok(()),
    }
}

/// Fails if the pod as a whole has ended, for a reason that is none of its containers.
pub fn check_pod(pod: &Pod, name: &str) -> Result<(), ContainerEnd> {
    let Some(status) = &pod.status else { return Ok(()) };
    let name = name.to_owned();
    let said = said(status.reason.as_deref(), status.message.as_deref());
    let is_lost = status.reason.as_deref() == Some("NodeLost");
    match (status.phase.as_deref(), said) {
        (_, Some(reason)) if is_lost => Err(ContainerEnd::Node { pod: name, reason }),
        (Some("Unknown"), reason) => {
            let reason = reason.unwrap_or_else(|| "nothing is heard of it".to_owned());
            Err(ContainerEnd::Node { pod: name, reason })
        }
        // As `Evicted`; what only a container did has no reason here.
        (Some("Failed"), Some(reason)) => Err(ContainerEnd::Pod { pod: name, reason }),
        _ => Ok(()),
    }
}

/// Returns the states of all containers but those that prepare the pod.
pub fn statuses(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let status = pod.status.as_ref();
    status.and_then(|status| status.container_statuses.as_ref()).into_iter().flatten()
}

/// Returns how a container ended, if it did and is not started again.
pub fn terminated(status: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    status.state.as_ref().and_then(|state| state.terminated.as_ref())
}

/// Returns how a container ended, as what it did: `ended with code 1`.
pub fn end(terminated: &ContainerStateTerminated) -> String {
    let ContainerStateTerminated { exit_code, signal, reason, message, .. } = terminated;
    let message = message.as_deref().map(str::trim).filter(|message| !message.is_empty());
    let how = match (reason.as_deref(), signal) {
        (Some("OOMKilled"), _) => {
            format!(
                "was killed, because it used more memory than it may (OOMKilled, code {exit_code})"
            )
        }
        (Some("StartError" | "ContainerCannotRun"), _) => "could not be started".to_owned(),
        (Some("DeadlineExceeded"), _) => "was ended, because its pod has lived too long".to_owned(),
        (Some("Completed" | "Error") | None, Some(signal)) if *signal > 0 => {
            format!("was ended by signal {signal}")
        }
        (Some("Completed" | "Error") | None, _) => format!("ended with code {exit_code}"),
        (Some(reason), _) => format!("ended with code {exit_code} ({reason})"),
    };
    message.map_or(how.clone(), |message| format!("{how}: {}", one_line(message)))
}

/// Returns what is said of something: the reason, and the message if there is one.
pub fn said(reason: Option<&str>, message: Option<&str>) -> Option<String> {
    let given =
        |text: Option<&str>| text.map(str::trim).filter(|text| !text.is_empty()).map(one_line);
    match (given(reason), given(message)) {
        (Some(reason), Some(message)) => Some(format!("{reason}: {message}")),
        (reason, message) => reason.or(message),
    }
}

/// Returns what people call a container.
pub fn title(container: &str) -> String {
    match container {
        JOB => "the job container".to_owned(),
        name => format!("container {name}"),
    }
}

/// The name of the container that steps run in.
pub const JOB: &str = "job";

/// Returns a text of the cluster as one line that is no more than people read, and that no terminal acts
/// on.
pub fn one_line(text: &str) -> String {
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

    fn why(status: Value) -> String {
        let pod: Pod = serde_json::from_value(json!({"status": status})).unwrap();
        check(Some(&pod), "p", "job").map_or_else(|end| end.to_string(), |()| String::new())
    }

    fn job(terminated: Value) -> Value {
        json!({"phase": "Running", "containerStatuses": [{
            "name": "job", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": terminated}}]})
    }

    #[test]
    fn the_end_of_a_container_is_said_with_its_reason() {
        for (terminated, expected) in [
            (json!({"exitCode": 1, "reason": "Error"}), "ended with code 1"),
            (json!({"exitCode": 0, "reason": "Completed"}), "ended with code 0"),
            (json!({"exitCode": 0, "signal": 9}), "was ended by signal 9"),
            (
                json!({"exitCode": 137, "reason": "OOMKilled"}),
                "was killed, because it used more memory than it may (OOMKilled, code 137)",
            ),
            (
                json!({"exitCode": 128, "reason": "StartError", "message": "no such\n file\u{1b}"}),
                "could not be started: no such file",
            ),
        ] {
            assert_eq!(why(job(terminated)), format!("the job container of pod p {expected}"));
        }
    }

    #[test]
    fn the_end_of_a_pod_is_said_with_the_words_of_the_cluster() {
        let evicted = json!({"phase": "Failed", "reason": "Evicted",
            "message": "The node was low on resource: memory. "});
        let expected = "pod p failed: Evicted: The node was low on resource: memory.";
        assert_eq!(why(evicted), expected);
        let lost = json!({"phase": "Running", "reason": "NodeLost", "message": "Node n is gone"});
        assert_eq!(why(lost), "the node of pod p is lost: NodeLost: Node n is gone");
        let unknown = json!({"phase": "Unknown"});
        assert_eq!(why(unknown), "the node of pod p is lost: nothing is heard of it");
        assert_eq!(why(json!({"phase": "Succeeded"})), "pod p failed: its phase is Succeeded");
        assert_eq!(check(None, "p", "job").unwrap_err().to_string(), "pod p was deleted");
    }

    #[test]
    fn a_pod_that_runs_has_not_ended_until_it_goes() {
        assert_eq!(why(json!({"phase": "Running"})), "");
        let mut pod: Pod = serde_json::from_value(json!({"status": {"phase": "Running"}})).unwrap();
        pod.metadata = serde_json::from_value(
            json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "name": "p"}),
        )
        .unwrap();
        let end = check(Some(&pod), "p", "job").unwrap_err();
        assert_eq!(end.to_string(), "pod p is being deleted");
    }

    #[test]
    fn long_words_are_cut() {
        assert_eq!(one_line(&"é".repeat(2000)).chars().count(), 1001);
    }
}
