//! Why a step was not run, or not to its end.

use std::io;
use std::time::Duration;

use crate::sys::fs::PathError;
use crate::sys::init::frames::{Failure, FailureKind, FrameError};

/// A container's first process did not run a step to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StepError {
    /// There is no such socket, or nobody listens on it any more. Nothing was started.
    #[error(transparent)]
    Unavailable(#[from] PathError),
    /// The first process speaks no version of the protocol that is known here. Nothing was started.
    #[error("the container's first process is of another version: it takes steps as {0} to {1}")]
    Version(u16, u16),
    /// The first process went away before it said what it speaks. Nothing was started.
    #[error("the container's first process takes no steps")]
    Gone,
    /// The step cannot be sent.
    #[error("cannot send the step to the container")]
    Request(#[source] FrameError),
    /// The first process could not start it.
    #[error("{}", Described(.0))]
    Failed(Failure),
    /// The first process was replaced by something else.
    #[error("the container's first process answers what it must not")]
    Answer(#[source] FrameError),
    /// An answer came that does not belong there.
    #[error("the container's first process answers what it must not: {0} out of turn")]
    Turn(&'static str),
    /// The first process was stopped, or replaced by something else.
    #[error("the container's first process did not answer within {} s", .0.as_secs())]
    Silent(Duration),
    /// The container ended, or its first process was replaced by something else.
    #[error("the container ended before its step did")]
    Lost,
    /// This process was told to end before there was a step.
    #[error("ended by signal {0} before the step was started")]
    Interrupted(i32),
    #[error("cannot pass on what the step writes")]
    Streams(#[source] io::Error),
}

impl StepError {
    /// Returns whether the step can be run in another way: nothing of it was sent.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, StepError::Unavailable(_) | StepError::Version(..) | StepError::Gone)
    }

    /// Returns the exit code of the step: what a shell would have for a program that it cannot run.
    pub fn code(&self) -> u8 {
        match self {
            StepError::Failed(Failure { kind: FailureKind::ProgramMissing, .. }) => 127,
            StepError::Failed(Failure {
                kind: FailureKind::ProgramNotExecutable | FailureKind::InterpreterMissing,
                ..
            }) => 126,
            // As a process of a container that ends.
            StepError::Lost => 137,
            StepError::Interrupted(signal) => u8::try_from(128 + signal).unwrap_or(1),
            _ => 1,
        }
    }
}

/// A failure in words. All that is in it may be a hostile job's, and is quoted.
struct Described<'a>(&'a Failure);

impl std::fmt::Display for Described<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Failure { kind, errno, path, found } = self.0;
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
                    found => write!(f, "its PATH has {}", listed(found)),
                }
            }
            FailureKind::ProgramNotExecutable => {
                write!(f, "cannot execute {path:?} in the job container: {}", Errno(*errno))?;
                match first {
                    Some(name) => write!(
                        f,
                        "; the environment variable {name:?} is longer than the kernel takes, which is 128 KiB"
                    ),
                    None => Ok(()),
                }
            }
            FailureKind::InterpreterMissing => write!(
                f,
                "cannot execute {path:?} in the job container: it is run by {:?}, which the image does not have",
                first.unwrap_or_default()
            ),
            FailureKind::Directory => {
                write!(f, "cannot use the working directory {path:?} in the job container: ")?;
                write!(f, "{}", Errno(*errno))?;
                match first {
                    Some(deepest) => write!(f, "; {deepest:?} exists"),
                    None => Ok(()),
                }
            }
            FailureKind::Setup => {
                write!(f, "cannot set {path:?} for the step: {}", Errno(*errno))
            }
            FailureKind::Process => write!(
                f,
                "cannot start another process in the job container: {}; is its limit of processes reached?",
                Errno(*errno)
            ),
            FailureKind::Request => {
                write!(f, "the container's first process did not take the step: {path:?}")
            }
            FailureKind::Busy => f.write_str(
                "a cancelled step of the job container still has processes, which could not be killed",
            ),
            FailureKind::Watcher => f.write_str(
                "the process that watches over the step was killed, and with it the rest of the step",
            ),
            FailureKind::Keeper => f.write_str(
                "the process that keeps what the step writes was killed, or the container was started again",
            ),
            FailureKind::Forgotten => f.write_str("what the step has written is not kept any more"),
            FailureKind::Abandoned => {
                f.write_str("the step was killed, since nobody asked how it goes for too long")
            }
            FailureKind::Other(number) => {
                write!(f, "the container's first process could not start the step: failure {number}")
            }
        }
    }
}

fn listed(names: &[std::borrow::Cow<'_, str>]) -> String {
    // Few that are known; of what a hostile job says as many.
    let names = names.iter().take(16);
    names.map(|name| name.escape_debug().to_string()).collect::<Vec<_>>().join(", ")
}

/// A number of the kernel's in words.
struct Errno(i32);

impl std::fmt::Display for Errno {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = io::Error::from_raw_os_error(self.0).to_string();
        f.write_str(text.split(" (os error").next().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(kind: FailureKind, errno: i32, path: &str, found: &[&str]) -> StepError {
        let found = found.iter().map(|text| text.as_bytes().to_vec()).collect();
        StepError::Failed(Failure { kind, errno, path: path.into(), found })
    }

    #[test]
    fn what_is_missing_is_said_on_one_line_with_what_there_is() {
        for (error, code, text) in [
            (
                failed(FailureKind::ProgramMissing, 2, "pwsh", &["sh", "bash"]),
                127,
                "cannot find \"pwsh\" in the job container: its PATH has sh, bash",
            ),
            (
                failed(FailureKind::ProgramMissing, 2, "sh", &[]),
                127,
                "cannot find \"sh\" in the job container: its PATH has no shell, python3 or node: use an image \
                 that has one, or `shell:` with a program of the image",
            ),
            (
                failed(FailureKind::ProgramNotExecutable, 13, "/x", &[]),
                126,
                "cannot execute \"/x\" in the job container: Permission denied",
            ),
            (
                failed(FailureKind::ProgramNotExecutable, 7, "sh", &["LARGE"]),
                126,
                "cannot execute \"sh\" in the job container: Argument list too long; the environment variable \
                 \"LARGE\" is longer than the kernel takes, which is 128 KiB",
            ),
            (
                failed(FailureKind::Directory, 2, "/a/b/c", &["/a"]),
                1,
                "cannot use the working directory \"/a/b/c\" in the job container: No such file or directory; \
                 \"/a\" exists",
            ),
            (
                failed(FailureKind::ProgramMissing, 2, "a\n::error::b", &["\n::x"]),
                127,
                "cannot find \"a\\n::error::b\" in the job container: its PATH has \\n::x",
            ),
        ] {
            assert_eq!((error.code(), error.to_string().as_str()), (code, text));
        }
    }
}
