//! Why a step failed, in the words that GitLab's runner knows.

use std::io;
use std::path::PathBuf;

use super::super::document::ReferenceError;
use super::super::expression::ExpressionError;
use super::super::files::FileError;
use super::super::resolve::ResolveError;

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StepError {
    /// A step within it failed.
    #[error("step {name:?}: {error}")]
    Step {
        /// Its name.
        name: String,
        /// Why.
        error: Box<StepError>,
    },
    /// The step file could not be had, or does not take what it is given.
    #[error("failed to load: {0}")]
    Load(LoadError),
    /// A required input of the job is missing.
    #[error("failed to parse spec definition: {0}")]
    Spec(LoadError),
    /// A variable's value could not be made.
    #[error("expand step env: env variable {name:?}: {error}")]
    Env {
        /// The variable.
        name: String,
        /// Why.
        error: ExpressionError,
    },
    /// The condition could not be evaluated.
    #[error("if: {0}")]
    Condition(ExpressionError),
    /// The command failed.
    #[error("exec: {0}")]
    Exec(#[from] ExecError),
    /// The output file could not be made or read.
    #[error("output file: {0}")]
    OutputFile(StepFileError),
    /// The export file could not be made or read.
    #[error("export file: {0}")]
    ExportFile(StepFileError),
    /// An output could not be made.
    #[error("outputs: expand {name:?}: {error}")]
    Output {
        /// Its name.
        name: String,
        /// Why.
        error: ExpressionError,
    },
    /// There is no step of the name that outputs are delegated to.
    #[error("outputs: delegate: could not find step with name {0:?}")]
    Delegate(String),
    /// The job is over.
    #[error("the job was cancelled")]
    Cancelled,
}

/// Why a step could not be called.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The step file could not be had.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// The reference could not be made.
    #[error("expand reference {reference:?}: {error}")]
    Reference {
        /// The reference as it is written.
        reference: String,
        /// Why.
        error: ExpressionError,
    },
    /// The value of an input could not be made.
    #[error("expand input {name:?}: {error}")]
    Input {
        /// The input.
        name: String,
        /// Why.
        error: ExpressionError,
    },
    /// A variable's value could not be made.
    #[error("expand env: env variable {name:?}: {error}")]
    Env {
        /// The variable.
        name: String,
        /// Why.
        error: ExpressionError,
    },
    /// The step has no such input.
    #[error("step does not accept input with name {0:?}")]
    UnknownInput(String),
    /// An input has no value.
    #[error("input {0:?} required, but not defined")]
    MissingInput(String),
    /// A secret would get where it is not known for one.
    #[error(
        "input {input:?}: non-sensitive input cannot derive value using sensitive value(s) {secrets}"
    )]
    Secret {
        /// The input.
        input: String,
        /// The names of the secrets.
        secrets: String,
    },
    /// Steps call steps too deeply.
    #[error("steps are nested more than {0} deep; does a step call itself?")]
    TooDeep(usize),
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExecError {
    /// It ended with this code.
    #[error("exit status {0}")]
    Exit(i32),
    /// A signal ended it.
    #[error("signal: {}", signal_name(*.0))]
    Signal(i32),
    /// There is no such program in the step's PATH.
    #[error("exec: {0:?}: executable file not found in $PATH")]
    NotFound(String),
    /// The program could not be executed.
    #[error("fork/exec {}: {}", path.display(), reason(error))]
    Execute {
        /// The program.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The working directory cannot be entered.
    #[error("chdir {}: {}", path.display(), reason(error))]
    WorkDir {
        /// The directory.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The working directory could not be made of its expression.
    #[error("interpolate workdir {text:?}: {error}")]
    WorkDirText {
        /// The directory as it is written.
        text: String,
        /// Why.
        error: ExpressionError,
    },
    /// An argument could not be made of its expression.
    #[error("interpolate command argument {text:?}: {error}")]
    Argument {
        /// The argument as it is written.
        text: String,
        /// Why.
        error: ExpressionError,
    },
    /// An argument or a variable holds a byte that no program can be given.
    #[error("{0} holds a NUL byte")]
    Nul(String),
    /// The process could not be followed.
    #[error("{action}: {}", reason(error))]
    Follow {
        /// What was not possible.
        action: &'static str,
        /// Why.
        error: io::Error,
    },
}

/// Why the output file or the export file is no good.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StepFileError {
    /// It could not be made or read.
    #[error("{action} {}: {}", path.display(), reason(error))]
    Io {
        /// What was not possible.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// What is in it is wrong.
    #[error(transparent)]
    Content(#[from] FileError),
    /// It is no step result.
    #[error("reading output_file as a step result: {0}")]
    StepResult(serde_json::Error),
    /// It is the step result of a failure.
    #[error("the step result in output_file is that of a failure")]
    Delegated,
}

impl StepError {
    /// Returns the code of the command that failed; 1 if it was none.
    pub fn exit_code(&self) -> i32 {
        match self {
            StepError::Step { error, .. } => error.exit_code(),
            StepError::Exec(ExecError::Exit(code)) => *code,
            StepError::Exec(ExecError::Signal(signal)) => 128 + signal,
            StepError::Exec(ExecError::NotFound(_)) => 127,
            StepError::Exec(ExecError::Execute { .. }) => 126,
            _ => 1,
        }
    }
}

impl From<ReferenceError> for LoadError {
    fn from(error: ReferenceError) -> Self {
        LoadError::Resolve(error.into())
    }
}

/// Returns what the system says, as Go says it.
pub(in crate::step_runner) fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error ").next().unwrap_or_default();
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_lowercase().chain(chars).collect())
}

/// Returns what Go calls a signal.
fn signal_name(signal: i32) -> String {
    let name = match signal {
        1 => "hangup",
        2 => "interrupt",
        3 => "quit",
        4 => "illegal instruction",
        5 => "trace/breakpoint trap",
        6 => "aborted",
        7 => "bus error",
        8 => "floating point exception",
        9 => "killed",
        10 => "user defined signal 1",
        11 => "segmentation fault",
        12 => "user defined signal 2",
        13 => "broken pipe",
        14 => "alarm clock",
        15 => "terminated",
        _ => return format!("signal {signal}"),
    };
    name.to_owned()
}
