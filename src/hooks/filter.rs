//! Precreate filters: programs that get a container's configuration before the container is
//! created, and give back the one to use.
//!
//! What podman does, with these differences, each held by a test in `tests/conformance/filter.rs`
//! or below:
//!
//! - The configuration passes as bytes, so fields that the specification does not know survive.
//! - A filter that gives back `{}` or `null` fails, unless [`FilterOptions::allow_empty`] is set.
//!   In podman it empties the configuration without a word.
//! - At the timeout the filter's whole process group is killed, and not the filter alone.
//! - The output is bounded.
//! - Standard error is kept.
//! - The configuration need not fit podman's types: only JSON and an object are asked for, and no
//!   field is matched regardless of case.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::IgnoredAny;

use super::Hook;
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
    /// The bytes that the last filter wrote.
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
#[error("cannot filter the configuration with hook {index}, {path}{}", stderr_suffix(run))]
#[non_exhaustive]
pub struct FilterError {
    /// Its index in the list of filters.
    pub index: usize,
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
    #[error("its output is not JSON")]
    NotJson(#[from] serde_json::Error),
    /// It wrote bytes that are not UTF-8, as JSON has to be.
    #[error("its output is not UTF-8")]
    NotUtf8(#[from] std::str::Utf8Error),
    /// It wrote a JSON value that is no configuration.
    #[error("its output is {found}, not an object")]
    NotAnObject { found: &'static str },
    /// It would have emptied the configuration.
    #[error("its output is {found}, which would empty the configuration")]
    Empty { found: &'static str },
}

/// Sends a configuration through filters: each gets on standard input what the one before it wrote
/// to standard output.
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
    for (index, hook) in hooks.iter().enumerate() {
        match run(hook, &config, options) {
            (mut done, Ok(output)) => {
                done.changed = output != config;
                config = output;
                runs.push(done);
            }
            (run, Err(failure)) => {
                let path = hook.path.clone();
                return Err(Box::new(FilterError { index, path, failure, run, config, runs }));
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
        dies_with_us: false,
        stdout: Limit::Kill(options.output_limit_bytes),
        stderr: Limit::Truncate(options.stderr_limit_bytes),
        ..Program::new(Path::new(&hook.path), &options.bundle)
    };
    let Finished { end, stdout, stderr, stderr_truncated, duration, .. } = match program.run() {
        Ok(finished) => finished,
        Err(error) => return (FilterRun::default(), Err(error.into())),
    };
    let result = match end {
        End::Exited(0) => checked(stdout, options),
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

/// Returns the output of a filter if it is a configuration.
fn checked(output: Vec<u8>, options: &FilterOptions) -> Result<Vec<u8>, FilterFailure> {
    // Ignored values are checked for JSON's grammar without being built.
    serde_json::from_str::<IgnoredAny>(str::from_utf8(&output)?)?;
    let mut significant = output.iter().filter(|byte| !byte.is_ascii_whitespace());
    let found = match significant.next() {
        Some(b'{') if significant.next() == Some(&b'}') => "{}",
        Some(b'{') => return Ok(output),
        Some(b'n') => "null",
        Some(b'[') => return Err(FilterFailure::NotAnObject { found: "an array" }),
        Some(b'"') => return Err(FilterFailure::NotAnObject { found: "a string" }),
        Some(b't' | b'f') => return Err(FilterFailure::NotAnObject { found: "a boolean" }),
        _ => return Err(FilterFailure::NotAnObject { found: "a number" }),
    };
    if options.allow_empty { Ok(b"{}".to_vec()) } else { Err(FilterFailure::Empty { found }) }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    fn sh(script: &str) -> Hook {
        Hook {
            path: "/bin/sh".to_owned(),
            args: ["sh", "-c", script].map(str::to_owned).to_vec(),
            env: Some(vec!["PATH=/usr/bin:/bin".to_owned()]),
            timeout: Some(60),
        }
    }

    fn through(script: &str) -> Result<Filtered, Box<FilterError>> {
        filter(&[&sh(script)], br#"{"a":1}"#.to_vec(), &FilterOptions::new("/"))
    }

    fn failure(script: &str) -> FilterFailure {
        through(script).unwrap_err().failure
    }

    #[test]
    fn bytes_pass_unchanged_from_filter_to_filter() {
        let config = br#"{ "x-unknown": [1e400, 1.0, null], "a": 18446744073709551616 } "#.to_vec();
        let (cat, sed) = (sh("cat"), sh("sed s/1.0/2.0/; echo changed it >&2"));
        let filtered = filter(&[&cat, &sed, &cat], config, &FilterOptions::new("/")).unwrap();
        let expected = r#"{ "x-unknown": [1e400, 2.0, null], "a": 18446744073709551616 } "#;
        assert_eq!(String::from_utf8(filtered.config).unwrap(), expected);
        assert_eq!(
            filtered.runs.iter().map(|run| run.changed).collect::<Vec<_>>(),
            [false, true, false]
        );
        assert_eq!(filtered.runs[1].stderr, b"changed it\n");
    }

    #[test]
    fn no_filters_change_nothing() {
        let filtered = filter(&[], b"not JSON".to_vec(), &FilterOptions::new("/none")).unwrap();
        assert_eq!(filtered, Filtered { config: b"not JSON".to_vec(), runs: vec![] });
    }

    #[test]
    fn output_must_be_one_json_object() {
        for script in ["true", "echo", "echo x", "echo '{} {}'", "cat; echo x", "echo '{a:1}'"] {
            assert!(matches!(failure(script), FilterFailure::NotJson(_)), "{script}");
        }
        for (output, kind) in [
            ("[{}]", "an array"),
            ("\\\"{}\\\"", "a string"),
            ("true", "a boolean"),
            ("false", "a boolean"),
            (" -1", "a number"),
        ] {
            match failure(&format!("echo \"{output}\"")) {
                FilterFailure::NotAnObject { found } => assert_eq!(found, kind),
                other => panic!("{output}: {other}"),
            }
        }
        let failure = failure(r#"printf '{"a":"\377"}'"#);
        assert!(matches!(failure, FilterFailure::NotUtf8(_)), "{failure}");
    }

    #[test]
    fn empty_result_is_refused_unless_allowed() {
        for (script, expected) in [("echo ' { } '", "{}"), ("echo null", "null")] {
            match failure(script) {
                FilterFailure::Empty { found } => assert_eq!(found, expected),
                other => panic!("{script}: {other}"),
            }
            let options = FilterOptions { allow_empty: true, ..FilterOptions::new("/") };
            let filtered = filter(&[&sh(script)], b"{\"a\":1}".to_vec(), &options).unwrap();
            assert_eq!(filtered.config, b"{}");
        }
        assert!(through(r#"echo '{"":0}'"#).is_ok());
    }

    #[test]
    fn error_names_the_hook_and_keeps_what_the_others_did() {
        let hooks = [sh("sed s/1/2/"), sh("cat; echo why >&2; echo >&2; exit 3"), sh("cat")];
        let hooks: Vec<&Hook> = hooks.iter().collect();
        let error = filter(&hooks, b"{\"a\":1}".to_vec(), &FilterOptions::new("/")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot filter the configuration with hook 1, /bin/sh (stderr: why)"
        );
        assert_eq!(error.source().unwrap().to_string(), "exit status 3");
        assert_eq!((error.index, error.runs.len()), (1, 1));
        assert_eq!(error.config, b"{\"a\":2}");
        assert_eq!(error.run.stderr, b"why\n\n");
    }

    #[test]
    fn last_stderr_line_are_harmless_on_a_terminal() {
        let run =
            FilterRun { stderr: b"first\n \x1b[2Jbad\xff\n\n".to_vec(), ..Default::default() };
        assert_eq!(run.last_stderr_line().as_deref(), Some("\u{fffd}[2Jbad\u{fffd}"));
        assert_eq!(FilterRun::default().last_stderr_line(), None);
    }

    #[test]
    fn environment_and_directory_are_those_of_hook_and_bundle() {
        let bundle = tempfile::tempdir().unwrap();
        let script = r#"printf '{"cwd":"%s","A":"%s","HOME":"%s"}' "$PWD" "$A" "$HOME""#;
        let mut hook = sh(script);
        hook.env = Some(["A=b=c", "nothing", "=x"].map(str::to_owned).to_vec());
        let filtered = filter(&[&hook], vec![], &FilterOptions::new(bundle.path())).unwrap();
        let expected = format!(
            r#"{{"cwd":"{}","A":"b=c","HOME":""}}"#,
            bundle.path().canonicalize().unwrap().display()
        );
        assert_eq!(String::from_utf8(filtered.config).unwrap(), expected);
    }

    #[test]
    fn timeouts_are_those_of_the_reference() {
        assert_eq!(timeout(5), Duration::from_secs(5));
        assert_eq!(timeout(9_223_372_036), Duration::from_secs(9_223_372_036));
        for seconds in [0, -1, i64::MIN, 9_223_372_037, i64::MAX] {
            assert_eq!(timeout(seconds), Duration::ZERO, "{seconds}");
        }
    }

    #[test]
    fn filter_that_hangs_or_floods_fails_within_bounds() {
        let mut hook = sh("cat; sleep 1000 & wait");
        hook.timeout = Some(1);
        let error = filter(&[&hook], b"{}".to_vec(), &FilterOptions::new("/")).unwrap_err();
        assert_eq!(error.failure.to_string(), "timed out after 1 s");
        assert!(error.run.duration < Duration::from_secs(60));

        let options = FilterOptions {
            output_limit_bytes: 1000,
            stderr_limit_bytes: 10,
            ..FilterOptions::new("/")
        };
        let hook = sh("cat /dev/zero | head -c 100000 >&2; exec cat /dev/zero");
        let error = filter(&[&hook], b"{}".to_vec(), &options).unwrap_err();
        assert_eq!(error.failure.to_string(), "its output exceeds 1000 bytes");
        assert_eq!((error.run.stderr.len(), error.run.stderr_truncated), (10, true));
        let last = error.run.lines().pop();
        assert_eq!(last.as_deref(), Some("(more output was discarded)"));
        assert_eq!(error.config, b"{}");
    }
}
