//! Precreate filters: programs that get a container's configuration before the container is
//! created, and give back the one to use.
//!
//! What podman does, with these differences, each held by a test in `tests/conformance/filter.rs`
//! or below:
//!
//! - Fields that the specification does not know survive: podman's types lose them. What the last
//!   filter wrote is the new configuration, byte for byte unless readers could disagree about it, and
//!   the text from before the filters if none of them changed it.
//! - A filter that gives back `{}` or `null` fails, unless [`FilterOptions::allow_empty`] is set.
//!   In podman it empties the configuration without a word.
//! - At the timeout the filter's whole process group is killed, and not the filter alone.
//! - The output is bounded.
//! - Standard error is kept.
//! - Numbers, and the order of keys, are in what filters get as they were in the configuration, and so
//!   are fields that podman leaves out for being empty.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

mod decode;

use super::Hook;
use crate::json::{Document, SyntaxError};
use crate::sys::process::{End, Finished, Limit, Program, RunError};

/// Limits and environment for precreate hooks.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FilterOptions {
    /// Their working directory, to which relative paths of programs are relative too.
    pub bundle: PathBuf,
    /// Whether `{}` and `null` are taken as a result; both make the configuration `{}`.
    pub allow_empty: bool,
    /// How many bytes a filter may give back.
    pub output_limit_bytes: u64,
    /// How much of its standard error is kept.
    pub stderr_limit_bytes: u64,
}

impl FilterOptions {
    /// Returns options for a bundle: nothing empty, 16 MiB of output, 64 KiB of standard error.
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
pub struct Filtered {
    /// What the last filter wrote, or the configuration as it was if no filter changed it.
    pub config: Vec<u8>,
    pub runs: Vec<FilterRun>,
}

/// The run of one precreate hook.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FilterRun {
    /// What it wrote to standard error, up to the limit.
    pub stderr: Vec<u8>,
    /// Whether it wrote more than that.
    pub stderr_truncated: bool,
    pub duration: Duration,
    /// Whether it gave back other bytes than it got; white space counts.
    pub changed: bool,
}

impl FilterRun {
    /// Returns the first lines of standard error that are not blank, without control characters, and a
    /// note if there was more of it.
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

    /// Returns the last line of standard error, cut to what fits into a message.
    pub fn last_stderr_line(&self) -> Option<String> {
        const MAX_CHARS: usize = 300;
        let line = self.kept_lines().pop()?;
        Some(line.trim_start().chars().take(MAX_CHARS).collect())
    }
}

/// A filter that did not work. The filters after it have not been run.
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
    /// The hook file, where it is known: [`filter`] does not know it.
    pub file: Option<PathBuf>,
    /// The hook's program.
    pub path: String,
    #[source]
    pub failure: FilterFailure,
    pub run: FilterRun,
    /// The configuration after the last filter that worked.
    pub config: Vec<u8>,
    /// What the filters before it did.
    pub runs: Vec<FilterRun>,
}

fn stderr_suffix(run: &FilterRun) -> String {
    run.last_stderr_line().map_or_else(String::new, |line| format!(" (stderr: {line})"))
}

/// What was wrong with a filter.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FilterFailure {
    /// It could not be run.
    #[error(transparent)]
    Run(#[from] RunError),
    /// It exited with a code that is not zero.
    #[error("exit status {0}")]
    Exited(i32),
    /// It was ended by a signal, which was not ours.
    #[error("killed by signal {0}")]
    Signaled(i32),
    /// It was killed at its timeout.
    #[error("timed out after {} s", timeout.as_secs())]
    TimedOut {
        /// The timeout it had; zero for one that is not greater than zero or too large.
        timeout: Duration,
    },
    /// It was killed because it did not stop writing.
    #[error("its output exceeds {limit_bytes} bytes")]
    OutputTooLarge { limit_bytes: u64 },
    /// It wrote something that is not exactly one JSON value; nothing, for one.
    #[error("its output is not JSON, at byte {}", .0.offset)]
    NotJson(#[source] SyntaxError),
    /// It wrote a JSON value that is no configuration.
    #[error("its output is {found}, not an object")]
    NotAnObject { found: &'static str },
    /// It wrote a value that does not fit the type of a field in the runtime specification.
    #[error(
        "its output has a value of the wrong type at {pointer}: expected {expected}, got {found}"
    )]
    WrongType {
        /// JSON pointer of the value.
        pointer: String,
        expected: String,
        /// The kind of value; a number itself.
        found: String,
    },
    /// It wrote two arrays for one field, whose elements podman would mix.
    #[error("its output has the field {pointer} twice: write one array with all elements")]
    Duplicate { pointer: String },
    /// It would have emptied the configuration.
    #[error("its output is {found}, which would empty the configuration")]
    Empty { found: &'static str },
}

/// Sends a configuration through filters: each gets on standard input what the one before it wrote
/// to standard output, and the first one the configuration as podman gives it, on one line.
///
/// Each runs in the bundle with exactly the environment of its hook, and is waited for until it
/// exited and closed its standard output. No `PATH` is searched. The error is boxed as it holds
/// everything that is known by then.
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
) -> Result<Filtered, Box<FilterError>> {
    let mut runs = Vec::with_capacity(hooks.len());
    if hooks.is_empty() {
        return Ok(Filtered { config, runs });
    }
    let given = Document::parse(&config).map_or_else(|_| config.clone(), |it| it.compact());
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
                // As it is, and not as it was decoded, like podman.
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
    Ok(Filtered { config, runs })
}

/// Runs one filter and returns what it did and the configuration it gave back.
fn run(
    hook: &Hook,
    config: &[u8],
    options: &FilterOptions,
) -> (FilterRun, Result<Vec<u8>, FilterFailure>) {
    let program = Program {
        argv: hook.args.iter().map(OsStr::new).collect(),
        env: hook.env.iter().flatten().filter_map(|entry| environment_entry(entry)).collect(),
        stdin: config,
        timeout: hook.timeout.map(timeout),
        stdout: Limit::Kill(options.output_limit_bytes),
        stderr: Limit::Truncate(options.stderr_limit_bytes),
        ..Program::new(Path::new(&hook.path), &options.bundle)
    };
    let Finished { end, stdout, stderr, stderr_truncated, duration, .. } = match program.run() {
        Ok(finished) => finished,
        Err(error) => return (FilterRun::default(), Err(error.into())),
    };
    let result = match end {
        End::Exited(0) => Ok(stdout),
        End::Exited(code) => Err(FilterFailure::Exited(code)),
        End::Signaled(signal) => Err(FilterFailure::Signaled(signal)),
        End::TimedOut => {
            Err(FilterFailure::TimedOut { timeout: program.timeout.unwrap_or_default() })
        }
        End::OutputTooLarge => {
            Err(FilterFailure::OutputTooLarge { limit_bytes: options.output_limit_bytes })
        }
    };
    (FilterRun { stderr, stderr_truncated, duration, changed: false }, result)
}

/// Splits `NAME=value`. An entry without `=` is one that no program can look up.
fn environment_entry(entry: &str) -> Option<(&OsStr, &OsStr)> {
    let (name, value) = entry.split_once('=')?;
    Some((OsStr::new(name), OsStr::new(value)))
}

/// Returns the timeout that podman and runc make of a hook's: one that is not greater than zero is
/// over at once, and so is one that does not fit into 63 bits of nanoseconds.
pub(super) fn timeout(seconds: i64) -> Duration {
    const MAX_SECONDS: u64 = i64::MAX as u64 / 1_000_000_000;
    match u64::try_from(seconds) {
        Ok(seconds) if seconds <= MAX_SECONDS => Duration::from_secs(seconds),
        _ => Duration::ZERO,
    }
}

/// Returns the configuration that the output of a filter is.
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
