//! What the engine does for a built-in function.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use super::super::Value;
use super::super::document::Step;
use super::super::log::Stream;
use super::error::CommandError;

/// The inputs of a function by name, with defaults.
pub type Inputs = BTreeMap<String, Value>;

/// A command of a built-in function.
#[derive(Clone, Copy, Debug)]
pub struct Command<'a> {
    /// Program and arguments. A program without a slash is looked up in the PATH of `env`.
    pub argv: &'a [String],
    pub work_dir: &'a Path,
    pub env: &'a BTreeMap<String, String>,
    /// File for standard output and standard error; by default they go to the log.
    pub output: Option<&'a File>,
}

/// Until when a command may run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// When the command gets `SIGTERM` and, after the grace period, `SIGKILL`; besides the limit of the job.
    pub deadline: Option<Instant>,
    pub cancellation: Cancellation,
}

/// What a command does when its job is cancelled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cancellation {
    /// It ends.
    #[default]
    Ends,
    /// It goes on, until the job is killed.
    Spares,
}

/// Whether a job may go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobState {
    Running,
    Cancelled,
    /// The maximum run time is over.
    TimedOut,
    /// Cancelled for the second time: nothing may run any more.
    Killed,
}

/// The step that a built-in function runs for: its scope, its commands, its log.
pub trait Host {
    /// Returns the working directory of the job.
    fn work_dir(&self) -> &Path;

    /// Returns a private directory for files of the job.
    fn scratch(&self) -> &Path;

    /// Returns the environment of the step.
    fn env(&self) -> &BTreeMap<String, String>;

    /// Returns the variables of the CI job.
    fn vars(&self) -> &BTreeMap<String, String>;

    /// Returns the path of this program, without symbolic links.
    fn executable(&self) -> Option<&Path>;

    fn state(&mut self) -> JobState;

    /// Writes text to the log, among the output of commands.
    fn print(&mut self, stream: Stream, text: &str);

    /// Masks a secret in the log from now on.
    fn mask(&mut self, secret: &str);

    /// Runs a command to its end.
    ///
    /// # Errors
    ///
    /// Fails if the command does not exit with code 0, and if it was stopped whatever its code is.
    fn run(&mut self, command: &Command<'_>, limits: &Limits) -> Result<(), CommandError>;

    /// Waits, or until a command with these limits would be stopped.
    fn pause(&mut self, time: Duration, limits: &Limits);

    /// Runs steps in a scope of their own, with this environment. What they export ends with them.
    ///
    /// # Errors
    ///
    /// Fails with the error of the step that failed.
    fn steps(
        &mut self,
        steps: Vec<Step>,
        env: &BTreeMap<String, String>,
        limits: &Limits,
    ) -> Result<(), CommandError>;
}
