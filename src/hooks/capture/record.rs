//! The record of one run of a hook: a JSON file of its own.

use std::borrow::Cow;
use std::error::Error;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::{Capture, CaptureError};
use crate::sys::fs::{
    Durability, FileAt, PathContext as _, ReplaceOptions, Symlinks, unpredictable,
};
use crate::sys::process::{End, Finished, RunError};

/// A record as it is written. Bytes that are not UTF-8 become U+FFFD.
#[derive(Debug, Serialize)]
pub(super) struct Record<'a> {
    hook: &'a str,
    stage: &'a str,
    path: Cow<'a, str>,
    args: Vec<Cow<'a, str>>,
    /// The container's id, if the state is one that has it.
    container: Option<String>,
    started: String,
    duration_ms: u64,
    #[serde(flatten)]
    outcome: Outcome,
    stdout: Cow<'a, str>,
    stdout_truncated: bool,
    stderr: Cow<'a, str>,
    stderr_truncated: bool,
    /// When it started, for the file name.
    #[serde(skip)]
    time: Time,
}

/// How a hook ended; the name of the variant is the name of the field.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    ExitCode(i32),
    Signal(i32),
    TimedOut(bool),
    Error(String),
}

/// What is read of a [container's state].
///
/// [container's state]: https://github.com/opencontainers/runtime-spec/blob/main/runtime.md#state
#[derive(Deserialize)]
struct State {
    id: String,
}

impl<'a> Record<'a> {
    pub(super) fn new(
        capture: &'a Capture<'_>,
        started: SystemTime,
        result: &'a Result<Finished, RunError>,
    ) -> Self {
        let time = Time::from(started);
        let record = Record {
            hook: capture.hook,
            stage: capture.stage,
            path: capture.path.to_string_lossy(),
            args: capture.argv.iter().map(|arg| arg.to_string_lossy()).collect(),
            container: serde_json::from_slice(capture.state).ok().map(|State { id }| id),
            started: time.to_string(),
            duration_ms: 0,
            outcome: Outcome::TimedOut(true),
            stdout: Cow::Borrowed(""),
            stdout_truncated: false,
            stderr: Cow::Borrowed(""),
            stderr_truncated: false,
            time,
        };
        match result {
            Ok(finished) => Record {
                duration_ms: u64::try_from(finished.duration.as_millis()).unwrap_or(u64::MAX),
                outcome: match finished.end {
                    End::Exited(code) => Outcome::ExitCode(code),
                    End::Signaled(signal) => Outcome::Signal(signal),
                    // No limit of a capture kills: too much output is cut.
                    End::TimedOut | End::OutputTooLarge => Outcome::TimedOut(true),
                },
                stdout: String::from_utf8_lossy(&finished.stdout),
                stdout_truncated: finished.stdout_truncated,
                stderr: String::from_utf8_lossy(&finished.stderr),
                stderr_truncated: finished.stderr_truncated,
                ..record
            },
            Err(error) => Record { outcome: Outcome::Error(chain(error)), ..record },
        }
    }

    /// Writes the record to a new file whose name sorts by time, and returns its path.
    pub(super) fn write(&self, directory: &Path) -> Result<PathBuf, CaptureError> {
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700).create(directory).at("create", directory)?;
        let name = format!("{}-{:016x}.json", self.time.compact(), unpredictable());
        let path = directory.join(name);
        let mut json = serde_json::to_vec_pretty(self).expect("it is made of text and numbers");
        json.push(b'\n');
        let options = ReplaceOptions {
            mode: Some(0o600),
            // Waiting for the disk would slow the container's start down.
            durability: Durability::Unsynced,
            ..ReplaceOptions::default()
        };
        FileAt::open(&path, Symlinks::Refuse)?.replace(&json, &options)?;
        Ok(path)
    }
}

/// Returns an error with all its causes in one line.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// A point in time as a calendar and a clock in UTC show it.
#[derive(Debug)]
struct Time {
    year: u64,
    month: u64,
    day: u64,
    hour: u64,
    minute: u64,
    second: u64,
    nanosecond: u32,
}

impl From<SystemTime> for Time {
    fn from(time: SystemTime) -> Self {
        // A clock before 1970 is wrong anyway.
        let since_1970 = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let seconds = since_1970.as_secs();
        let leap = |year: u64| {
            year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
        };

        let mut days = seconds / 86_400;
        let mut year = 1970;
        while days >= 365 + u64::from(leap(year)) {
            days -= 365 + u64::from(leap(year));
            year += 1;
        }
        let february = 28 + u64::from(leap(year));
        let mut month = 1;
        for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
            if days < length {
                break;
            }
            days -= length;
            month += 1;
        }
        Time {
            year,
            month,
            day: days + 1,
            hour: seconds / 3600 % 24,
            minute: seconds / 60 % 60,
            second: seconds % 60,
            nanosecond: since_1970.subsec_nanos(),
        }
    }
}

impl std::fmt::Display for Time {
    /// Writes it as RFC 3339 has it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Time { year, month, day, hour, minute, second, nanosecond } = self;
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")?;
        write!(f, ".{nanosecond:09}Z")
    }
}

impl Time {
    /// Returns it as it is without what file names better not have.
    fn compact(&self) -> String {
        self.to_string().replace(['-', ':'], "")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn utc(seconds: u64, nanoseconds: u32) -> String {
        Time::from(SystemTime::UNIX_EPOCH + Duration::new(seconds, nanoseconds)).to_string()
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        assert_eq!(utc(0, 0), "1970-01-01T00:00:00.000000000Z");
        assert_eq!(utc(951_782_399, 999_999_999), "2000-02-28T23:59:59.999999999Z");
        assert_eq!(utc(951_782_400, 0), "2000-02-29T00:00:00.000000000Z");
        assert_eq!(utc(951_868_800, 0), "2000-03-01T00:00:00.000000000Z");
        assert_eq!(utc(1_767_225_599, 0), "2025-12-31T23:59:59.000000000Z");
        assert_eq!(utc(4_107_542_400, 0), "2100-03-01T00:00:00.000000000Z");
        assert_eq!(utc(1_234_567_890, 5), "2009-02-13T23:31:30.000000005Z");
    }

    #[test]
    fn every_day_of_four_centuries_follows_the_one_before() {
        let dates: Vec<String> =
            (0..146_097_u64).map(|day| utc(day * 86_400, 0)[..10].to_owned()).collect();
        assert!(dates.windows(2).all(|pair| pair[0] < pair[1]));
        assert_eq!(dates.last().map(String::as_str), Some("2369-12-31"));
        assert_eq!(dates.iter().filter(|date| date.ends_with("-02-29")).count(), 97);
    }
}
