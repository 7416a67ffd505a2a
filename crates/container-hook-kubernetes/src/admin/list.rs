//! The pods of jobs and steps.

use std::collections::BTreeMap;

use container_hook_job::runner::PREFIX;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerState, Pod};
use serde::Serialize;

use super::super::client::{ClusterClient, ClusterError};
use crate::pod::{MANAGED_BY, RUNNER_LABEL, services_annotation};
use crate::wait::ended;

/// A pod of a job or a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct JobPod {
    pub name: String,
    /// Name of the runner's pod, from the label; shortened if it is too long for a label's value.
    pub runner: String,
    /// Role of the pod, from its annotations, such as `job` or `step`.
    pub role: String,
    /// Phase that the cluster reports: `Pending`, `Running`, `Succeeded`, `Failed`.
    pub phase: String,
    /// Reason why the pod failed, is not scheduled, or is being deleted; `None` if none of them is
    /// the case.
    pub reason: Option<String>,
    pub node: Option<String>,
    pub created: Option<Timestamp>,
    pub containers: Vec<PodContainer>,
    /// Annotations that describe the job, without their prefix: `repository`, `workflow`, `run-id`
    /// and the like.
    pub job: BTreeMap<String, String>,
}

/// A container of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PodContainer {
    pub name: String,
    pub image: String,
    /// State of the container, such as `running`, `ended with code 1` or `ContainerCreating`.
    pub state: String,
}

/// Returns the pods of all jobs and steps in the namespace, oldest first.
///
/// # Errors
///
/// Fails if the cluster is unreachable or denies the request.
pub async fn list(cluster: &ClusterClient) -> Result<Vec<JobPod>, ClusterError> {
    let mut pods: Vec<_> = cluster.pods(&selector()).await?.iter().map(JobPod::new).collect();
    pods.sort_by(|a, b| (a.created, &a.name).cmp(&(b.created, &b.name)));
    Ok(pods)
}

impl JobPod {
    fn new(pod: &Pod) -> Self {
        let status = pod.status.clone().unwrap_or_default();
        let spec = pod.spec.clone().unwrap_or_default();
        let annotations = pod.metadata.annotations.clone().unwrap_or_default();
        let label = |name| pod.metadata.labels.as_ref().and_then(|labels| labels.get(name));
        let mut job: BTreeMap<String, String> = annotations
            .into_iter()
            .filter(|(key, _)| *key != services_annotation())
            .filter_map(|(key, value)| Some((key.strip_prefix(PREFIX)?.to_owned(), value)))
            .collect();
        let states = ended::statuses(pod).map(|status| (status.name.as_str(), status));
        let states: BTreeMap<_, _> = states.collect();
        let containers = spec.containers.iter().map(|container| PodContainer {
            name: container.name.clone(),
            image: container.image.clone().unwrap_or_default(),
            state: states
                .get(container.name.as_str())
                .and_then(|status| status.state.as_ref())
                .map_or("not created".to_owned(), state),
        });
        let is_going = pod.metadata.deletion_timestamp.is_some();
        let reason = ended::join_reason(status.reason.as_deref(), status.message.as_deref());
        let going = || is_going.then(|| "is being deleted".to_owned());
        let waits = || {
            let conditions = status.conditions.iter().flatten();
            let mut scheduled = conditions.filter(|one| one.type_ == "PodScheduled");
            let failed = scheduled.find(|one| one.status == "False")?;
            ended::join_reason(failed.reason.as_deref(), failed.message.as_deref())
        };
        JobPod {
            name: pod.metadata.name.clone().unwrap_or_default(),
            runner: label(RUNNER_LABEL).cloned().unwrap_or_default(),
            role: job.remove("role").unwrap_or_default(),
            phase: status.phase.clone().unwrap_or_else(|| "Unknown".to_owned()),
            reason: going().or(reason).or_else(waits),
            node: spec.node_name,
            created: pod.metadata.creation_timestamp.as_ref().map(|time| time.0),
            containers: containers.collect(),
            job,
        }
    }
}

fn state(state: &ContainerState) -> String {
    if let Some(terminated) = &state.terminated {
        return ended::end(terminated);
    }
    if state.running.is_some() {
        return "running".to_owned();
    }
    let waiting = state.waiting.as_ref();
    let said =
        waiting.and_then(|one| ended::join_reason(one.reason.as_deref(), one.message.as_deref()));
    said.unwrap_or_else(|| "not created".to_owned())
}

/// Returns the label selector of the objects of all runners.
pub fn selector() -> String {
    let (label, value) = MANAGED_BY;
    format!("{label}={value}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::client::testing::{answer, cluster};

    #[test]
    fn pods_are_listed_with_their_runner_and_fate() {
        let status = |name: &str, state| {
            json!({"name": name, "image": "", "imageID": "", "ready": true, "restartCount": 0,
                "state": state})
        };
        let newer = json!({
            "metadata": {"name": "b", "creationTimestamp": "2026-01-01T00:00:02Z",
                "labels": {"runner-pod": "r"},
                "annotations": {"com.github.actions.role": "job",
                    "com.github.actions.service-containers": "redis",
                    "com.github.actions.repository": "octo/repo", "other": "x"}},
            "spec": {"nodeName": "n", "containers": [
                {"name": "job", "image": "node:22"}, {"name": "redis", "image": "redis"},
                {"name": "late", "image": "a"}]},
            "status": {"phase": "Running", "containerStatuses": [
                status("job", json!({"running": {}})),
                status("redis", json!({"terminated": {"exitCode": 1, "reason": "Error"}}))]}
        });
        let older = json!({
            "metadata": {"name": "a", "creationTimestamp": "2026-01-01T00:00:01Z"},
            "status": {"conditions": [{"type": "PodScheduled", "status": "False",
                "reason": "Unschedulable", "message": "0/1 nodes"}]}
        });
        let body = json!({"items": [newer, older]}).to_string();
        let (cluster, calls) = cluster(vec![answer(200, &body)]);
        let pods = cluster.run(list(&cluster)).unwrap();
        let shown = serde_json::to_value(&pods).unwrap();
        let expected = json!([
            {"name": "a", "runner": "", "role": "", "phase": "Unknown",
                "reason": "Unschedulable: 0/1 nodes", "node": null,
                "created": "2026-01-01T00:00:01Z", "containers": [], "job": {}},
            {"name": "b", "runner": "r", "role": "job", "phase": "Running", "reason": null,
                "node": "n", "created": "2026-01-01T00:00:02Z",
                "containers": [
                    {"name": "job", "image": "node:22", "state": "running"},
                    {"name": "redis", "image": "redis", "state": "ended with code 1"},
                    {"name": "late", "image": "a", "state": "not created"}],
                "job": {"repository": "octo/repo"}}
        ]);
        assert_eq!(shown, expected);
        let asked = &calls.lock().unwrap()[0].0;
        assert!(asked.contains("app.kubernetes.io%2Fmanaged-by%3Doci-hooks"), "{asked}");
    }
}
