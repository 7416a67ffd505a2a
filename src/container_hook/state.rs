//! What the runner keeps for us between the calls of a job.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The state of a job that was prepared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobState {
    /// Whose state this is: other hooks have other ones.
    hook: String,
    /// The job container; none if the steps run on the host.
    pub container: Option<String>,
    /// The services, in the order of the request.
    pub services: Vec<String>,
    /// How the job container takes steps without a runtime; none if it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<StepAccess>,
    /// The pod of the job, under the name that the reference has for it; none on one host.
    #[serde(default, rename = "jobPod", skip_serializing_if = "Option::is_none")]
    pub job_pod: Option<String>,
    /// What steps have to know of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodState>,
}

/// What steps have to know of the pod of a job, so that the API server need not be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodState {
    pub namespace: String,
    pub uid: String,
    /// The pod of the runner whose job it is.
    pub runner: String,
    /// Whether files get to its containers by copies; else they are on a claim that the runner has mounted.
    pub copies: bool,
}

/// Where the first process of a job container takes steps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepAccess {
    /// The directory with its socket.
    pub directory: PathBuf,
    /// Whose job it is: [`Runner::owner`](super::Runner::owner).
    pub owner: String,
    /// Whether its program has another user than the runner's files do.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_lent: bool,
    /// The table of the settings that could allow user namespaces to its steps; none if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub denied_by: Option<String>,
}

const HOOK: &str = "oci-hooks";

impl JobState {
    pub(super) fn new(
        container: Option<String>,
        services: Vec<String>,
        steps: Option<StepAccess>,
    ) -> Self {
        JobState { hook: HOOK.to_owned(), container, services, steps, job_pod: None, pod: None }
    }

    pub(super) fn to_json(&self) -> Value {
        serde_json::to_value(self).expect("strings are JSON")
    }

    /// Reads a state; none if there is none or if it is not one of ours.
    pub(super) fn read(state: Option<&Map<String, Value>>) -> Option<Self> {
        let state: JobState = serde_json::from_value(Value::Object(state?.clone())).ok()?;
        (state.hook == HOOK).then_some(state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_state_is_read() {
        let steps = StepAccess {
            directory: "/run/oci-hooks/steps".into(),
            owner: "o".into(),
            is_lent: true,
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
