//! Settings of all jobs, and the time limit of one job.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;

use super::super::log::LogFormat;
use super::super::resolve::Resolver;

/// Settings of all jobs of a server.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// Default working directory of jobs, and base of relative working directories.
    pub work_dir: PathBuf,
    /// Environment of the server, which jobs inherit.
    pub env: BTreeMap<String, String>,
    pub resolver: Resolver,
    /// Time between `SIGTERM` and `SIGKILL` when a command is stopped.
    pub grace: Duration,
    /// Time limit of the steps that run after a cancellation, such as those with
    /// `if: ${{ always() }}`.
    pub cleanup: Duration,
    /// Maximum run time of a job.
    pub max_runtime: Duration,
    /// Policy for the maximum run time that a client sends.
    pub client_timeout: ClientTimeoutPolicy,
    /// Time for which finished jobs that were never closed are kept.
    pub stale_after: Duration,
    /// Maximum number of jobs, including finished but unclosed ones.
    pub max_jobs: usize,
    /// Format of logs, unless a job sets the variable `CI_STEPS_LOG_FORMAT` to `stamped` or
    /// `plain`. If this is `None` too, the variable in the server's environment applies.
    pub log_format: Option<LogFormat>,
    /// Size limit of the log of a job.
    pub max_log_bytes: u64,
    /// If set, results of steps contain secrets and the environment of the server.
    pub show_secrets: bool,
}

/// Policy for the maximum run time that a client sends for a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ClientTimeoutPolicy {
    /// Stop the job at the earlier of both limits
    Enforce,
    /// Apply only --max-runtime
    Ignore,
}

/// The maximum run time of a job, and whether the client set it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeLimit {
    pub duration: Duration,
    is_of_client: bool,
}

impl TimeLimit {
    /// Returns the time limit of a job: `max_runtime`, or the limit `sent` by the client if that is
    /// shorter and not ignored. Zero means that the client sets no limit.
    pub fn of(
        max_runtime: Duration,
        client_timeout: ClientTimeoutPolicy,
        sent: Option<prost_types::Duration>,
    ) -> Self {
        let sent =
            sent.filter(|_| client_timeout == ClientTimeoutPolicy::Enforce).and_then(|sent| {
                // A negative duration is ignored.
                let seconds = u64::try_from(sent.seconds).ok()?;
                let nanos =
                    u32::try_from(sent.nanos).ok().filter(|nanos| *nanos < 1_000_000_000)?;
                Some(Duration::new(seconds, nanos))
            });
        match sent.filter(|sent| !sent.is_zero() && *sent < max_runtime) {
            Some(duration) => TimeLimit { duration, is_of_client: true },
            None => TimeLimit { duration: max_runtime, is_of_client: false },
        }
    }
}

impl fmt::Display for TimeLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let who = if self.is_of_client { ", set by the client" } else { "" };
        write!(f, "{:?}{who}", self.duration)
    }
}

/// The variable that selects the log format.
const LOG_FORMAT: &str = "CI_STEPS_LOG_FORMAT";

/// The variable that sets the log level of this program and of steps.
pub const LOG_LEVEL: &str = "CI_STEPS_LOG_LEVEL";

const LEVELS: [&str; 4] = ["debug", "info", "warn", "error"];

/// Returns the log format of the first source that sets it. The error is the unknown format.
pub fn log_format(sources: &[&BTreeMap<String, String>]) -> Result<Option<LogFormat>, String> {
    let parse = |format: String| LogFormat::from_str(&format, false).map_err(|_| format);
    first_value(sources, LOG_FORMAT).map(parse).transpose()
}

/// Returns the log level of the first source that sets it, by default `info`. The error is the unknown level.
pub fn log_level(sources: &[&BTreeMap<String, String>]) -> Result<&'static str, String> {
    let Some(level) = first_value(sources, LOG_LEVEL) else { return Ok("info") };
    LEVELS.into_iter().find(|known| *known == level).ok_or(level)
}

/// Returns the value of a variable in the first source that sets it, in lower case.
fn first_value(sources: &[&BTreeMap<String, String>], name: &str) -> Option<String> {
    let values = sources.iter().filter_map(|source| source.get(name));
    values.map(|value| value.trim().to_lowercase()).find(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shorter_limit_applies_unless_the_clients_is_ignored() {
        let max = Duration::from_secs(60);
        let limit = |client_timeout, seconds, nanos| {
            let sent = Some(prost_types::Duration { seconds, nanos });
            TimeLimit::of(max, client_timeout, sent).to_string()
        };
        let enforce = ClientTimeoutPolicy::Enforce;
        assert_eq!(limit(enforce, 59, 500_000_000), "59.5s, set by the client");
        for (seconds, nanos) in [(60, 0), (3600, 0), (0, 0), (-1, 0), (i64::MIN, i32::MIN)] {
            assert_eq!(limit(enforce, seconds, nanos), "60s");
        }
        assert_eq!(TimeLimit::of(max, enforce, None).to_string(), "60s");
        assert_eq!(limit(ClientTimeoutPolicy::Ignore, 1, 0), "60s");
    }

    #[test]
    fn first_source_of_a_log_format_applies() {
        let says = |format: &str| BTreeMap::from([(LOG_FORMAT.to_owned(), format.to_owned())]);
        let none = BTreeMap::new();
        assert_eq!(log_format(&[]), Ok(None));
        assert_eq!(log_format(&[&says(""), &none, &says(" Plain ")]), Ok(Some(LogFormat::Plain)));
        let both = [&says("stamped"), &says("plain")];
        assert_eq!(log_format(&both), Ok(Some(LogFormat::Stamped)));
        assert_eq!(log_format(&[&says("json")]), Err("json".to_owned()));
    }

    #[test]
    fn first_source_of_a_log_level_applies() {
        let says = |level: &str| BTreeMap::from([(LOG_LEVEL.to_owned(), level.to_owned())]);
        let none = BTreeMap::new();
        assert_eq!(log_level(&[]), Ok("info"));
        assert_eq!(log_level(&[&says(""), &none, &says(" WARN ")]), Ok("warn"));
        assert_eq!(log_level(&[&says("debug"), &says("error")]), Ok("debug"));
        assert_eq!(log_level(&[&says("loud")]), Err("loud".to_owned()));
    }
}
