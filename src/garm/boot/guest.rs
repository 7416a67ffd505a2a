//! The instance as a boot sees it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::container::ContainerError;
use crate::sys::fs::PathError;

/// A directory of every instance that is in memory, for what must not be on a disk. It belongs to
/// root, and all may pass through it.
pub const TMPFS: &str = "/run/garm";

/// A program to run in an instance.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GuestCommand {
    /// Its arguments, the program first.
    pub args: Vec<String>,
    /// Variables, over those of the container.
    pub env: Vec<(String, String)>,
    pub cwd: PathBuf,
    pub owner: Owner,
    /// What it reads from standard input.
    pub stdin: Vec<u8>,
    pub timeout: Duration,
}

/// A user of an instance, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Owner {
    pub uid: u32,
    pub gid: u32,
}

impl Owner {
    /// The first of all.
    pub const ROOT: Owner = Owner { uid: 0, gid: 0 };
}

/// Follows what a program writes.
pub trait OutputWatcher {
    /// Takes a line without its newline, or the beginning of a long one.
    fn line(&mut self, line: &str);

    /// When the program is killed if it still runs; asked again after each line.
    fn deadline(&self) -> Option<Instant>;
}

/// Does not care for what is written.
struct Within(Option<Instant>);

impl OutputWatcher for Within {
    fn line(&mut self, _: &str) {}

    fn deadline(&self) -> Option<Instant> {
        self.0
    }
}

/// An instance whose container runs.
pub trait Guest {
    /// Runs a program to its end, and everything it writes goes to the instance's log. Returns its
    /// code, or 128 and the signal that ended it.
    fn run(&mut self, command: &GuestCommand) -> Result<i32, GuestError> {
        // One that is too far off for a clock is none.
        self.run_watched(command, &mut Within(Instant::now().checked_add(command.timeout)))
    }

    /// The same, but the watcher gets each line too, and says how long the program may run.
    fn run_watched(
        &mut self,
        command: &GuestCommand,
        watcher: &mut dyn OutputWatcher,
    ) -> Result<i32, GuestError>;

    /// Writes a line to the instance's log.
    fn note(&mut self, text: &str);

    /// Writes a file anew, with missing directories on the way, which get the same owner. Links
    /// lead to where they lead in the instance.
    fn write(&self, path: &Path, content: &[u8], mode: u32, owner: Owner)
    -> Result<(), GuestError>;

    /// Makes a symbolic link, in place of whatever file or link is there.
    fn link(&self, path: &Path, target: &Path, owner: Owner) -> Result<(), GuestError>;

    /// Reads a file of at most so many bytes; none if there is none.
    fn read(&self, path: &Path, limit_bytes: u64) -> Result<Option<Vec<u8>>, GuestError>;

    /// Removes a file or directory with all in it; none is fine.
    fn remove(&self, path: &Path) -> Result<(), GuestError>;
}

/// Why something could not be done in an instance.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GuestError {
    /// The container does not take it.
    #[error(transparent)]
    Container(#[from] ContainerError),
    /// A file could not be used.
    #[error(transparent)]
    Path(#[from] PathError),
    #[error("{program} did not end within {} s", timeout.as_secs())]
    TimedOut { program: String, timeout: Duration },
}
