//! Whether a container works: Docker's health checks, but looked at as soon as there may be
//! something to see.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::engine::Engine;
use super::error::ContainerError;
use super::record::{Check, Record};
use crate::image::Healthcheck;

/// The pause after the first check. Docker lets a whole interval pass before it looks at all.
const SOONEST: Duration = Duration::from_millis(50);

/// What part of the time a container took may pass until it is noticed.
const DELAY: u32 = 5;

/// Docker's defaults.
const INTERVAL: Duration = Duration::from_secs(30);
const TIMEOUT: Duration = Duration::from_secs(30);
const START_INTERVAL: Duration = Duration::from_secs(5);
const RETRIES: u32 = 3;

/// A health check with nothing left open.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    pub check: Check,
    /// The time between two checks.
    pub interval: Duration,
    pub timeout: Duration,
    /// The time in which failures do not count.
    pub start_period: Duration,
    /// The time between two checks meanwhile.
    pub start_interval: Duration,
    /// How many failures are too many.
    pub retries: u32,
    /// How many successes on end are enough.
    pub successes: u32,
}

/// How waiting for a container's health ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Healthy {
        after: Duration,
    },
    /// The checks failed for as long as Docker would have waited.
    Unhealthy {
        checks: u32,
        /// How the last one ended, on one line.
        last: String,
    },
    Ended {
        /// Its code, if somebody watched it.
        code: Option<i32>,
    },
    /// Nobody waits for it any more.
    Abandoned,
}

impl Health {
    /// Completes a health check; none if it has no command or says `NONE`.
    ///
    /// `shell` is the image's, which `CMD-SHELL` runs in.
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
        Some(Health {
            check: Check::Command(command),
            interval: or(check.interval, INTERVAL),
            timeout: or(check.timeout, TIMEOUT),
            start_period: check.start_period.unwrap_or_default(),
            start_interval: or(check.start_interval, START_INTERVAL),
            retries: check.retries.filter(|retries| *retries > 0).unwrap_or(RETRIES),
            successes: 1,
        })
    }

    /// Returns how long Docker would wait at least before it calls a container unhealthy whose
    /// checks take so long at most: it lets an interval pass after each.
    fn patience(&self, slowest: Duration) -> Duration {
        let each = self.interval.saturating_add(slowest);
        self.start_period.saturating_add(each.saturating_mul(self.retries))
    }

    /// Returns the time to the next check: a part of the time that passed, no shorter than the last
    /// check took, and no longer than Docker would wait.
    fn pause(&self, elapsed: Duration, last: Duration) -> Duration {
        let is_starting = elapsed < self.start_period;
        let longest =
            if is_starting { self.interval.min(self.start_interval) } else { self.interval };
        (elapsed / DELAY).max(last).max(SOONEST).min(longest)
    }
}

impl Engine {
    /// Checks a container until it is healthy, has had the time that Docker would have given it, or
    /// `is_over` is set.
    ///
    /// The first check comes at once, the others from 50 ms on, ever more slowly, up to the interval:
    /// a service that is up in a tenth of a second does not cost thirty.
    pub fn wait_until_healthy(
        &self,
        record: &Record,
        health: &Health,
        is_over: &AtomicBool,
    ) -> Result<Verdict, ContainerError> {
        let start = Instant::now();
        let mut slowest = Duration::ZERO;
        let (mut checks, mut successes) = (0, 0);
        loop {
            if !record.process.is_some_and(|process| process.is_running()) {
                return Ok(Verdict::Ended { code: self.code(record) });
            }
            if is_over.load(Ordering::Relaxed) {
                return Ok(Verdict::Abandoned);
            }
            let checked = Instant::now();
            checks += 1;
            let result = self.check(record, &health.check, health.timeout)?;
            let took = checked.elapsed();
            slowest = slowest.max(took);
            match result {
                Ok(()) => {
                    successes += 1;
                    if successes >= health.successes {
                        return Ok(Verdict::Healthy { after: start.elapsed() });
                    }
                }
                Err(last) => {
                    successes = 0;
                    if start.elapsed() >= health.patience(slowest) && checks >= health.retries {
                        return Ok(Verdict::Unhealthy { checks, last });
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

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_is_not_said_is_as_in_docker() {
        let check = Healthcheck { test: words(&["CMD-SHELL", "a b"]), ..Healthcheck::default() };
        let health = Health::new(&check, None).unwrap();
        assert_eq!(health.check, Check::Command(words(&["/bin/sh", "-c", "a b"])));
        assert_eq!(health.patience(Duration::ZERO), Duration::from_secs(90));
        assert_eq!(health.patience(Duration::from_secs(5)), Duration::from_secs(105));
        let shell = words(&["/bin/bash", "-ec"]);
        let health = Health::new(&check, Some(&shell)).unwrap();
        assert_eq!(health.check, Check::Command(words(&["/bin/bash", "-ec", "a b"])));
    }

    #[test]
    fn no_container_is_noticed_later_than_by_docker_or_much_later_than_it_works() {
        let ms = Duration::from_millis;
        let check = Healthcheck {
            test: words(&["CMD", "a"]),
            interval: Some(ms(10_000)),
            start_period: Some(ms(60_000)),
            start_interval: Some(ms(2_000)),
            ..Healthcheck::default()
        };
        let health = Health::new(&check, None).unwrap();
        assert_eq!(health.pause(ms(0), ms(0)), ms(50));
        assert_eq!(health.pause(ms(1_000), ms(0)), ms(200));
        assert_eq!(health.pause(ms(1_000), ms(700)), ms(700));
        assert_eq!(health.pause(ms(20_000), ms(0)), ms(2_000));
        assert_eq!(health.pause(ms(65_000), ms(0)), ms(10_000));
        let soon = Healthcheck { interval: Some(ms(10)), ..check };
        assert_eq!(Health::new(&soon, None).unwrap().pause(ms(0), ms(9_000)), ms(10));
    }

    #[test]
    fn times_of_an_image_may_be_as_long_as_they_like() {
        let check = Healthcheck {
            test: words(&["CMD", "a"]),
            interval: Some(Duration::MAX),
            start_period: Some(Duration::MAX),
            retries: Some(u32::MAX),
            ..Healthcheck::default()
        };
        let health = Health::new(&check, None).unwrap();
        assert_eq!(health.patience(Duration::MAX), Duration::MAX);
    }

    #[test]
    fn none_is_no_check() {
        for test in [&[][..], &["NONE"], &["CMD"], &["WHAT", "ever"]] {
            let check = Healthcheck { test: words(test), ..Healthcheck::default() };
            assert_eq!(Health::new(&check, None), None, "{test:?}");
        }
    }
}
