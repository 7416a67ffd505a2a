//! Reads the runner's pod from variables of GitHub's hook. `ACTIONS_RUNNER_HEARTBEAT_PERIOD_MS`,
//! `…_DEADLINE_MS` and `ACTIONS_RUNNER_USE_KUBE_SCHEDULER` are ignored: streams have their own heartbeats,
//! and only the scheduler places pods.

use std::env;
use std::path::Path;
use std::time::Duration;

use container_hook_job::HookLog;

use super::EnvironmentError;

/// Directory of a pod's service account.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

pub const NAME: &str = "ACTIONS_RUNNER_POD_NAME";
pub const NAMESPACE: &str = "ACTIONS_RUNNER_KUBERNETES_NAMESPACE";
pub const CLAIM: &str = "ACTIONS_RUNNER_CLAIM_NAME";
pub const IMAGE: &str = "ACTIONS_RUNNER_IMAGE";
const TIMEOUT: &str = "ACTIONS_RUNNER_PREPARE_JOB_TIMEOUT_SECONDS";

/// Returns the value of a variable that is set and not empty.
pub fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// Returns whether this process runs in the pod of a runner.
pub fn is_of_runner() -> bool {
    variable(NAME).is_some() && Path::new(SERVICE_ACCOUNT).is_dir()
}

/// Returns the name of the runner's pod.
pub fn name() -> Result<String, EnvironmentError> {
    variable(NAME).ok_or(EnvironmentError::NoPod)
}

/// Returns the timeout of `prepare_job`. Like GitHub's hook, ignores an invalid number with a warning.
pub fn prepare_timeout(log: &dyn HookLog) -> Option<Duration> {
    let text = variable(TIMEOUT)?;
    match text.parse() {
        Ok(seconds) if seconds > 0 => Some(Duration::from_secs(seconds)),
        _ => {
            log.warning(&format!(
                "{TIMEOUT}: expected a number of seconds above 0, got {text:?}; the default is used"
            ));
            None
        }
    }
}
