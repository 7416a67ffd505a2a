//! Recording hooks: the injected entry starts `oci-hooks run-hook`, which runs the real hook and
//! records its output and exit status.
//!
//! The hook gets the state, environment and working directory that the runtime gave the wrapper,
//! and the runtime gets the hook's output and exit code. Differences: output arrives when the hook
//! has ended and is cut at a limit, and the wrapper does not wait for a background process that
//! holds only standard error. The environment is not recorded because it may hold secrets; the
//! hook's output is.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use jiff::Timestamp;
use oci_hooks_files::error::chain;
use oci_hooks_files::fs::{
    Durability, FileAt, ReplaceError, ReplaceOptions, SymlinkPolicy, make_directories, random_u64,
};
use oci_hooks_files::process::{ChildProgram, FinishedProgram, OutputLimit, ProgramEnd, RunError};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use super::entries::edit_entries;
use super::filter::timeout;
use super::{ConfigDocument, ConfigError, Hook, OciStage};
use crate::json::{JsonKind, JsonValue};

/// Seconds by which the runtime's timeout for the recorder exceeds the recorder's timeout for the
/// hook.
///
/// A healthy recorder kills the hook itself, so this delays nothing; a busy host takes seconds to
/// start a program and to write a file.
const GRACE_SECONDS: i64 = 10;

/// Wraps hook entries to record their output and exit status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookRecorder {
    program: String,
    directory: String,
}

/// A configuration whose hooks are recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedConfig {
    pub config: Vec<u8>,
    /// Hooks that cannot be recorded, as stage and program path. An entry that is no valid hook is
    /// listed by its JSON text instead of the path.
    pub not_recorded: Vec<(OciStage, String)>,
}

/// Errors of [`HookRecorder::new`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecorderError {
    /// The path is not UTF-8, which a hook entry in JSON requires.
    #[error("{} is not valid UTF-8, so no hook entry can name it", path.display())]
    NotUtf8 { path: PathBuf },
    /// The path is relative; the runtime chooses the working directory of hooks.
    #[error("{} is not an absolute path, which hooks require", path.display())]
    Relative { path: PathBuf },
}

impl HookRecorder {
    /// Returns a recorder that runs the `oci-hooks` at `program` to write records to `directory`.
    pub fn new(program: &Path, directory: &Path) -> Result<Self, RecorderError> {
        let text = |path: &Path| {
            if path.is_relative() {
                return Err(RecorderError::Relative { path: path.to_owned() });
            }
            let text = path.to_str().map(str::to_owned);
            text.ok_or_else(|| RecorderError::NotUtf8 { path: path.to_owned() })
        };
        Ok(HookRecorder { program: text(program)?, directory: text(directory)? })
    }

    /// Returns the entry to inject instead of `hook` at `stage`. `name` is the hook file's name in
    /// the record.
    ///
    /// Returns `None` for `startContainer`: those hooks are programs of the image and run inside
    /// the container, where neither the recorder nor the directory exists.
    ///
    /// The hook's timeout goes to the recorder, and the runtime gets some seconds more: otherwise
    /// it would kill the recorder first, and leave the hook running without a record.
    pub fn wrap(&self, hook: &Hook, name: &str, stage: &str) -> Option<Hook> {
        if stage == "startContainer" {
            return None;
        }
        let program_name = Path::new(&self.program).file_name().and_then(OsStr::to_str);
        let mut args = vec![
            program_name.unwrap_or(&self.program).to_owned(),
            "run-hook".to_owned(),
            // `=` protects values that look like options.
            format!("--capture={}", self.directory),
            format!("--hook={name}"),
            format!("--stage={stage}"),
        ];
        args.extend(hook.timeout.map(|seconds| format!("--timeout={seconds}")));
        let (arg0, rest) = match hook.args.split_first() {
            Some((arg0, rest)) => (arg0, rest),
            None => (&hook.path, &[][..]),
        };
        if *arg0 != hook.path {
            args.push(format!("--arg0={arg0}"));
        }
        args.extend(["--".to_owned(), hook.path.clone()]);
        args.extend_from_slice(rest);
        Some(Hook {
            path: self.program.clone(),
            args,
            env: hook.env.clone(),
            timeout: hook.timeout.and_then(with_grace),
        })
    }

    /// Wraps all hooks of a configuration that do not run the recorder yet, including hooks of
    /// engines and of CDI devices.
    pub fn wrap_all(&self, config: &[u8]) -> Result<RecordedConfig, ConfigError> {
        let mut text = config.to_vec();
        let mut not_recorded = Vec::new();
        for stage in OciStage::ALL {
            let mut wrapped = Vec::new();
            let document = ConfigDocument::parse(&text)?;
            let hooks = document.document().root().get("hooks");
            let hooks = hooks.and_then(|hooks| hooks.get(stage.name()));
            let hooks = hooks.into_iter().flat_map(JsonValue::elements);
            for (index, hook) in hooks.enumerate() {
                match self.wrap_element(hook, stage) {
                    Ok(hook) => wrapped.extend(hook.map(|hook| (index.to_string(), hook))),
                    Err(program) => not_recorded.push((stage, program)),
                }
            }
            if wrapped.is_empty() {
                continue;
            }
            let mut indexes = 0_usize..;
            let name = |_: JsonValue<'_>| indexes.next().unwrap_or_default().to_string();
            let path = ["hooks", stage.name()];
            text = edit_entries(&text, &path, JsonKind::Array, name, |entries| {
                for (index, hook) in &wrapped {
                    entries.put(index, hook);
                }
            })?;
        }
        Ok(RecordedConfig { config: text, not_recorded })
    }

    /// Returns the wrapped hook, or `None` if the hook already runs the recorder. If it cannot be
    /// wrapped, the error is the path of its program, or its JSON text if it is no valid hook.
    fn wrap_element(&self, hook: JsonValue<'_>, stage: OciStage) -> Result<Option<Hook>, String> {
        let Ok(hook) = serde_json::from_slice::<ConfigHook>(hook.raw()) else {
            return Err(String::from_utf8_lossy(hook.raw()).into_owned());
        };
        let args = hook.args.unwrap_or_default();
        if hook.path == self.program && args.get(1).is_some_and(|arg| arg == "run-hook") {
            return Ok(None);
        }
        let hook = Hook { path: hook.path, args, env: hook.env, timeout: hook.timeout };
        let name = Path::new(&hook.path).file_name().unwrap_or(OsStr::new("hook"));
        let wrapped = self.wrap(&hook, &name.to_string_lossy(), stage.name());
        wrapped.map(Some).ok_or(hook.path)
    }
}

/// A hook entry under `hooks` in `config.json`.
#[derive(Deserialize)]
struct ConfigHook {
    path: String,
    args: Option<Vec<String>>,
    env: Option<Vec<String>>,
    timeout: Option<i64>,
}

/// Returns the runtime's timeout in seconds: the hook's plus [`GRACE_SECONDS`], or `None` if the
/// sum is too large.
fn with_grace(seconds: i64) -> Option<i64> {
    let ours = i64::try_from(timeout(seconds).as_secs()).ok()?;
    let more = ours.checked_add(GRACE_SECONDS)?;
    (!timeout(more).is_zero()).then_some(more)
}

/// A hook to run and record.
#[derive(Clone, Debug)]
pub struct HookCapture<'a> {
    /// Directory for the record, created with mode `0o700` if it is missing. `None` writes no
    /// record.
    pub directory: Option<&'a Path>,
    /// File name of the hook, for the record.
    pub hook: &'a str,
    /// Stage of the hook, for the record.
    pub stage: &'a str,
    pub path: &'a Path,
    /// Argument vector of the hook, `argv[0]` included.
    pub argv: Vec<&'a OsStr>,
    /// The environment of the calling process, set by the runtime.
    pub env: Vec<(&'a OsStr, &'a OsStr)>,
    /// The working directory of the calling process.
    pub cwd: &'a Path,
    /// Timeout in seconds; zero or less kills at once.
    pub timeout: Option<i64>,
    /// The container's state, from standard input.
    pub state: &'a [u8],
    /// Maximum size of each recorded output stream; the rest is discarded.
    pub output_limit_bytes: u64,
}

/// The result of a recorded hook.
#[derive(Debug)]
#[non_exhaustive]
pub struct CapturedRun {
    /// Exit code for the runtime: the hook's, 128 plus the signal that killed it (SIGKILL at its
    /// timeout), 127 if its program does not exist, or 126 if it cannot be run.
    pub exit_code: u8,
    /// End and output of the hook, or the reason why it could not be run.
    pub result: Result<FinishedProgram, RunError>,
    /// Path of the record; `Ok(None)` without a directory. A failure to write it does not change
    /// the exit code.
    pub record: Result<Option<PathBuf>, ReplaceError>,
}

impl HookCapture<'_> {
    /// Runs the hook and writes its record.
    pub fn run(&self) -> CapturedRun {
        let program = ChildProgram {
            argv: self.argv.clone(),
            env: self.env.clone(),
            stdin: self.state,
            timeout: self.timeout.map(timeout),
            stdout: OutputLimit::Truncate(self.output_limit_bytes),
            stderr: OutputLimit::Truncate(self.output_limit_bytes),
            ..ChildProgram::new(self.path, self.cwd)
        };
        let started = SystemTime::now();
        let result = program.run();
        let write = |directory| CaptureRecord::new(self, started, &result).write(directory);
        let record = self.directory.map(write).transpose();
        let exit_code = exit_code(&result);
        CapturedRun { exit_code, result, record }
    }
}

/// Returns the exit code for the runtime, following shell conventions.
fn exit_code(result: &Result<FinishedProgram, RunError>) -> u8 {
    let code = match result {
        Ok(finished) => match finished.end {
            ProgramEnd::Exited(code) => code,
            ProgramEnd::Signaled(signal) => 128 + signal,
            ProgramEnd::TimedOut | ProgramEnd::OutputTooLarge => 128 + Signal::KILL.as_raw(),
        },
        Err(RunError::Execute { source, .. }) if source.kind() == io::ErrorKind::NotFound => 127,
        Err(_) => 126,
    };
    u8::try_from(code).unwrap_or(u8::MAX)
}

/// The JSON of a record. Invalid UTF-8 becomes U+FFFD.
#[derive(Debug, Serialize)]
struct CaptureRecord<'a> {
    hook: &'a str,
    stage: &'a str,
    path: Cow<'a, str>,
    args: Vec<Cow<'a, str>>,
    /// The container's ID, if the state has one.
    container: Option<String>,
    /// Start time: RFC 3339 in UTC, with nanoseconds.
    started: String,
    duration_ms: u64,
    #[serde(flatten)]
    outcome: HookEnd,
    stdout: Cow<'a, str>,
    stdout_truncated: bool,
    stderr: Cow<'a, str>,
    stderr_truncated: bool,
}

/// Exit status of a hook; the variant's name is the key in the record.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum HookEnd {
    ExitCode(i32),
    Signal(i32),
    /// Always true: the hook was killed at its timeout.
    TimedOut(bool),
    /// The hook could not be run: the error and its causes.
    Error(String),
}

/// The part of a [container's state] that is read.
///
/// [container's state]: https://github.com/opencontainers/runtime-spec/blob/main/runtime.md#state
#[derive(Deserialize)]
struct ContainerState {
    id: String,
}

impl<'a> CaptureRecord<'a> {
    fn new(
        capture: &'a HookCapture<'_>,
        started: SystemTime,
        result: &'a Result<FinishedProgram, RunError>,
    ) -> Self {
        // Out of range only if the clock is off by millennia.
        let time = Timestamp::try_from(started).unwrap_or_default();
        let record = CaptureRecord {
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
            Ok(finished) => CaptureRecord {
                duration_ms: u64::try_from(finished.duration.as_millis()).unwrap_or(u64::MAX),
                outcome: match finished.end {
                    ProgramEnd::Exited(code) => HookEnd::ExitCode(code),
                    ProgramEnd::Signaled(signal) => HookEnd::Signal(signal),
                    // `OutputTooLarge` cannot occur: excess output is truncated.
                    ProgramEnd::TimedOut | ProgramEnd::OutputTooLarge => HookEnd::TimedOut(true),
                },
                stdout: String::from_utf8_lossy(&finished.stdout),
                stdout_truncated: finished.stdout_truncated,
                stderr: String::from_utf8_lossy(&finished.stderr),
                stderr_truncated: finished.stderr_truncated,
                ..record
            },
            Err(error) => CaptureRecord { outcome: HookEnd::Error(chain(error)), ..record },
        }
    }

    /// Writes the record to a new file whose name sorts by time, and returns its path.
    fn write(&self, directory: &Path) -> Result<PathBuf, ReplaceError> {
        make_directories(directory, 0o700)?;
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
        FileAt::open(&path, SymlinkPolicy::Follow)?.replace(&json, &options)?;
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use serde_json::{Value, json};

    use super::*;

    const STATE: &[u8] = br#"{"ociVersion":"1.0.2","id":"c1","status":"created","bundle":"/b"}"#;

    fn capture<'a>(directory: &'a Path, script: &'a str) -> HookCapture<'a> {
        HookCapture {
            directory: Some(directory),
            hook: "10-test.json",
            stage: "createRuntime",
            path: Path::new("/bin/sh"),
            argv: ["sh", "-c", script].map(OsStr::new).to_vec(),
            env: vec![(OsStr::new("PATH"), OsStr::new("/usr/bin:/bin"))],
            cwd: Path::new("/"),
            timeout: Some(600),
            state: STATE,
            output_limit_bytes: 1 << 20,
        }
    }

    /// Returns the record without the values that differ between runs.
    fn stable_record(captured: &CapturedRun) -> Value {
        let path = captured.record.as_ref().unwrap().as_ref().unwrap();
        let mut record: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        let started = record["started"].take();
        let compact = started.as_str().unwrap().replace(['-', ':'], "");
        assert!(path.file_name().unwrap().to_str().unwrap().starts_with(&compact));
        assert!(record["duration_ms"].take().as_u64().unwrap() < 600_000);
        record
    }

    #[test]
    fn hook_gets_the_state_unchanged_and_its_run_is_recorded() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("records/of hooks");
        let script = "cat; echo why >&2; exit 3";
        let captured = capture(&directory, script).run();
        assert_eq!(captured.exit_code, 3);
        let finished = captured.result.as_ref().unwrap();
        assert_eq!((&*finished.stdout, &*finished.stderr), (STATE, &b"why\n"[..]));
        assert_eq!(
            stable_record(&captured),
            json!({
                "hook": "10-test.json",
                "stage": "createRuntime",
                "path": "/bin/sh",
                "args": ["sh", "-c", script],
                "container": "c1",
                "started": null,
                "duration_ms": null,
                "exit_code": 3,
                "stdout": str::from_utf8(STATE).unwrap(),
                "stdout_truncated": false,
                "stderr": "why\n",
                "stderr_truncated": false,
            })
        );
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode(&directory), 0o700);
        assert_eq!(mode(captured.record.as_ref().unwrap().as_ref().unwrap()), 0o600);
    }

    #[test]
    fn abnormal_ends_are_recorded_and_returned_like_by_a_shell() {
        let root = tempfile::tempdir().unwrap();
        let captured = capture(root.path(), "kill -TERM $$").run();
        assert_eq!((captured.exit_code, &stable_record(&captured)["signal"]), (143, &json!(15)));

        let mut hanging = capture(root.path(), "echo before; sleep 1000 & wait");
        hanging.timeout = Some(5);
        let captured = hanging.run();
        let record = stable_record(&captured);
        assert_eq!((captured.exit_code, &record["timed_out"]), (137, &json!(true)));
        assert_eq!(record["stdout"], "before\n");

        for (path, exit_code, error) in [
            ("/nonexistent", 127, "cannot execute /nonexistent: No such file or directory"),
            ("/etc/passwd", 126, "cannot execute /etc/passwd: Permission denied"),
        ] {
            let mut missing = capture(root.path(), "");
            missing.path = Path::new(path);
            let captured = missing.run();
            assert_eq!(captured.exit_code, exit_code);
            assert!(captured.result.is_err());
            assert!(stable_record(&captured)["error"].as_str().unwrap().starts_with(error));
        }
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 4);
    }

    #[test]
    fn records_sort_by_time() {
        let root = tempfile::tempdir().unwrap();
        let paths: Vec<PathBuf> =
            (0..5).map(|_| capture(root.path(), "").run().record.unwrap().unwrap()).collect();
        assert!(paths.is_sorted_by(|a, b| a < b), "{paths:?}");
    }

    #[test]
    fn output_is_cut_at_the_limit_and_may_be_binary() {
        let root = tempfile::tempdir().unwrap();
        let mut capture = capture(root.path(), r"printf 'a\377bcd'; echo long >&2");
        capture.output_limit_bytes = 3;
        capture.state = b"not JSON";
        let captured = capture.run();
        assert_eq!(captured.exit_code, 0);
        assert_eq!(captured.result.as_ref().unwrap().stdout, b"a\xffb");
        let record = stable_record(&captured);
        assert_eq!(record["stdout"], "a\u{fffd}b");
        assert_eq!((&record["stdout_truncated"], &record["stderr"]), (&json!(true), &json!("lon")));
        assert_eq!(record["container"], Value::Null);
    }

    #[test]
    fn hook_runs_even_if_it_cannot_be_recorded() {
        let captured = capture(Path::new("/dev/null/records"), "echo ran; exit 4").run();
        assert_eq!((captured.exit_code, captured.result.unwrap().stdout), (4, b"ran\n".to_vec()));
        let error = captured.record.unwrap_err();
        assert_eq!(error.to_string(), "cannot open /dev/null/records");
    }

    fn recorder() -> HookRecorder {
        HookRecorder::new(Path::new("/usr/bin/oci-hooks"), Path::new("/var/log/hook records"))
            .unwrap()
    }

    fn hook(path: &str, args: &[&str], timeout: Option<i64>) -> Hook {
        Hook {
            path: path.to_owned(),
            args: args.iter().copied().map(str::to_owned).collect(),
            env: Some(vec!["A=b".to_owned()]),
            timeout,
        }
    }

    #[test]
    fn wrapped_hook_starts_the_recorder_with_the_hooks_parameters() {
        let wrapped = recorder()
            .wrap(&hook("/bin/x", &["-x", "--", "y z"], Some(5)), "--odd.json", "poststop")
            .unwrap();
        let args = [
            "oci-hooks",
            "run-hook",
            "--capture=/var/log/hook records",
            "--hook=--odd.json",
            "--stage=poststop",
            "--timeout=5",
            "--arg0=-x",
            "--",
            "/bin/x",
            "--",
            "y z",
        ];
        assert_eq!(wrapped, hook("/usr/bin/oci-hooks", &args, Some(15)));
    }

    #[test]
    fn wrapped_hook_without_arguments_or_timeout_passes_none() {
        for args in [&[][..], &["/bin/x"]] {
            let wrapped =
                recorder().wrap(&hook("/bin/x", args, None), "x.json", "prestart").unwrap();
            assert_eq!(wrapped.args[4..], ["--stage=prestart", "--", "/bin/x"]);
            assert_eq!(wrapped.timeout, None);
        }
    }

    #[test]
    fn runtime_timeout_is_longer_than_that_of_the_hook() {
        for (timeout, expected) in [
            (1, Some(11)),
            (0, Some(10)),
            (-5, Some(10)),
            (i64::MAX, Some(10)),
            (9_223_372_026, Some(9_223_372_036)),
            (9_223_372_027, None),
        ] {
            let wrapped =
                recorder().wrap(&hook("/bin/x", &[], Some(timeout)), "x.json", "poststart");
            assert_eq!(wrapped.unwrap().timeout, expected, "{timeout}");
        }
    }

    #[test]
    fn hooks_that_run_inside_the_container_are_not_wrapped() {
        assert_eq!(recorder().wrap(&hook("/bin/x", &[], None), "x.json", "startContainer"), None);
    }

    #[test]
    fn recorder_needs_absolute_paths_that_json_can_hold() {
        use std::os::unix::ffi::OsStrExt as _;
        let good = Path::new("/good");
        for (program, directory) in [(Path::new("oci-hooks"), good), (good, Path::new("records"))] {
            let error = HookRecorder::new(program, directory).unwrap_err();
            assert!(matches!(error, RecorderError::Relative { .. }), "{error}");
        }
        let error = HookRecorder::new(good, Path::new(OsStr::from_bytes(b"/\xff"))).unwrap_err();
        assert!(matches!(error, RecorderError::NotUtf8 { .. }), "{error}");
    }
}
