//! What the environment says of the pod of the runner, by the variables of the reference. Those of its
//! heartbeats and its scheduler, `ACTIONS_RUNNER_HEARTBEAT_PERIOD_MS`, `…_DEADLINE_MS` and
//! `ACTIONS_RUNNER_USE_KUBE_SCHEDULER`, have no meaning here: streams have heartbeats of their own, and nobody
//! but the scheduler places pods.

use std::env;
use std::path::Path;
use std::time::Duration;

use oci_hooks::container_hook::Log;

use super::EnvironmentError;

/// The directory of a pod's service account.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

pub const NAME: &str = "ACTIONS_RUNNER_POD_NAME";
pub const NAMESPACE: &str = "ACTIONS_RUNNER_KUBERNETES_NAMESPACE";
pub const CLAIM: &str = "ACTIONS_RUNNER_CLAIM_NAME";
pub const IMAGE: &str = "ACTIONS_RUNNER_IMAGE";
const TIMEOUT: &str = "ACTIONS_RUNNER_PREPARE_JOB_TIMEOUT_SECONDS";

/// Returns a variable that is set, and not to nothing.
pub fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// Returns whether this runs in the pod of a runner.
pub fn is_of_runner() -> bool {
    variable(NAME).is_some() && Path::new(SERVICE_ACCOUNT).is_dir()
}

/// Returns the name of the runner's pod.
pub fn name() -> Result<String, EnvironmentError> {
    variable(NAME).ok_or(EnvironmentError::NoPod)
}

/// Returns how long a job waits for its containers; like the reference, a warning and nothing for what is no
/// number.
pub fn prepare_timeout(log: &dyn Log) -> Option<Duration> {
    let text = variable(TIMEOUT)?;
    match text.parse() {
        Ok(seconds) if seconds > 0 => Some(Duration::from_secs(seconds)),
        _ => {
            log.warning(&format!("{TIMEOUT}: expected a number of seconds above 0, got {text:?}"));
            None
        }
    }
}
