//! The record of one run of a hook: a JSON file of its own.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Capture, CaptureError};
use crate::sys::error::chain;
use crate::sys::fs::{Durability, FileAt, ReplaceOptions, Symlinks, make_directories, random_u64};
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
    outcome: HookEnd,
    stdout: Cow<'a, str>,
    stdout_truncated: bool,
    stderr: Cow<'a, str>,
    stderr_truncated: bool,
}

/// How a hook ended; the name of the variant is the name of the field.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum HookEnd {
    ExitCode(i32),
    Signal(i32),
    TimedOut(bool),
    Error(String),
}

/// What is read of a [container's state].
///
/// [container's state]: https://github.com/opencontainers/runtime-spec/blob/main/runtime.md#state
#[derive(Deserialize)]
struct ContainerState {
    id: String,
}

impl<'a> Record<'a> {
    pub(super) fn new(
        capture: &'a Capture<'_>,
        started: SystemTime,
        result: &'a Result<Finished, RunError>,
    ) -> Self {
        // Out of range only if the clock is off by millennia.
        let time = Timestamp::try_from(started).unwrap_or_default();
        let record = Record {
            hook: capture.hook,
            stage: capture.stage,
            path: capture.path.to_string_lossy(),
            args: capture.argv.iter().map(|arg| arg.to_string_lossy()).collect(),
            container: serde_json::from_slice(capture.state).ok().map(|ContainerState { id }| id),
            started: format!("{time:.9}"),
            duration_ms: 0,
            outcome: HookEnd::TimedOut(true),
            stdout: Cow::Borrowed(""),
            stdout_truncated: false,
            stderr: Cow::Borrowed(""),
            stderr_truncated: false,
        };
        match result {
            Ok(finished) => Record {
                duration_ms: u64::try_from(finished.duration.as_millis()).unwrap_or(u64::MAX),
                outcome: match finished.end {
                    End::Exited(code) => HookEnd::ExitCode(code),
                    End::Signaled(signal) => HookEnd::Signal(signal),
                    // No limit of a capture kills: too much output is cut.
                    End::TimedOut | End::OutputTooLarge => HookEnd::TimedOut(true),
                },
                stdout: String::from_utf8_lossy(&finished.stdout),
                stdout_truncated: finished.stdout_truncated,
                stderr: String::from_utf8_lossy(&finished.stderr),
                stderr_truncated: finished.stderr_truncated,
                ..record
            },
            Err(error) => Record { outcome: HookEnd::Error(chain(error)), ..record },
        }
    }

    /// Writes the record to a new file whose name sorts by time, and returns its path.
    pub(super) fn write(&self, directory: &Path) -> Result<PathBuf, CaptureError> {
        make_directories(directory, 0o700).map_err(CaptureError::Directory)?;
        let time = self.started.replace(['-', ':'], "");
        let name = format!("{time}-{:016x}.json", random_u64());
        let path = directory.join(name);
        let mut json = serde_json::to_vec_pretty(self).expect("it is made of text and numbers");
        json.push(b'\n');
        let options = ReplaceOptions {
            mode: Some(0o600),
            // Waiting for the disk would slow the container's start down.
            durability: Durability::Unsynced,
            ..ReplaceOptions::default()
        };
        FileAt::open(&path, Symlinks::Follow)?.replace(&json, &options)?;
        Ok(path)
    }
}
