//! Health checks of services. A check becomes a readiness probe, as other probes kill containers that fail. The
//! kubelet does not report failures of a probe, so while a job waits for a service, the hook runs the check too
//! and counts its failures.

use std::time::Duration;

use container_hook_job::plan::PlanRole;
use k8s_openapi::api::core::v1::{ExecAction, PodSpec, Probe};
use oci_hooks_image::{Healthcheck, ImageConfig};

use super::agent::literal;
use super::requested::RequestedContainer;

const INTERVAL: Duration = Duration::from_secs(30);
const TIMEOUT: Duration = Duration::from_secs(30);
const RETRIES: u32 = 3;

/// Maximum period of probes. The period of a probe is fixed, and a job waits for the first success: with
/// Docker's interval that would take half a minute. Each probe starts a process on the node, until the job
/// ends, so the period is not shorter.
const PERIOD: Duration = Duration::from_secs(2);

/// Health check of a container, with Docker's defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// Name of the container in its pod.
    pub container: String,
    pub command: Vec<String>,
    pub interval: Duration,
    pub timeout: Duration,
    /// Time in which failures do not count.
    pub start_period: Duration,
    pub start_interval: Option<Duration>,
    /// Number of failures in succession that make the container unhealthy.
    pub retries: u32,
}

impl HealthCheck {
    /// Returns the health check of a container, from its options or else its image; `None` if it
    /// has none. A job container does not run its image's program, so its image's check is ignored.
    pub fn new(container: &RequestedContainer<'_>, name: &str) -> Option<Self> {
        Self::of_image(&of(container)?, container.facts, name)
    }

    fn of_image(check: &Healthcheck, image: Option<&ImageConfig>, name: &str) -> Option<Self> {
        let shell = image.and_then(|image| image.shell.as_deref());
        Some(HealthCheck {
            container: name.to_owned(),
            command: command(&check.test, shell)?,
            interval: check.interval.unwrap_or(INTERVAL),
            timeout: check.timeout.unwrap_or(TIMEOUT),
            start_period: check.start_period.unwrap_or_default(),
            start_interval: check.start_interval,
            retries: check.retries.filter(|retries| *retries > 0).unwrap_or(RETRIES),
        })
    }

    /// Returns the check as a readiness probe.
    pub fn probe(&self) -> Probe {
        let shortest = self.start_interval.unwrap_or(self.interval).min(self.interval).min(PERIOD);
        let within = self.start_period.saturating_add(self.interval.saturating_mul(self.retries));
        let period = seconds(shortest);
        // As many failures as fit in the time for which Docker would wait.
        let failures = (seconds(within) / period).max(1);
        Probe {
            exec: Some(ExecAction {
                command: Some(self.command.iter().map(|word| literal(word)).collect()),
            }),
            period_seconds: Some(period),
            timeout_seconds: Some(seconds(self.timeout)),
            failure_threshold: Some(failures),
            ..Probe::default()
        }
    }

    /// Returns whether the container of a pod still has this check as its probe.
    pub fn is_probe_of(&self, spec: &PodSpec) -> bool {
        let container = spec.containers.iter().find(|one| one.name == self.container);
        container.is_some_and(|one| one.readiness_probe == Some(self.probe()))
    }

    /// Returns the time before the next check of a container that is not healthy yet and has run for `age`.
    pub fn pause(&self, age: Duration) -> Duration {
        match self.start_interval {
            Some(interval) if age < self.start_period => interval,
            _ => self.interval,
        }
    }
}

fn of(container: &RequestedContainer<'_>) -> Option<Healthcheck> {
    let asked = &container.options.health;
    // A step is over when it ends.
    if asked.disabled || container.role == PlanRole::Step {
        return None;
    }
    let image = container.facts.filter(|_| container.role != PlanRole::Job);
    let base = image.and_then(|image| image.healthcheck.clone()).unwrap_or_default();
    let line = asked.command.as_ref().filter(|line| !line.is_empty());
    Some(Healthcheck {
        test: line.map_or(base.test, |line| vec!["CMD-SHELL".to_owned(), line.clone()]),
        interval: asked.interval.or(base.interval),
        timeout: asked.timeout.or(base.timeout),
        start_period: asked.start_period.or(base.start_period),
        start_interval: asked.start_interval.or(base.start_interval),
        retries: asked.retries.or(base.retries),
    })
}

fn command(test: &[String], shell: Option<&[String]>) -> Option<Vec<String>> {
    let (kind, rest) = test.split_first()?;
    match (kind.as_str(), rest) {
        ("CMD", [_, ..]) => Some(rest.to_vec()),
        ("CMD-SHELL", [line, ..]) => {
            let default = ["/bin/sh".to_owned(), "-c".to_owned()];
            let shell = shell.filter(|shell| !shell.is_empty()).unwrap_or(&default);
            Some([shell, std::slice::from_ref(line)].concat())
        }
        _ => None,
    }
}

/// Converts a duration to whole seconds, rounded up, at least 1.
fn seconds(time: Duration) -> i32 {
    let whole = time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0)).max(1);
    i32::try_from(whole).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(test: &[&str]) -> Healthcheck {
        let test = test.iter().map(|word| (*word).to_owned()).collect();
        Healthcheck { test, ..Healthcheck::default() }
    }

    #[test]
    fn probe_times_match_docker_in_seconds() {
        let check = Healthcheck {
            interval: Some(Duration::from_millis(1500)),
            timeout: Some(Duration::from_millis(200)),
            start_period: Some(Duration::from_secs(10)),
            retries: Some(5),
            ..check(&["CMD", "true"])
        };
        let probe = |check| HealthCheck::of_image(&check, None, "a").unwrap().probe();
        let made = probe(check);
        assert_eq!((made.period_seconds, made.timeout_seconds), (Some(2), Some(1)));
        assert_eq!(made.failure_threshold, Some(9), "17.5 s");
        let made = probe(self::check(&["CMD", "true"]));
        assert_eq!((made.period_seconds, made.timeout_seconds), (Some(2), Some(30)));
        assert_eq!(made.failure_threshold, Some(45), "90 s");
    }

    #[test]
    fn probe_commands_run_like_in_docker() {
        let of = |test: &[&str], shell: Option<&[String]>| command(&check(test).test, shell);
        let ash = ["/bin/ash".to_owned(), "-c".to_owned()];
        assert_eq!(of(&["CMD", "a", "b"], None).unwrap(), ["a", "b"]);
        assert_eq!(of(&["CMD-SHELL", "a b"], None).unwrap(), ["/bin/sh", "-c", "a b"]);
        assert_eq!(of(&["CMD-SHELL", "a"], Some(&ash)).unwrap(), ["/bin/ash", "-c", "a"]);
        for none in [&["NONE"][..], &[], &["CMD"], &["CMD-SHELL"]] {
            assert_eq!(of(none, None), None, "{none:?}");
        }
    }
}
