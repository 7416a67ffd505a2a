//! Whether a container works: Docker's health checks, but looked at as soon as there may be
//! something to see.

use std::thread;
use std::time::{Duration, Instant};

use super::check::Check;
use super::engine::Engine;
use super::error::ContainerError;
use super::record::Record;
use crate::image::Healthcheck;

/// The time to the first check, and at least between two. Docker lets a whole interval pass before
/// it looks at all.
const SOONEST: Duration = Duration::from_millis(50);

/// Docker's defaults.
const INTERVAL: Duration = Duration::from_secs(30);
const TIMEOUT: Duration = Duration::from_secs(30);
const RETRIES: u32 = 3;

/// A health check with nothing left open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// What is looked at.
    pub check: Check,
    /// The time between two checks.
    pub interval: Duration,
    /// The time for one.
    pub timeout: Duration,
    /// The time in which failures do not count.
    pub start_period: Duration,
    /// How many failures are too many.
    pub retries: u32,
    /// How many successes on end are enough.
    pub successes: u32,
}

/// How waiting for a container's health ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// A check succeeded.
    Healthy {
        /// After this time.
        after: Duration,
    },
    /// The checks failed for as long as Docker would have waited.
    Unhealthy {
        /// How many failed.
        checks: u32,
        /// How the last one ended, on one line.
        last: String,
    },
    /// The container itself ended.
    Ended {
        /// Its code, if somebody watched it.
        code: Option<i32>,
    },
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
            retries: check.retries.filter(|retries| *retries > 0).unwrap_or(RETRIES),
            successes: 1,
        })
    }

    /// Returns how long Docker would wait at least before it calls a container unhealthy.
    fn patience(&self) -> Duration {
        self.start_period + self.interval * self.retries
    }
}

impl Engine {
    /// Checks a container until it is healthy, or has had the time that Docker would have given it.
    ///
    /// The checks come at 50 ms, then with doubled pauses up to the interval: a service that is up
    /// in a tenth of a second does not cost thirty.
    pub fn wait_until_healthy(
        &self,
        record: &Record,
        health: &Health,
    ) -> Result<Verdict, ContainerError> {
        let directory = self.directory(&record.id);
        let start = Instant::now();
        let mut pause = SOONEST;
        let (mut checks, mut successes) = (0, 0);
        loop {
            thread::sleep(pause.min(health.interval));
            pause = (pause * 2).min(health.interval);
            if !record.process.is_some_and(|process| process.is_running()) {
                return Ok(Verdict::Ended { code: directory.end().map(|ended| ended.code) });
            }
            checks += 1;
            let last = match self.check(record, &health.check, health.timeout)? {
                Ok(()) => {
                    successes += 1;
                    if successes >= health.successes {
                        return Ok(Verdict::Healthy { after: start.elapsed() });
                    }
                    continue;
                }
                Err(last) => last,
            };
            successes = 0;
            if start.elapsed() >= health.patience() && checks >= health.retries {
                return Ok(Verdict::Unhealthy { checks, last });
            }
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
        assert_eq!(health.patience(), Duration::from_secs(90));
        let shell = words(&["/bin/bash", "-ec"]);
        let health = Health::new(&check, Some(&shell)).unwrap();
        assert_eq!(health.check, Check::Command(words(&["/bin/bash", "-ec", "a b"])));
    }

    #[test]
    fn none_is_no_check() {
        for test in [&[][..], &["NONE"], &["CMD"], &["WHAT", "ever"]] {
            let check = Healthcheck { test: words(test), ..Healthcheck::default() };
            assert_eq!(Health::new(&check, None), None, "{test:?}");
        }
    }
}
