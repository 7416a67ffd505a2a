//! Precreate filters: programs that read a container's configuration before the container is
//! created and print the configuration to use.
//!
//! They work as in podman, with these differences, each covered by a test in
//! `tests/all/conformance/filter.rs` or `filter/tests.rs`:
//!
//! - Unknown fields survive: podman's types drop them. The new configuration is the last filter's
//!   output, byte for byte, or the original text if no filter changed it.
//! - The output must be UTF-8. If the original configuration follows the runtime specification, the
//!   output must, too, which excludes repeated keys. Podman replaces invalid bytes and merges
//!   repeated keys.
//! - Keys keep their case: podman and runc read `HostName` as `hostname`, crun ignores it.
//! - A filter that prints `{}` or `null` fails, unless [`FilterOptions::allow_empty`] is set. In
//!   podman it silently empties the configuration.
//! - The timeout kills the filter's whole process group, not only the filter.
//! - The size of the output is limited.
//! - Standard error is captured and returned.
//! - Filters get numbers and the order of keys as in the configuration, and also the empty fields
//!   that podman omits.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use oci_hooks_files::process::{ChildProgram, FinishedProgram, OutputLimit, ProgramEnd, RunError};
use oci_spec::runtime::Spec;
use tracing::debug;

use super::Hook;
use crate::json::{JsonDocument, JsonKind, SyntaxError};

/// Working directory and limits for `precreate` hooks.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FilterOptions {
    /// Working directory of the filters; relative paths of programs start here.
    pub bundle: PathBuf,
    /// If set, a filter may print `{}` or `null`; both make the configuration `{}`.
    pub allow_empty: bool,
    /// Maximum size of a filter's output; a filter that exceeds it is killed.
    pub output_limit_bytes: u64,
    /// Maximum size of the recorded standard error; the rest is discarded.
    pub stderr_limit_bytes: u64,
}

impl FilterOptions {
    /// Returns options for a bundle: no empty output, 16 MiB of output, 64 KiB of standard error.
    pub fn new(bundle: impl Into<PathBuf>) -> Self {
        FilterOptions {
            bundle: bundle.into(),
            allow_empty: false,
            output_limit_bytes: 16 << 20,
            stderr_limit_bytes: 64 << 10,
        }
    }
}

/// A configuration that went through all filters.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FilteredConfig {
    /// Output of the last filter, or the original configuration if no filter changed it.
    pub config: Vec<u8>,
    pub runs: Vec<FilterRun>,
}

/// The run of one precreate hook.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FilterRun {
    /// Standard error, cut off after [`FilterOptions::stderr_limit_bytes`].
    pub stderr: Vec<u8>,
    /// If set, standard error exceeded the limit.
    pub stderr_truncated: bool,
    pub duration: Duration,
    /// If set, the output differs from the input; white space counts.
    pub changed: bool,
}

impl FilterRun {
    /// Returns up to 200 non-blank lines of standard error, and a note if there were more. Control
    /// characters are replaced by U+FFFD.
    pub fn lines(&self) -> Vec<String> {
        const MAX_LINES: usize = 200;
        let mut lines = self.kept_lines();
        if self.stderr_truncated || lines.len() > MAX_LINES {
            lines.truncate(MAX_LINES);
            lines.push("(more output was discarded)".to_owned());
        }
        lines
    }

    fn kept_lines(&self) -> Vec<String> {
        let printable = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
        let text = String::from_utf8_lossy(&self.stderr);
        let lines = text.lines().map(str::trim_end).filter(|line| !line.trim().is_empty());
        lines.map(|line| line.chars().map(printable).collect()).collect()
    }

    /// Returns the last non-blank line of standard error, cut to 300 characters; `None` if there is
    /// none.
    pub fn last_stderr_line(&self) -> Option<String> {
        const MAX_CHARS: usize = 300;
        let line = self.kept_lines().pop()?;
        Some(line.trim_start().chars().take(MAX_CHARS).collect())
    }
}

/// A failed filter. The filters after it were not run.
#[derive(Debug, thiserror::Error)]
#[error(
    "precreate hook {} ({path}) failed{}",
    file.as_ref().map_or_else(|| index.to_string(), |file| file.display().to_string()),
    stderr_suffix(run)
)]
#[non_exhaustive]
pub struct FilterError {
    /// Index of the failed filter in the list of filters.
    pub index: usize,
    /// The hook file; `None` from [`filter`], which does not know files.
    pub file: Option<PathBuf>,
    /// Path of the program of the failed filter.
    pub path: String,
    #[source]
    pub failure: FilterFailure,
    /// Run of the failed filter; empty if it could not be run.
    pub run: FilterRun,
    /// The configuration after the last successful filter.
    pub config: Vec<u8>,
    /// Runs of the preceding filters, which succeeded.
    pub runs: Vec<FilterRun>,
}

fn stderr_suffix(run: &FilterRun) -> String {
    run.last_stderr_line().map_or_else(String::new, |line| format!(" (stderr: {line})"))
}

/// Reasons for the failure of a filter.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FilterFailure {
    /// The filter could not be run.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The filter exited with a nonzero code.
    #[error("exit status {0}")]
    Exited(i32),
    /// The filter was killed by a signal that this process did not send.
    #[error("killed by signal {0}")]
    Signaled(i32),
    /// The filter was killed at its timeout.
    #[error("timed out after {} s", timeout.as_secs())]
    TimedOut {
        /// The effective timeout; zero if the hook's timeout is not positive or too large.
        timeout: Duration,
    },
    /// The filter was killed because its output exceeded the limit.
    #[error("its output exceeds {limit_bytes} bytes")]
    OutputTooLarge { limit_bytes: u64 },
    /// The output is empty, or is not exactly one JSON value.
    #[error("its output is not JSON, at byte {}", .0.offset)]
    NotJson(#[source] SyntaxError),
    /// The output is not UTF-8 from this byte on.
    #[error("its output is not UTF-8, at byte {0}")]
    NotUtf8(usize),
    /// The output is neither an object nor `null`.
    #[error("its output is {found}, not an object")]
    NotAnObject { found: &'static str },
    /// The output does not follow the runtime specification, unlike the original configuration.
    #[error("its output does not follow the runtime specification")]
    NotASpec(#[source] serde_json::Error),
    /// The output would empty the configuration.
    #[error("its output is {found}, which would empty the configuration")]
    Empty { found: &'static str },
}

/// Passes a configuration through filters. The first filter gets the configuration on standard
/// input, on one line as from podman; each later filter gets the output of the previous one.
///
/// Each filter runs in the bundle with exactly the environment of its hook, until it has exited and
/// its standard output is closed. `PATH` is not searched. The error is boxed because it holds all
/// results so far.
///
/// ```
/// use oci_hooks::hooks::Hook;
/// use oci_hooks::hooks::filter::{FilterOptions, filter};
///
/// let hook = Hook {
///     path: "/bin/sed".to_owned(),
///     args: ["sed", "s/sleep/true/"].map(str::to_owned).to_vec(),
///     ..Hook::default()
/// };
/// let config = br#"{"process":{"args":["sleep"]},"vendor":1.0}"#.to_vec();
/// let filtered = filter(&[&hook], config, &FilterOptions::new("/"))?;
/// assert_eq!(filtered.config, br#"{"process":{"args":["true"]},"vendor":1.0}"#);
/// # Ok::<(), Box<oci_hooks::hooks::filter::FilterError>>(())
/// ```
pub fn filter(
    hooks: &[&Hook],
    mut config: Vec<u8>,
    options: &FilterOptions,
) -> Result<FilteredConfig, Box<FilterError>> {
    let mut runs = Vec::with_capacity(hooks.len());
    if hooks.is_empty() {
        return Ok(FilteredConfig { config, runs });
    }
    let given = JsonDocument::parse(&config).map_or_else(|_| config.clone(), |it| it.to_compact());
    let mut input = given.clone();
    let original = config.clone();
    let is_spec = serde_json::from_slice::<Spec>(&given)
        .inspect_err(|error| debug!(%error, "do not check the types of filters' outputs"))
        .is_ok();
    for (index, hook) in hooks.iter().enumerate() {
        let (mut done, result) = run(hook, &input, options);
        match result.and_then(|output| Ok((check(&output, is_spec, options)?, output))) {
            Ok((is_empty, output)) => {
                done.changed = output != input;
                runs.push(done);
                config = match output.trim_ascii_end() == given {
                    true => original.clone(),
                    false if is_empty => b"{}".to_vec(),
                    false => output.clone(),
                };
                input = output;
            }
            Err(failure) => {
                let path = hook.path.clone();
                return Err(Box::new(FilterError {
                    index,
                    file: None,
                    path,
                    failure,
                    run: done,
                    config,
                    runs,
                }));
            }
        }
    }
    Ok(FilteredConfig { config, runs })
}

/// Runs one filter and returns its run and its output.
fn run(
    hook: &Hook,
    config: &[u8],
    options: &FilterOptions,
) -> (FilterRun, Result<Vec<u8>, FilterFailure>) {
    let program = ChildProgram {
        argv: hook.args.iter().map(OsStr::new).collect(),
        env: hook.env.iter().flatten().filter_map(|entry| environment_entry(entry)).collect(),
        stdin: config,
        timeout: hook.timeout.map(timeout),
        stdout: OutputLimit::Kill(options.output_limit_bytes),
        stderr: OutputLimit::Truncate(options.stderr_limit_bytes),
        ..ChildProgram::new(Path::new(&hook.path), &options.bundle)
    };
    let FinishedProgram { end, stdout, stderr, stderr_truncated, duration, .. } =
        match program.run() {
            Ok(finished) => finished,
            Err(error) => return (FilterRun::default(), Err(error.into())),
        };
    let result = match end {
        ProgramEnd::Exited(0) => Ok(stdout),
        ProgramEnd::Exited(code) => Err(FilterFailure::Exited(code)),
        ProgramEnd::Signaled(signal) => Err(FilterFailure::Signaled(signal)),
        ProgramEnd::TimedOut => {
            Err(FilterFailure::TimedOut { timeout: program.timeout.unwrap_or_default() })
        }
        ProgramEnd::OutputTooLarge => {
            Err(FilterFailure::OutputTooLarge { limit_bytes: options.output_limit_bytes })
        }
    };
    (FilterRun { stderr, stderr_truncated, duration, changed: false }, result)
}

/// Splits `NAME=value`; returns `None` for an entry without `=`, which programs cannot look up.
fn environment_entry(entry: &str) -> Option<(&OsStr, &OsStr)> {
    let (name, value) = entry.split_once('=')?;
    Some((OsStr::new(name), OsStr::new(value)))
}

/// Returns the timeout as podman and runc read it: zero if it is not positive or exceeds 63 bits of
/// nanoseconds.
pub(super) fn timeout(seconds: i64) -> Duration {
    const MAX_SECONDS: u64 = i64::MAX as u64 / 1_000_000_000;
    match u64::try_from(seconds) {
        Ok(seconds) if seconds <= MAX_SECONDS => Duration::from_secs(seconds),
        _ => Duration::ZERO,
    }
}

/// Checks the output of a filter. Returns whether it is `{}` or `null`, which is an error unless allowed.
fn check(output: &[u8], is_spec: bool, options: &FilterOptions) -> Result<bool, FilterFailure> {
    let document = JsonDocument::parse(output).map_err(FilterFailure::NotJson)?;
    str::from_utf8(output).map_err(|error| FilterFailure::NotUtf8(error.valid_up_to()))?;
    let root = document.root();
    let found = match root.kind() {
        JsonKind::Object if root.members().next().is_none() => "{}",
        JsonKind::Null => "null",
        JsonKind::Object if is_spec => {
            return match serde_json::from_slice::<Spec>(output) {
                Ok(_) => Ok(false),
                Err(error) => Err(FilterFailure::NotASpec(error)),
            };
        }
        JsonKind::Object => return Ok(false),
        JsonKind::Array => return Err(FilterFailure::NotAnObject { found: "an array" }),
        JsonKind::String => return Err(FilterFailure::NotAnObject { found: "a string" }),
        JsonKind::Bool => return Err(FilterFailure::NotAnObject { found: "a boolean" }),
        JsonKind::Number => return Err(FilterFailure::NotAnObject { found: "a number" }),
    };
    if options.allow_empty { Ok(true) } else { Err(FilterFailure::Empty { found }) }
}

#[cfg(test)]
mod tests;
