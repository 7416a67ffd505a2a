//! The interface through which built-in functions use the engine.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use super::super::ExprValue;
use super::super::document::StepCall;
use super::super::log::LogStream;
use super::error::CommandError;

/// The inputs of a function by name, including defaults.
pub type FunctionInputs = BTreeMap<String, ExprValue>;

/// A command of a built-in function.
#[derive(Clone, Copy, Debug)]
pub struct StepCommand<'a> {
    /// Program and arguments. A program without a slash is looked up in the PATH of `env`.
    pub argv: &'a [String],
    pub work_dir: &'a Path,
    pub env: &'a BTreeMap<String, String>,
    /// File for standard output and standard error; by default they go to the log.
    pub output: Option<&'a File>,
}

/// Limits of a command.
#[derive(Clone, Copy, Debug, Default)]
pub struct CommandLimits {
    /// Time at which the command gets `SIGTERM` and, after the grace period, `SIGKILL`; in addition to the
    /// limit of the job.
    pub deadline: Option<Instant>,
    pub cancellation: CancelEffect,
}

/// Effect on a command when its job is cancelled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CancelEffect {
    #[default]
    Stops,
    /// The command continues until its job is cancelled a second time.
    None,
}

/// State of a job: running, or the reason to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobState {
    Running,
    Cancelled,
    /// The maximum run time of the job is over.
    TimedOut,
    /// Cancelled for the second time: no commands may run any more.
    Killed,
}

/// The interface through which a built-in function uses the engine: the variables of its step, its
/// commands, its log.
pub trait BuiltinHost {
    /// Returns the working directory of the job.
    fn work_dir(&self) -> &Path;

    /// Returns a private directory for files of the job.
    fn scratch(&self) -> &Path;

    /// Returns the environment of the step.
    fn env(&self) -> &BTreeMap<String, String>;

    /// Returns the variables of the CI job.
    fn vars(&self) -> &BTreeMap<String, String>;

    /// Returns the path of this program, without symbolic links; `None` if it is unknown.
    fn executable(&self) -> Option<&Path>;

    fn state(&mut self) -> JobState;

    /// Writes text to the log, among the output of commands.
    fn print(&mut self, stream: LogStream, text: &str);

    /// Masks a secret in the log from now on.
    fn mask(&mut self, secret: &str);

    /// Runs a command to its end.
    ///
    /// # Errors
    ///
    /// Fails if the command does not exit with code 0, or is stopped, even if it then exits with code 0.
    fn run(
        &mut self,
        command: &StepCommand<'_>,
        limits: &CommandLimits,
    ) -> Result<(), CommandError>;

    /// Waits for a time; returns earlier if a command with these limits would be stopped.
    fn pause(&mut self, time: Duration, limits: &CommandLimits);

    /// Runs steps with the environment `env`. Variables that they export are dropped afterwards.
    ///
    /// # Errors
    ///
    /// Fails with the error of the step that failed.
    fn steps(
        &mut self,
        steps: Vec<StepCall>,
        env: &BTreeMap<String, String>,
        limits: &CommandLimits,
    ) -> Result<(), CommandError>;
}
