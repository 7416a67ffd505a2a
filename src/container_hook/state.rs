//! What the runner keeps for us between the calls of a job.

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
}

const HOOK: &str = "oci-hooks";

impl JobState {
    pub(super) fn new(container: Option<String>, services: Vec<String>) -> Self {
        JobState { hook: HOOK.to_owned(), container, services }
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
        let state = JobState::new(Some("a".into()), vec!["b".into()]);
        assert_eq!(JobState::read(state.to_json().as_object()), Some(state));
        let foreign = serde_json::json!({"network": "n", "container": "c", "services": ["s"]});
        assert_eq!(JobState::read(foreign.as_object()), None);
        assert_eq!(JobState::read(None), None);
    }
}
