//! How long a job may run.

use std::fmt;
use std::time::Duration;

use super::request::Settings;

/// What becomes of the maximum run time that a client sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClientTimeout {
    /// The job is stopped after the shorter of it and the server's.
    Enforce,
    /// The server's alone counts.
    Ignore,
}

/// The maximum run time of a job, and who set it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TimeLimit {
    pub(super) duration: Duration,
    is_of_client: bool,
}

impl TimeLimit {
    /// Returns the limit of a job whose client sent this one. None of no length at all is one.
    pub(super) fn of(settings: &Settings, sent: Option<prost_types::Duration>) -> Self {
        let sent =
            sent.filter(|_| settings.client_timeout == ClientTimeout::Enforce).and_then(|sent| {
                // It counts for nothing if it is negative.
                let seconds = u64::try_from(sent.seconds).ok()?;
                let nanos =
                    u32::try_from(sent.nanos).ok().filter(|nanos| *nanos < 1_000_000_000)?;
                Some(Duration::new(seconds, nanos))
            });
        match sent.filter(|sent| !sent.is_zero() && *sent < settings.max_runtime) {
            Some(duration) => TimeLimit { duration, is_of_client: true },
            None => TimeLimit { duration: settings.max_runtime, is_of_client: false },
        }
    }
}

impl fmt::Display for TimeLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let who = if self.is_of_client { ", set by the client" } else { "" };
        write!(f, "{:?}{who}", self.duration)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step_runner::resolve::Resolver;

    #[test]
    fn the_shorter_limit_counts_unless_that_of_the_client_is_ignored() {
        let mut settings =
            Settings::new("/".into(), std::collections::BTreeMap::new(), Resolver::default());
        settings.max_runtime = Duration::from_secs(60);
        let limit = |settings: &Settings, seconds, nanos| {
            TimeLimit::of(settings, Some(prost_types::Duration { seconds, nanos })).to_string()
        };
        assert_eq!(limit(&settings, 59, 500_000_000), "59.5s, set by the client");
        for (seconds, nanos) in [(60, 0), (3600, 0), (0, 0), (-1, 0), (i64::MIN, i32::MIN)] {
            assert_eq!(limit(&settings, seconds, nanos), "60s");
        }
        assert_eq!(TimeLimit::of(&settings, None).to_string(), "60s");
        settings.client_timeout = ClientTimeout::Ignore;
        assert_eq!(limit(&settings, 1, 0), "60s");
    }
}
