//! Health checks, as readiness probes: other probes kill what does not pass them.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ExecAction, Probe};

use super::agent::literal;
use super::asked::Asked;
use crate::container_hook::plan::Role;
use crate::image::Healthcheck;

/// What Docker takes where nobody says anything.
const INTERVAL: Duration = Duration::from_secs(30);
const TIMEOUT: Duration = Duration::from_secs(30);
const RETRIES: u32 = 3;

/// How often is looked at the most. A probe cannot be changed, and a job waits for the first that is passed:
/// with Docker's interval that would take half a minute. Each is a process on the node, for as long as the job
/// lasts: so not each second.
const PERIOD: Duration = Duration::from_secs(2);

/// Returns the check of a container: that of its options, else its image's. A job container does not run what
/// its image is for, so the image's is nothing to it.
pub fn of(container: &Asked<'_>) -> Option<Probe> {
    let asked = &container.options.health;
    // A step is over when it ends.
    if asked.disabled || container.role == Role::Step {
        return None;
    }
    let image = container.facts.filter(|_| container.role != Role::Job);
    let base = image.and_then(|image| image.healthcheck.clone()).unwrap_or_default();
    let shell = container.facts.and_then(|image| image.shell.clone());
    let line = asked.command.as_ref().filter(|line| !line.is_empty());
    let check = Healthcheck {
        test: line.map_or(base.test, |line| vec!["CMD-SHELL".to_owned(), line.clone()]),
        interval: asked.interval.or(base.interval),
        timeout: asked.timeout.or(base.timeout),
        start_period: asked.start_period.or(base.start_period),
        start_interval: asked.start_interval.or(base.start_interval),
        retries: asked.retries.or(base.retries),
    };
    let command = command(&check.test, shell.as_deref())?;
    Some(probe(&check, &command))
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

fn probe(check: &Healthcheck, command: &[String]) -> Probe {
    let interval = check.interval.unwrap_or(INTERVAL);
    let retries = check.retries.filter(|retries| *retries > 0).unwrap_or(RETRIES);
    let shortest = check.start_interval.unwrap_or(interval).min(interval).min(PERIOD);
    let within =
        check.start_period.unwrap_or_default().saturating_add(interval.saturating_mul(retries));
    let period = seconds(shortest);
    // As many as there is time for: so long the container is waited for.
    let failures = (seconds(within) / period).max(1);
    Probe {
        exec: Some(ExecAction {
            command: Some(command.iter().map(|word| literal(word)).collect()),
        }),
        period_seconds: Some(period),
        timeout_seconds: Some(seconds(check.timeout.unwrap_or(TIMEOUT))),
        failure_threshold: Some(failures),
        ..Probe::default()
    }
}

/// Returns a time in whole seconds, rounded up, at least one.
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
    fn times_are_those_of_docker_in_seconds() {
        let check = Healthcheck {
            interval: Some(Duration::from_millis(1500)),
            timeout: Some(Duration::from_millis(200)),
            start_period: Some(Duration::from_secs(10)),
            retries: Some(5),
            ..check(&["CMD", "true"])
        };
        let made = probe(&check, &["true".to_owned()]);
        assert_eq!((made.period_seconds, made.timeout_seconds), (Some(2), Some(1)));
        assert_eq!(made.failure_threshold, Some(9), "17.5 s");
        let made = probe(&self::check(&[]), &[]);
        assert_eq!((made.period_seconds, made.timeout_seconds), (Some(2), Some(30)));
        assert_eq!(made.failure_threshold, Some(45), "90 s");
    }

    #[test]
    fn commands_are_run_as_by_docker() {
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
