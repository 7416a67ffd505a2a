//! Health of a container: Docker's health checks, but polled as soon as the container may be healthy.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use oci_hooks_image::Healthcheck;

use super::engine::Engine;
use super::error::ContainerError;
use super::record::{ContainerAction, ContainerRecord};

/// Pause after the first check. Docker waits a whole interval before its first check.
const SOONEST: Duration = Duration::from_millis(50);

/// Divisor of the elapsed time, which gives the pause before the next check: a healthy container is
/// noticed late by at most about a fifth of the time that it took.
const DELAY: u32 = 5;

const INTERVAL: Duration = Duration::from_secs(30);
const TIMEOUT: Duration = Duration::from_secs(30);
const START_INTERVAL: Duration = Duration::from_secs(5);
const RETRIES: u32 = 3;

/// A health check with all defaults filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthPolicy {
    pub check: ContainerAction,
    pub interval: Duration,
    pub timeout: Duration,
    /// Time in which failures do not count.
    pub start_period: Duration,
    /// Time between two checks in the start period.
    pub start_interval: Duration,
    /// Number of failures after which the container is unhealthy.
    pub retries: u32,
    /// Number of consecutive successes after which the container is healthy.
    pub successes: u32,
}

/// Result of waiting for a container's health.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HealthVerdict {
    Healthy {
        after: Duration,
    },
    /// The checks failed for as long as Docker would have waited.
    Unhealthy {
        checks: u32,
        /// Result of the last check, on one line.
        last: String,
    },
    Ended {
        /// Exit code, if the container has a monitor.
        code: Option<i32>,
    },
    Abandoned,
}

impl HealthPolicy {
    /// Fills in the defaults of a health check; `None` without a command, and for `NONE`.
    ///
    /// `shell` is the image's shell for `CMD-SHELL`.
    pub fn new(check: &Healthcheck, shell: Option<&[String]>) -> Option<Self> {
        let command = match check.test.split_first() {
            Some((kind, command)) if kind == "CMD" => command.to_vec(),
            Some((kind, command)) if kind == "CMD-SHELL" => {
                let default = ["/bin/sh".to_owned(), "-c".to_owned()];
                let mut words =
                    shell.filter(|shell| !shell.is_empty()).unwrap_or(&default).to_vec();
                words.extend(command.first().cloned());
                words
            }
            _ => return None,
        };
        let or = |value: Option<Duration>, default| {
            value.filter(|value| !value.is_zero()).unwrap_or(default)
        };
        if command.is_empty() {
            return None;
        }
        Some(HealthPolicy {
            check: ContainerAction::Command(command),
            interval: or(check.interval, INTERVAL),
            timeout: or(check.timeout, TIMEOUT),
            start_period: check.start_period.unwrap_or_default(),
            start_interval: or(check.start_interval, START_INTERVAL),
            retries: check.retries.filter(|retries| *retries > 0).unwrap_or(RETRIES),
            successes: 1,
        })
    }

    /// Returns the minimum time after which Docker would call a container unhealthy, given the slowest check:
    /// Docker waits an interval after each check.
    fn minimum_time(&self, slowest: Duration) -> Duration {
        let each = self.interval.saturating_add(slowest);
        self.start_period.saturating_add(each.saturating_mul(self.retries))
    }

    /// Returns the time to the next check: a part of the elapsed time, at least the duration of the last
    /// check, and at most Docker's interval.
    fn pause(&self, elapsed: Duration, last: Duration) -> Duration {
        let is_starting = elapsed < self.start_period;
        let longest =
            if is_starting { self.interval.min(self.start_interval) } else { self.interval };
        (elapsed / DELAY).max(last).max(SOONEST).min(longest)
    }
}

impl Engine {
    /// Checks a container until it is healthy, its checks have failed for as long as Docker would wait, it has
    /// ended, or `is_over` is set.
    ///
    /// The first check is made at once, the next after 50 ms, and later ones at growing intervals, up to that of
    /// the health check. So a service that starts in a tenth of a second is healthy then, not after Docker's
    /// first interval of 30 seconds.
    pub fn wait_until_healthy(
        &self,
        record: &ContainerRecord,
        health: &HealthPolicy,
        is_over: &AtomicBool,
    ) -> Result<HealthVerdict, ContainerError> {
        let start = Instant::now();
        let mut slowest = Duration::ZERO;
        let (mut checks, mut successes) = (0, 0);
        loop {
            if !record.process.is_some_and(|process| process.is_running()) {
                return Ok(HealthVerdict::Ended { code: self.code(record) });
            }
            if is_over.load(Ordering::Relaxed) {
                return Ok(HealthVerdict::Abandoned);
            }
            let checked = Instant::now();
            checks += 1;
            let result = self.perform(record, &health.check, health.timeout)?;
            let took = checked.elapsed();
            slowest = slowest.max(took);
            match result {
                Ok(()) => {
                    successes += 1;
                    if successes >= health.successes {
                        return Ok(HealthVerdict::Healthy { after: start.elapsed() });
                    }
                }
                Err(last) => {
                    successes = 0;
                    if start.elapsed() >= health.minimum_time(slowest) && checks >= health.retries {
                        return Ok(HealthVerdict::Unhealthy { checks, last });
                    }
                }
            }
            thread::sleep(health.pause(start.elapsed(), took));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to_words(words: &[&str]) -> Vec<String> {
        words.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn health_check_defaults_match_docker() {
        let check = Healthcheck { test: to_words(&["CMD-SHELL", "a b"]), ..Healthcheck::default() };
        let health = HealthPolicy::new(&check, None).unwrap();
        assert_eq!(health.check, ContainerAction::Command(to_words(&["/bin/sh", "-c", "a b"])));
        assert_eq!(health.minimum_time(Duration::ZERO), Duration::from_secs(90));
        assert_eq!(health.minimum_time(Duration::from_secs(5)), Duration::from_secs(105));
        let shell = to_words(&["/bin/bash", "-ec"]);
        let health = HealthPolicy::new(&check, Some(&shell)).unwrap();
        assert_eq!(health.check, ContainerAction::Command(to_words(&["/bin/bash", "-ec", "a b"])));
    }

    #[test]
    fn unhealthy_containers_are_detected_no_later_than_by_docker() {
        let ms = Duration::from_millis;
        let check = Healthcheck {
            test: to_words(&["CMD", "a"]),
            interval: Some(ms(10_000)),
            start_period: Some(ms(60_000)),
            start_interval: Some(ms(2_000)),
            ..Healthcheck::default()
        };
        let health = HealthPolicy::new(&check, None).unwrap();
        assert_eq!(health.pause(ms(0), ms(0)), ms(50));
        assert_eq!(health.pause(ms(1_000), ms(0)), ms(200));
        assert_eq!(health.pause(ms(1_000), ms(700)), ms(700));
        assert_eq!(health.pause(ms(20_000), ms(0)), ms(2_000));
        assert_eq!(health.pause(ms(65_000), ms(0)), ms(10_000));
        let soon = Healthcheck { interval: Some(ms(10)), ..check };
        assert_eq!(HealthPolicy::new(&soon, None).unwrap().pause(ms(0), ms(9_000)), ms(10));
    }

    #[test]
    fn health_check_times_of_an_image_can_be_arbitrarily_long() {
        let check = Healthcheck {
            test: to_words(&["CMD", "a"]),
            interval: Some(Duration::MAX),
            start_period: Some(Duration::MAX),
            retries: Some(u32::MAX),
            ..Healthcheck::default()
        };
        let health = HealthPolicy::new(&check, None).unwrap();
        assert_eq!(health.minimum_time(Duration::MAX), Duration::MAX);
    }

    #[test]
    fn none_disables_the_health_check() {
        for test in [&[][..], &["NONE"], &["CMD"], &["WHAT", "ever"]] {
            let check = Healthcheck { test: to_words(test), ..Healthcheck::default() };
            assert_eq!(HealthPolicy::new(&check, None), None, "{test:?}");
        }
    }
}
