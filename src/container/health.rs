//! Whether a container works: Docker's health checks, but looked at as soon as there may be
//! something to see.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use super::engine::Engine;
use super::error::ContainerError;
use super::record::{Record, write_json};
use crate::bundle::ExecOptions;
use crate::image::Healthcheck;
use crate::sys::identity::Identity;
use crate::sys::process::{End, Finished};

/// The pause after the first check. Docker lets a whole interval pass before it looks at all.
const SOONEST: Duration = Duration::from_millis(50);

/// Docker's defaults.
const INTERVAL: Duration = Duration::from_secs(30);
const TIMEOUT: Duration = Duration::from_secs(30);
const RETRIES: u32 = 3;

/// How much of what a check writes is worth showing.
const SHOWN_BYTES: usize = 4096;

/// A health check with nothing left open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    command: Vec<String>,
    interval: Duration,
    timeout: Duration,
    start_period: Duration,
    retries: u32,
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
        Some(Health {
            command,
            interval: or(check.interval, INTERVAL),
            timeout: or(check.timeout, TIMEOUT),
            start_period: check.start_period.unwrap_or_default(),
            retries: check.retries.filter(|retries| *retries > 0).unwrap_or(RETRIES),
        })
        .filter(|health| !health.command.is_empty())
    }

    /// Returns how long Docker would wait at least before it calls a container unhealthy.
    fn patience(&self) -> Duration {
        self.start_period + self.interval * self.retries
    }
}

impl Engine {
    /// Checks a container until it is healthy, or has had the time that Docker would have given it.
    ///
    /// The first check comes at once, the others with doubled pauses up to the interval: a service
    /// that is up in a tenth of a second does not cost thirty.
    pub fn wait_until_healthy(
        &self,
        record: &Record,
        health: &Health,
    ) -> Result<Verdict, ContainerError> {
        let directory = self.directory(&record.id);
        let options = ExecOptions { args: health.command.clone(), ..ExecOptions::default() };
        let process_file = directory.path().join("health.json");
        write_json(&process_file, &self.process(record, &options)?)?;
        let pid_file = directory.path().join("health.pid");

        let start = Instant::now();
        let mut pause = SOONEST;
        let mut checks = 0;
        loop {
            if !record.process.is_some_and(|process| process.is_running()) {
                return Ok(Verdict::Ended { code: directory.end().map(|ended| ended.code) });
            }
            let runtime = &record.runtime;
            let check = runtime.probe(&record.id, &process_file, &pid_file, health.timeout)?;
            checks += 1;
            if check.end == End::Exited(0) {
                return Ok(Verdict::Healthy { after: start.elapsed() });
            }
            if check.end == End::TimedOut {
                // The runtime was killed, not what it runs in the container.
                let pid = fs::read_to_string(&pid_file).ok();
                let process = pid.and_then(|pid| Identity::of(pid.trim().parse().ok()?));
                if let Some(process) = process {
                    let _ = process.kill(Duration::from_secs(1));
                }
            }
            let last = shown(&check, health.timeout);
            if start.elapsed() >= health.patience() && checks >= health.retries {
                return Ok(Verdict::Unhealthy { checks, last });
            }
            thread::sleep(pause.min(health.interval));
            pause = (pause * 2).min(health.interval);
        }
    }
}

/// Returns how a check ended and what it said.
fn shown(check: &Finished, timeout: Duration) -> String {
    let end = match check.end {
        End::Exited(code) => format!("code {code}"),
        End::Signaled(signal) => format!("signal {signal}"),
        End::TimedOut => format!("no answer within {} s", timeout.as_secs_f32()),
        End::OutputTooLarge => "too much output".to_owned(),
    };
    let said = [&check.stdout[..], &check.stderr[..]].concat();
    let said = String::from_utf8_lossy(&said[..said.len().min(SHOWN_BYTES)]).into_owned();
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    if said.is_empty() { end } else { format!("{end}: {said}") }
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
        assert_eq!(health.command, ["/bin/sh", "-c", "a b"]);
        assert_eq!(health.patience(), Duration::from_secs(90));
        let shell = words(&["/bin/bash", "-ec"]);
        assert_eq!(Health::new(&check, Some(&shell)).unwrap().command, ["/bin/bash", "-ec", "a b"]);
    }

    #[test]
    fn none_is_no_check() {
        for test in [&[][..], &["NONE"], &["CMD"], &["WHAT", "ever"]] {
            let check = Healthcheck { test: words(test), ..Healthcheck::default() };
            assert_eq!(Health::new(&check, None), None, "{test:?}");
        }
    }
}
