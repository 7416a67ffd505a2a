//! Precreate filters: programs that read a container's configuration before the container is
//! created and print the one to use.
//!
//! They work as in podman, with these differences, each covered by a test in
//! `tests/conformance/filter.rs` or below:
//!
//! - Unknown fields survive: podman's types drop them. The new configuration is the last filter's
//!   output, byte for byte unless readers could disagree about it, or the original text if no
//!   filter changed it.
//! - A filter that prints `{}` or `null` fails, unless [`FilterOptions::allow_empty`] is set. In
//!   podman it silently empties the configuration.
//! - The timeout kills the filter's whole process group, not only the filter.
//! - The output is bounded.
//! - Standard error is kept.
//! - Filters get numbers and the order of keys as in the configuration, and also the empty fields
//!   that podman omits.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

mod decode;

use oci_hooks_files::process::{ChildProgram, FinishedProgram, OutputLimit, ProgramEnd, RunError};

use super::Hook;
use crate::json::{JsonDocument, SyntaxError};

/// Limits and environment for precreate hooks.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FilterOptions {
    /// Working directory of the filters; relative paths of programs start here.
    pub bundle: PathBuf,
    /// If set, a filter may print `{}` or `null`; both make the configuration `{}`.
    pub allow_empty: bool,
    /// Maximum output of a filter.
    pub output_limit_bytes: u64,
    /// Limit of the recorded standard error.
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
    /// Standard error, up to the limit.
    pub stderr: Vec<u8>,
    /// If set, standard error exceeded the limit.
    pub stderr_truncated: bool,
    pub duration: Duration,
    /// If set, the output differs from the input; white space counts.
    pub changed: bool,
}

impl FilterRun {
    /// Returns the first non-blank lines of standard error without control characters, and a note
    /// if there were more.
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

    /// Returns the last line of standard error, cut to fit into a message.
    pub fn last_stderr_line(&self) -> Option<String> {
        const MAX_CHARS: usize = 300;
        let line = self.kept_lines().pop()?;
        Some(line.trim_start().chars().take(MAX_CHARS).collect())
    }
}

/// A failed filter. The filters after it were not run.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot filter the configuration with hook {}, {path}{}",
    file.as_ref().map_or_else(|| index.to_string(), |file| file.display().to_string()),
    stderr_suffix(run)
)]
#[non_exhaustive]
pub struct FilterError {
    /// Its index in the list of filters.
    pub index: usize,
    /// The hook file; `None` from [`filter`], which does not know files.
    pub file: Option<PathBuf>,
    pub path: String,
    #[source]
    pub failure: FilterFailure,
    pub run: FilterRun,
    /// The configuration after the last successful filter.
    pub config: Vec<u8>,
    /// Runs of the filters before it.
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
        /// The effective timeout; zero if the hook's was not greater than zero or too large.
        timeout: Duration,
    },
    /// The filter was killed because its output exceeded the limit.
    #[error("its output exceeds {limit_bytes} bytes")]
    OutputTooLarge { limit_bytes: u64 },
    /// The output is not exactly one JSON value; it may be empty.
    #[error("its output is not JSON, at byte {}", .0.offset)]
    NotJson(#[source] SyntaxError),
    /// The output is neither an object nor `null`.
    #[error("its output is {found}, not an object")]
    NotAnObject { found: &'static str },
    /// A value of the output does not fit the field's type in the runtime specification.
    #[error(
        "its output has a value of the wrong type at {pointer}: expected {expected}, got {found}"
    )]
    WrongType {
        /// JSON pointer of the value.
        pointer: String,
        expected: String,
        /// Type of the value, or the number itself.
        found: String,
    },
    /// The output has two arrays for one field, whose elements podman would mix.
    #[error("its output has the field {pointer} twice: write one array with all elements")]
    Duplicate { pointer: String },
    /// The output would empty the configuration.
    #[error("its output is {found}, which would empty the configuration")]
    Empty { found: &'static str },
}

/// Sends a configuration through filters: each gets the previous output on standard input, and the
/// first one the configuration as podman passes it, on one line.
///
/// Each runs in the bundle with exactly the environment of its hook, until it has exited and closed
/// its standard output. `PATH` is not searched. The error is boxed because it holds all results so
/// far.
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
    for (index, hook) in hooks.iter().enumerate() {
        let (mut done, result) = run(hook, &input, options);
        match result.and_then(|output| Ok((checked(output.clone(), options)?, output))) {
            Ok((decoded, output)) => {
                done.changed = output != input;
                runs.push(done);
                let is_as_given = output.trim_ascii_end() == given;
                config = if is_as_given { original.clone() } else { decoded };
                // The raw output, not the decoded one, like podman.
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

/// Splits `NAME=value`. Programs cannot look up an entry without `=`.
fn environment_entry(entry: &str) -> Option<(&OsStr, &OsStr)> {
    let (name, value) = entry.split_once('=')?;
    Some((OsStr::new(name), OsStr::new(value)))
}

/// Returns the timeout as podman and runc read it: zero if it is not greater than zero or does not
/// fit into 63 bits of nanoseconds.
pub(super) fn timeout(seconds: i64) -> Duration {
    const MAX_SECONDS: u64 = i64::MAX as u64 / 1_000_000_000;
    match u64::try_from(seconds) {
        Ok(seconds) if seconds <= MAX_SECONDS => Duration::from_secs(seconds),
        _ => Duration::ZERO,
    }
}

/// Decodes and checks the output of a filter.
fn checked(output: Vec<u8>, options: &FilterOptions) -> Result<Vec<u8>, FilterFailure> {
    let config = decode::decode(output)?;
    let mut significant = config.iter().filter(|byte| !byte.is_ascii_whitespace());
    let found = match (significant.next(), significant.next()) {
        (Some(b'{'), Some(b'}')) => "{}",
        (Some(b'{'), _) => return Ok(config),
        _ => "null",
    };
    if options.allow_empty { Ok(b"{}".to_vec()) } else { Err(FilterFailure::Empty { found }) }
}

#[cfg(test)]
mod tests;
