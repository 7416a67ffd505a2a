//! Recording what hooks do: a hook entry is wrapped so that the runtime starts
//! `oci-hooks run-hook`, which runs the real hook and writes down how it went.
//!
//! The hook gets the state, environment and working directory that the runtime gave the wrapper,
//! and the runtime gets the hook's output and exit code. What differs: the output comes when the
//! hook has ended, it is cut at a limit, and a background process that holds only standard error
//! is not waited for. The environment is not recorded, as it may hold secrets; what the hook
//! writes is.

mod record;

use std::ffi::OsStr;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::Hook;
use super::filter::timeout;
use crate::sys::fs::ReplaceError;
use crate::sys::process::{End, Finished, Limit, Program, RunError};
use record::Record;
use rustix::process::Signal;

/// The largest state that is taken from a runtime; a real one has some kilobytes.
pub const STATE_LIMIT_BYTES: u64 = 16 << 20;

/// What the runtime waits longer for the recorder than the recorder for the hook.
///
/// A recorder that is well ends the hook itself, so this delays nothing; a busy host takes seconds
/// to start a program and to write a file.
const GRACE_SECONDS: i64 = 10;

/// Wraps hook entries so that what they do is recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorder {
    program: String,
    directory: String,
}

/// Why hooks cannot be recorded this way.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecorderError {
    /// A hook entry is JSON, which has no other text than Unicode.
    #[error("{} is not valid UTF-8, so no hook entry can name it", path.display())]
    NotUtf8 { path: PathBuf },
    /// Hooks run in a directory of the runtime's choice.
    #[error("{} is not an absolute path, as hooks need it", path.display())]
    Relative { path: PathBuf },
}

impl Recorder {
    /// Returns a recorder that has `program`, an `oci-hooks`, write records to `directory`.
    pub fn new(program: &Path, directory: &Path) -> Result<Self, RecorderError> {
        let text = |path: &Path| {
            if path.is_relative() {
                return Err(RecorderError::Relative { path: path.to_owned() });
            }
            let text = path.to_str().map(str::to_owned);
            text.ok_or_else(|| RecorderError::NotUtf8 { path: path.to_owned() })
        };
        Ok(Recorder { program: text(program)?, directory: text(directory)? })
    }

    /// Returns the entry to inject instead of `hook`, of the file `name`, at a stage.
    ///
    /// There is none for `startContainer`: those hooks are programs of the container's image and
    /// run inside the container, where neither the recorder nor the directory exist.
    ///
    /// The hook's timeout goes to the recorder, and the runtime gets some seconds more: else it
    /// would kill the recorder first, and leave no record and the hook running.
    pub fn wrap(&self, hook: &Hook, name: &str, stage: &str) -> Option<Hook> {
        if stage == "startContainer" {
            return None;
        }
        let program_name = Path::new(&self.program).file_name().and_then(OsStr::to_str);
        let mut args = vec![
            program_name.unwrap_or(&self.program).to_owned(),
            "run-hook".to_owned(),
            // With `=`, for values that look like options.
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
}

/// Returns a timeout for the runtime that ends after ours, or none if that is too long for one.
fn with_grace(seconds: i64) -> Option<i64> {
    let ours = i64::try_from(timeout(seconds).as_secs()).ok()?;
    let more = ours.checked_add(GRACE_SECONDS)?;
    (!timeout(more).is_zero()).then_some(more)
}

/// A hook to run and record.
#[derive(Clone, Debug)]
pub struct Capture<'a> {
    /// The directory for the record; made with mode `0o700` if it is missing.
    pub directory: &'a Path,
    /// The file name of the hook.
    pub hook: &'a str,
    /// The stage it runs at.
    pub stage: &'a str,
    pub path: &'a Path,
    /// Its argument vector, `argv[0]` included.
    pub argv: Vec<&'a OsStr>,
    /// Its environment: that of the calling process, which the runtime made.
    pub env: Vec<(&'a OsStr, &'a OsStr)>,
    /// Its working directory: that of the calling process.
    pub cwd: &'a Path,
    /// Its timeout in seconds; one that is not greater than zero kills at once.
    pub timeout: Option<i64>,
    /// The container's state, from standard input.
    pub state: &'a [u8],
    /// How much of each output stream is kept.
    pub output_limit_bytes: u64,
}

/// How a recorded hook went.
#[derive(Debug)]
#[non_exhaustive]
pub struct Captured {
    /// The exit code to give to the runtime: that of the hook, 128 and the signal that ended it
    /// (SIGKILL at its timeout), 127 if its program does not exist, or 126 if it cannot be run.
    pub exit_code: u8,
    /// What the hook wrote to standard output, up to the limit.
    pub stdout: Vec<u8>,
    /// What the hook wrote to standard error, up to the limit.
    pub stderr: Vec<u8>,
    /// Why the hook could not be run, if so.
    pub failure: Option<RunError>,
    /// The file of the record. Not being able to write it does not change what the hook did.
    pub record: Result<PathBuf, CaptureError>,
}

/// Why something could not be recorded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// The directory for records could not be made.
    #[error(transparent)]
    Directory(ReplaceError),
    /// The record could not be written.
    #[error(transparent)]
    Write(#[from] ReplaceError),
    /// The state could not be read.
    #[error("cannot read the container's state from standard input")]
    ReadState(#[source] io::Error),
    /// The state is no state.
    #[error("the container's state has more than {STATE_LIMIT_BYTES} bytes")]
    StateTooLarge,
}

/// Reads a container's state, of which there can be [`STATE_LIMIT_BYTES`].
pub fn read_state(from: impl Read) -> Result<Vec<u8>, CaptureError> {
    let mut state = Vec::new();
    from.take(STATE_LIMIT_BYTES + 1).read_to_end(&mut state).map_err(CaptureError::ReadState)?;
    if state.len() as u64 > STATE_LIMIT_BYTES {
        return Err(CaptureError::StateTooLarge);
    }
    Ok(state)
}

impl Capture<'_> {
    /// Runs the hook and writes its record.
    pub fn run(&self) -> Captured {
        let program = Program {
            argv: self.argv.clone(),
            env: self.env.clone(),
            stdin: self.state,
            timeout: self.timeout.map(timeout),
            stdout: Limit::Truncate(self.output_limit_bytes),
            stderr: Limit::Truncate(self.output_limit_bytes),
            ..Program::new(self.path, self.cwd)
        };
        let started = SystemTime::now();
        let result = program.run();
        let record = Record::new(self, started, &result).write(self.directory);
        let exit_code = exit_code(&result);
        match result {
            Ok(Finished { stdout, stderr, .. }) => {
                Captured { exit_code, stdout, stderr, failure: None, record }
            }
            Err(failure) => {
                let (stdout, stderr) = (Vec::new(), Vec::new());
                Captured { exit_code, stdout, stderr, failure: Some(failure), record }
            }
        }
    }
}

/// Returns the exit code that tells a runtime how a hook ended, as a shell would.
fn exit_code(result: &Result<Finished, RunError>) -> u8 {
    let code = match result {
        Ok(finished) => match finished.end {
            End::Exited(code) => code,
            End::Signaled(signal) => 128 + signal,
            End::TimedOut | End::OutputTooLarge => 128 + Signal::KILL.as_raw(),
        },
        Err(RunError::Execute { source, .. }) if source.kind() == io::ErrorKind::NotFound => 127,
        Err(_) => 126,
    };
    u8::try_from(code).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests;
