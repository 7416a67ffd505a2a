//! Interface of a boot to the instance.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use oci_hooks_engine::container::ContainerError;
use oci_hooks_files::fs::PathError;

/// Directory of a tmpfs in every instance, for files that must not be on disk. Owned by root with mode 0711.
pub const TMPFS: &str = "/run/garm";

/// A program to run in an instance.
#[derive(Clone, Debug)]
pub struct GuestCommand {
    /// Arguments, beginning with the program.
    pub args: Vec<String>,
    /// Environment variables, which override those of the container.
    pub env: Vec<(String, String)>,
    pub cwd: PathBuf,
    pub owner: GuestIds,
    pub stdin: Vec<u8>,
    pub timeout: Duration,
}

/// Ids of a user and group in an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestIds {
    pub uid: u32,
    pub gid: u32,
}

impl GuestIds {
    /// Root of the instance.
    pub const ROOT: GuestIds = GuestIds { uid: 0, gid: 0 };
}

/// Watches the output of a program.
pub trait OutputWatcher {
    /// Receives a line without its newline; long lines are truncated.
    fn line(&mut self, line: &str);

    /// Returns the time at which a running program is killed, if any; called again after each line.
    fn deadline(&self) -> Option<Instant>;
}

/// Watcher that ignores the output, with a deadline.
struct DeadlineWatcher(Option<Instant>);

impl OutputWatcher for DeadlineWatcher {
    fn line(&mut self, _: &str) {}

    fn deadline(&self) -> Option<Instant> {
        self.0
    }
}

/// An instance whose container is running.
pub trait Guest {
    /// Runs a program until it exits, with its output in the instance's log. Returns the exit code, or 128 plus the
    /// signal number.
    fn run(&mut self, command: &GuestCommand) -> Result<i32, GuestError> {
        // A deadline out of the clock's range is no deadline.
        self.run_watched(command, &mut DeadlineWatcher(Instant::now().checked_add(command.timeout)))
    }

    /// Runs a program as [`Guest::run`] does, and passes each line to the watcher, which also sets the deadline.
    fn run_watched(
        &mut self,
        command: &GuestCommand,
        watcher: &mut dyn OutputWatcher,
    ) -> Result<i32, GuestError>;

    /// Writes a line to the instance's log.
    fn note(&mut self, text: &str);

    /// Writes a file, replacing its content; missing parent directories are created with the same owner. Symlinks are
    /// resolved in the instance.
    fn write(
        &self,
        path: &Path,
        content: &[u8],
        mode: u32,
        owner: GuestIds,
    ) -> Result<(), GuestError>;

    /// Creates a symlink, replacing an existing file or symlink.
    fn link(&self, path: &Path, target: &Path, owner: GuestIds) -> Result<(), GuestError>;

    /// Reads a file of at most `limit_bytes`; none if the file does not exist.
    fn read(&self, path: &Path, limit_bytes: u64) -> Result<Option<Vec<u8>>, GuestError>;

    /// Removes a file or directory tree, if it exists.
    fn remove(&self, path: &Path) -> Result<(), GuestError>;
}

/// Errors of operations in an instance.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    #[error(transparent)]
    Container(#[from] ContainerError),
    #[error(transparent)]
    Path(#[from] PathError),
    #[error(
        "timed out: {program} did not end within {} s, the rest of `timeout` under [boot]",
        timeout.as_secs()
    )]
    TimedOut { program: String, timeout: Duration },
}
