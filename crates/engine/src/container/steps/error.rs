//! Errors of running a step.

use std::io;
use std::time::Duration;

use oci_hooks_files::fs::PathError;
use oci_hooks_init::frames::{FailureKind, FrameError, StepFailure};

/// Errors of running a step by a container's first process.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// The socket does not exist, or no process listens on it. Nothing was started.
    #[error(transparent)]
    Unavailable(#[from] PathError),
    /// The first process supports no version of the protocol that this program does. Nothing was started.
    #[error(
        "the container's first process is of another version: it supports protocol versions {0} to {1}"
    )]
    Version(u16, u16),
    /// The first process disconnected before its hello. Nothing was started.
    #[error("the container's first process closed the connection before it answered")]
    Disconnected,
    /// The step cannot be sent.
    #[error("cannot send the step to the container")]
    Request(#[source] FrameError),
    /// The first process could not start the step.
    #[error("{}", FailureText(.0))]
    Failed(StepFailure),
    /// An answer is invalid: another program replaced the first process.
    #[error("the container's first process sent an invalid answer")]
    Answer(#[source] FrameError),
    /// An answer came out of turn.
    #[error("the container's first process sent an unexpected answer: {0}")]
    OutOfTurn(&'static str),
    /// The first process was stopped, or replaced by another program.
    #[error("the container's first process did not answer within {} s", .0.as_secs())]
    Silent(Duration),
    /// The container ended, or another program replaced its first process.
    #[error("the container ended before its step did")]
    Lost,
    /// This process was told to end before the step was started.
    #[error("cancelled by signal {0} before the step was started")]
    Interrupted(i32),
    #[error("cannot forward the step's output")]
    Streams(#[source] io::Error),
}

impl StepError {
    /// Returns whether the step can be run in another way, since nothing of it was sent.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, StepError::Unavailable(_) | StepError::Version(..) | StepError::Disconnected)
    }

    /// Returns the exit code of the step, as of a shell that cannot run a program.
    pub fn code(&self) -> u8 {
        match self {
            StepError::Failed(StepFailure { kind: FailureKind::ProgramMissing, .. }) => 127,
            StepError::Failed(StepFailure {
                kind: FailureKind::ProgramNotExecutable | FailureKind::InterpreterMissing,
                ..
            }) => 126,
            // As of a process whose container ends.
            StepError::Lost => 137,
            StepError::Interrupted(signal) => u8::try_from(128 + signal).unwrap_or(1),
            _ => 1,
        }
    }
}

/// A failure as text. Its strings may come from a hostile job, and are quoted.
struct FailureText<'a>(&'a StepFailure);

impl std::fmt::Display for FailureText<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let StepFailure { kind, errno, path, found } = self.0;
        let path = String::from_utf8_lossy(path);
        let found: Vec<_> = found.iter().map(|text| String::from_utf8_lossy(text)).collect();
        let first = found.first().map(AsRef::as_ref);
        match kind {
            FailureKind::ProgramMissing => {
                write!(f, "cannot find {path:?} in the job container: ")?;
                match &found[..] {
                    [] => f.write_str(
                        "its PATH has no shell, python3 or node: use an image that has one, or `shell:` with \
                         a program of the image",
                    ),
                    found => write!(f, "its PATH has {}", join_names(found)),
                }
            }
            FailureKind::ProgramNotExecutable => {
                write!(f, "cannot execute {path:?} in the job container: {}", ErrnoText(*errno))?;
                match first {
                    Some(name) => write!(
                        f,
                        "; the environment variable {name:?} is longer than the kernel's limit of 128 KiB"
                    ),
                    None => Ok(()),
                }
            }
            FailureKind::InterpreterMissing => {
                write!(f, "cannot execute {path:?} in the job container: ")?;
                match first {
                    Some(name) => {
                        write!(f, "it is run by {name:?}, which the image does not have: ")?;
                        f.write_str(interpreter_hint(name))
                    }
                    None => f.write_str("the image does not have its interpreter or dynamic linker"),
                }
            }
            FailureKind::Directory => {
                write!(f, "cannot use the working directory {path:?} in the job container: ")?;
                write!(f, "{}", ErrnoText(*errno))?;
                match first {
                    Some(deepest) => write!(f, "; the deepest existing parent directory is {deepest:?}"),
                    None => Ok(()),
                }
            }
            FailureKind::Setup => {
                write!(f, "cannot set up {path:?} for the step: {}", ErrnoText(*errno))
            }
            FailureKind::Process => write!(
                f,
                "cannot start another process in the job container: {}; is its limit of processes reached?",
                ErrnoText(*errno)
            ),
            FailureKind::Request => {
                write!(f, "the container's first process rejected the step: {path:?}")
            }
            FailureKind::Busy => f.write_str(
                "processes of a cancelled step are still in the job container and cannot be killed: run the job again",
            ),
            FailureKind::Supervisor => f.write_str(
                "the step was killed, because the process that supervises it was killed",
            ),
            FailureKind::Keeper => f.write_str(
                "the step's output is lost: the process that stores it was killed, or the container was restarted",
            ),
            FailureKind::Forgotten => f.write_str("the requested output of the step is no longer stored"),
            FailureKind::Abandoned => {
                f.write_str("the step was killed, because no client polled it for too long")
            }
            FailureKind::Other(number) => {
                write!(f, "the container's first process could not start the step: failure {number}")
            }
        }
    }
}

/// Returns the fix for a missing interpreter.
fn interpreter_hint(name: &str) -> &'static str {
    let file = name.rsplit('/').next().unwrap_or_default();
    match () {
        () if name.ends_with('\r') => "convert the line endings of the script from CRLF to LF",
        () if file.starts_with("ld-musl") => {
            "the program is built for musl: use an image of Alpine, or a program that is built for glibc"
        }
        () if file.starts_with("ld-linux") || file.starts_with("ld64") => {
            "the program is built for glibc: use an image with glibc such as Debian's, install glibc's \
             compatibility package (gcompat in Alpine), or use a program that is built for musl"
        }
        () => "use an image that has it, or install it in an earlier step",
    }
}

fn join_names(names: &[std::borrow::Cow<'_, str>]) -> String {
    // Few programs are known; a hostile job may send more names.
    let names = names.iter().take(16);
    names.map(|name| name.escape_debug().to_string()).collect::<Vec<_>>().join(", ")
}

/// An error number of the kernel, as text.
struct ErrnoText(i32);

impl std::fmt::Display for ErrnoText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = io::Error::from_raw_os_error(self.0).to_string();
        f.write_str(text.split(" (os error").next().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure_error(kind: FailureKind, errno: i32, path: &str, found: &[&str]) -> StepError {
        let found = found.iter().map(|text| text.as_bytes().to_vec()).collect();
        StepError::Failed(StepFailure { kind, errno, path: path.into(), found })
    }

    #[test]
    fn missing_program_is_reported_with_candidates_on_one_line() {
        for (error, code, text) in [
            (
                failure_error(FailureKind::ProgramMissing, 2, "pwsh", &["sh", "bash"]),
                127,
                "cannot find \"pwsh\" in the job container: its PATH has sh, bash",
            ),
            (
                failure_error(FailureKind::ProgramMissing, 2, "sh", &[]),
                127,
                "cannot find \"sh\" in the job container: its PATH has no shell, python3 or node: use an image \
                 that has one, or `shell:` with a program of the image",
            ),
            (
                failure_error(FailureKind::ProgramNotExecutable, 13, "/x", &[]),
                126,
                "cannot execute \"/x\" in the job container: Permission denied",
            ),
            (
                failure_error(FailureKind::ProgramNotExecutable, 7, "sh", &["LARGE"]),
                126,
                "cannot execute \"sh\" in the job container: Argument list too long; the environment variable \
                 \"LARGE\" is longer than the kernel's limit of 128 KiB",
            ),
            (
                failure_error(FailureKind::Directory, 2, "/a/b/c", &["/a"]),
                1,
                "cannot use the working directory \"/a/b/c\" in the job container: No such file or directory; \
                 the deepest existing parent directory is \"/a\"",
            ),
            (
                failure_error(FailureKind::ProgramMissing, 2, "a\n::error::b", &["\n::x"]),
                127,
                "cannot find \"a\\n::error::b\" in the job container: its PATH has \\n::x",
            ),
            (
                failure_error(
                    FailureKind::InterpreterMissing,
                    2,
                    "node",
                    &["/lib64/ld-linux-x86-64.so.2"],
                ),
                126,
                "cannot execute \"node\" in the job container: it is run by \"/lib64/ld-linux-x86-64.so.2\", \
                 which the image does not have: the program is built for glibc: use an image with glibc such as \
                 Debian's, install glibc's compatibility package (gcompat in Alpine), or use a program that is \
                 built for musl",
            ),
            (
                failure_error(FailureKind::InterpreterMissing, 2, "/a", &["/bin/sh\r"]),
                126,
                "cannot execute \"/a\" in the job container: it is run by \"/bin/sh\\r\", which the image does \
                 not have: convert the line endings of the script from CRLF to LF",
            ),
            (
                failure_error(FailureKind::InterpreterMissing, 2, "/a", &[]),
                126,
                "cannot execute \"/a\" in the job container: the image does not have its interpreter or dynamic \
                 linker",
            ),
        ] {
            assert_eq!((error.code(), error.to_string().as_str()), (code, text));
        }
    }
}
