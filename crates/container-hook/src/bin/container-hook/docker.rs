//! Variables that configure GitHub's docker hook and the `docker` command that it calls: some have an effect
//! here, and the others are reported as ignored.

use std::env;

use container_hook_job::HookLog as _;
use container_hook_job::options::{HostNamespace, NetworkMode};
use container_hook_job::policy::Policy;
use container_hook_job::runner::RunnerDefaults;
use oci_hooks_engine_cli::host::container_env_of_docker;

use crate::error::HookCommandError;
use crate::log::StepLog;

/// Variable with the network driver of all containers.
const NETWORK: &str = "ACTIONS_RUNNER_NETWORK_DRIVER";
/// Variable with the platform for which images are pulled.
const PLATFORM: &str = "DOCKER_DEFAULT_PLATFORM";
/// Variable that makes docker reject unsigned images.
const CONTENT_TRUST: &str = "DOCKER_CONTENT_TRUST";

/// Variables with an effect, or with their own warning.
#[cfg(test)]
pub const VARIABLES: [&str; 4] = [NETWORK, "DOCKER_CONFIG", CONTENT_TRUST, PLATFORM];

/// Variables of the `docker` client, which have no effect here.
pub const OF_DOCKER: [&str; 9] = [
    "BUILDKIT_PROGRESS",
    "DOCKER_API_VERSION",
    "DOCKER_CERT_PATH",
    "DOCKER_CONTENT_TRUST_SERVER",
    "DOCKER_CONTEXT",
    "DOCKER_HIDE_LEGACY_COMMANDS",
    "DOCKER_HOST",
    "DOCKER_STACK_ORCHESTRATOR",
    "DOCKER_TLS_VERIFY",
];

/// Returns the defaults for containers whose `options:` do not override them.
pub fn defaults(policy: &Policy) -> Result<RunnerDefaults, HookCommandError> {
    let platform = variable(PLATFORM).map(|text| text.parse()).transpose()?;
    let network = network(policy).unwrap_or_default();
    Ok(RunnerDefaults { network, platform, env: container_env_of_docker()? })
}

/// Logs which environment variables of Docker and GitHub's docker hook are set but have no effect
/// here; the policy decides about the network driver.
pub fn report(policy: &Policy, log: &StepLog) {
    for (is_warning, text) in ineffective_variables(policy, variable) {
        if is_warning {
            log.warning(&text);
        } else {
            log.line(&text);
        }
    }
}

fn ineffective_variables(
    policy: &Policy,
    variable: impl Fn(&str) -> Option<String>,
) -> Vec<(bool, String)> {
    let mut lines = Vec::new();
    match variable(NETWORK).as_deref() {
        None | Some("none") => {}
        Some("host") if allows_host(policy) => {}
        Some("host") => lines.push((
            false,
            format!(
                "{NETWORK}=host has no effect: the admin of this machine can allow the network of the host \
                 with `host-namespaces = [\"network\"]` under [policy]"
            ),
        )),
        Some(_) => lines.push((
            false,
            format!(
                "{NETWORK} has no effect: networks of Docker are not supported, and each job has a \
                 network of its own"
            ),
        )),
    }
    let names: Vec<_> = OF_DOCKER.into_iter().filter(|name| variable(name).is_some()).collect();
    match names[..] {
        [] => {}
        [name] => lines.push((false, format!("{name} has no effect: docker is not called"))),
        _ => lines
            .push((false, format!("{} have no effect: docker is not called", names.join(", ")))),
    }
    // Docker treats every value as true, except `0`, `false` and the like.
    let is_no = |text: &str| matches!(text, "0" | "f" | "F" | "false" | "False" | "FALSE");
    if variable(CONTENT_TRUST).is_some_and(|text| !is_no(&text)) {
        lines.push((
            true,
            format!("{CONTENT_TRUST} has no effect: signatures of images are not verified"),
        ));
    }
    lines
}

fn network(policy: &Policy) -> Option<NetworkMode> {
    match variable(NETWORK)?.as_str() {
        "none" => Some(NetworkMode::None),
        "host" if allows_host(policy) => Some(NetworkMode::Host),
        _ => None,
    }
}

fn allows_host(policy: &Policy) -> bool {
    policy.host_namespaces.contains(&HostNamespace::Network)
}

fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(set: &[(&str, &str)], policy: &Policy) -> Vec<(bool, String)> {
        ineffective_variables(policy, |name| {
            set.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn ineffective_variables_are_reported_once() {
        let policy = Policy::default();
        let host = Policy { host_namespaces: vec![HostNamespace::Network], ..Policy::default() };
        for (set, policy) in [
            (&[][..], &policy),
            (&[(PLATFORM, "linux/arm64"), (NETWORK, "none"), (CONTENT_TRUST, "0")], &policy),
            (&[(NETWORK, "host")], &host),
        ] {
            assert_eq!(lines(set, policy), []);
        }
        let set = [
            (NETWORK, "bridge-1"),
            ("DOCKER_HOST", "secret"),
            ("BUILDKIT_PROGRESS", "plain"),
            (CONTENT_TRUST, "1"),
        ];
        let lines = lines(&set, &policy);
        let starts = [
            "ACTIONS_RUNNER_NETWORK_DRIVER has no effect: networks of",
            "BUILDKIT_PROGRESS, DOCKER_HOST have no effect: docker is not called",
            "DOCKER_CONTENT_TRUST has no effect",
        ];
        assert_eq!(lines.len(), starts.len(), "{lines:?}");
        for ((is_warning, line), start) in lines.iter().zip(starts) {
            assert!(line.starts_with(start) && !line.contains("secret"), "{line}");
            assert_eq!(*is_warning, start.starts_with("DOCKER_CONTENT_TRUST "));
        }
    }
}
