//! The state that the runner keeps for the hook between the calls of a job.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The state of a job that was prepared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobState {
    /// Name of the hook, to recognize the state of other hooks.
    hook: String,
    /// Job container; none if the steps run on the host.
    pub container: Option<String>,
    /// Services, in the order of the request.
    pub services: Vec<String>,
    /// Socket of the job container for steps; none if the OCI runtime starts the steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<StepAccess>,
    /// Pod of the job, under the key of the reference hook; none on a single host.
    #[serde(default, rename = "jobPod", skip_serializing_if = "Option::is_none")]
    pub job_pod: Option<String>,
    /// State of the pod, for steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodState>,
}

/// The state of a job's pod that steps need, so that they need not query the API server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodState {
    pub namespace: String,
    pub uid: String,
    /// Pod of the runner that owns the job.
    pub runner: String,
    /// If set, files are uploaded to the containers; else they are on a volume that the runner also mounts.
    pub copies: bool,
}

/// The directory with the socket on which the init process of a job container accepts steps, and its access rules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepAccess {
    pub directory: PathBuf,
    /// Owner of the job: [`CallingRunner::owner`](crate::runner::CallingRunner::owner).
    pub owner: String,
    /// Set if the container's user differs from the owner of the runner's files.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shares_directories: bool,
    /// Table of the settings that denies user namespaces to the steps; none if they are allowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub denied_by: Option<String>,
}

const HOOK: &str = "oci-hooks";

impl JobState {
    /// Returns the state of a job whose containers have these ids.
    pub fn new(
        container: Option<String>,
        services: Vec<String>,
        steps: Option<StepAccess>,
    ) -> Self {
        JobState { hook: HOOK.to_owned(), container, services, steps, job_pod: None, pod: None }
    }

    /// Returns the state as the runner keeps it between its calls.
    pub fn to_json(&self) -> Value {
        serde_json::to_value(self).expect("strings are JSON")
    }

    /// Reads a state; returns none if it is missing or from another hook.
    pub fn read(state: Option<&Map<String, Value>>) -> Option<Self> {
        let state: JobState = serde_json::from_value(Value::Object(state?.clone())).ok()?;
        (state.hook == HOOK).then_some(state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_state_of_this_hook_is_read() {
        let steps = StepAccess {
            directory: "/run/oci-hooks/steps".into(),
            owner: "o".into(),
            shares_directories: true,
            denied_by: Some("[policy] of the settings".to_owned()),
        };
        for steps in [None, Some(steps)] {
            let state = JobState::new(Some("a".into()), vec!["b".into()], steps);
            assert_eq!(JobState::read(state.to_json().as_object()), Some(state));
        }
        let pod = PodState {
            namespace: "jobs".into(),
            uid: "u".into(),
            runner: "runner-1".into(),
            copies: true,
        };
        let state = JobState::new(Some("c".into()), Vec::new(), None);
        let state = JobState { job_pod: Some("p".into()), pod: Some(pod), ..state };
        assert_eq!(state.to_json()["jobPod"], "p");
        assert_eq!(JobState::read(state.to_json().as_object()), Some(state));
        let foreign = serde_json::json!({"network": "n", "container": "c", "services": ["s"]});
        assert_eq!(JobState::read(foreign.as_object()), None);
        assert_eq!(JobState::read(None), None);
    }
}
