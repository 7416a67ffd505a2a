//! Errors of steps. Messages are those of GitLab's step-runner where it has one: clients parse them.

use std::io;
use std::path::{Path, PathBuf};

use oci_hooks_files::error::chain;
use oci_hooks_files::fs::PathError;

use super::super::builtin::{BuiltinError, CommandError, CommandFailure};
use super::super::document::ReferenceError;
use super::super::expression::ExpressionError;
use super::super::files::OutputFileError;
use super::super::function_oci::FunctionError;
use super::super::resolve::{ResolveError, reason};
use super::work::WorkError;

/// An error of a step.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    #[error("step {name:?}: {error}")]
    Step { name: String, error: Box<StepError> },
    /// The step file could not be loaded, or rejects its inputs.
    #[error("failed to load: {0}")]
    Load(LoadError),
    /// The spec of the job's own steps has a required input, but a job gets no inputs.
    #[error("failed to parse spec definition: {0}")]
    Spec(LoadError),
    /// The value of an environment variable could not be expanded.
    #[error("expand step env: env variable {name:?}: {error}")]
    Env { name: String, error: ExpressionError },
    /// The `if` condition could not be evaluated.
    #[error("if: {0}")]
    Condition(ExpressionError),
    #[error("exec: {0}")]
    Exec(#[from] ExecError),
    /// A built-in function (`builtin://`) failed.
    #[error("exec: {0}")]
    Builtin(#[from] BuiltinError),
    /// A built-in function that builds or publishes an OCI image failed.
    #[error("exec: {}", chain(.0.as_ref()))]
    FunctionOci(Box<FunctionError>),
    /// The output file could not be created or read.
    #[error("output file: {0}")]
    OutputFile(StepOutputError),
    /// The export file could not be created or read.
    #[error("export file: {0}")]
    ExportFile(StepOutputError),
    /// An output could not be expanded.
    #[error("outputs: expand {name:?}: {error}")]
    Output { name: String, error: ExpressionError },
    /// The step that outputs are delegated to does not exist.
    #[error("outputs: delegate: could not find step with name {0:?}")]
    Delegate(String),
    #[error("the job was cancelled")]
    Cancelled,
}

/// An error in loading or calling a step.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The step file could not be loaded.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// The reference could not be expanded.
    #[error("expanding step path {reference:?}: {error}")]
    Reference {
        /// Reference as written, before expansion.
        reference: String,
        error: ExpressionError,
    },
    /// The value of an input could not be expanded.
    #[error("expand input {name:?}: {error}")]
    Input { name: String, error: ExpressionError },
    /// The value of an environment variable could not be expanded.
    #[error("env {name:?}: {error}")]
    Env { name: String, error: ExpressionError },
    /// The step does not declare this input.
    #[error("step does not accept input with name {0:?}")]
    UnknownInput(String),
    /// A required input has no value.
    #[error("input {0:?} required, but not defined")]
    MissingInput(String),
    /// A sensitive value was passed to an input that is not declared sensitive.
    #[error(
        "input {input:?}: non-sensitive input cannot derive value using sensitive value(s) {secrets}"
    )]
    Secret {
        input: String,
        /// Names of the sensitive values, quoted and joined by commas.
        secrets: String,
    },
    /// Steps are nested too deeply.
    #[error("steps nested too deeply (limit {0}): does a step call itself?")]
    TooDeep(usize),
    /// Loading did not end in time, or the job is cancelled.
    #[error("loading {reference}: {error}")]
    Interrupted { reference: String, error: WorkError },
    /// Loading could not start: this process is out of file descriptors.
    #[error("cannot create a thread or a file descriptor to load the step: {}", reason(.0))]
    Start(io::Error),
}

/// An error of a command.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// The command exited with a code other than 0.
    #[error("exit status {0}")]
    Exit(i32),
    #[error("signal: {}", signal_name(*.0))]
    Signal(i32),
    /// The program was not found in the step's PATH.
    #[error("exec: {0:?}: executable file not found in $PATH")]
    NotFound(String),
    /// The program could not be executed.
    #[error("fork/exec {}: {}", path.display(), reason(error))]
    Execute { path: PathBuf, error: io::Error },
    /// The program does not exist; the hint says what was probably intended.
    #[error("{error}: {hint}")]
    WithHint { error: Box<ExecError>, hint: String },
    /// The working directory cannot be entered.
    #[error("chdir {}: {}", path.display(), reason(error))]
    WorkDir { path: PathBuf, error: io::Error },
    /// The working directory could not be expanded.
    #[error("interpolate workdir {text:?}: {error}")]
    WorkDirText {
        /// Directory as written, before expansion.
        text: String,
        error: ExpressionError,
    },
    /// An argument could not be expanded.
    #[error("interpolate command argument {text:?}: {error}")]
    Argument {
        /// Argument as written, before expansion.
        text: String,
        error: ExpressionError,
    },
    /// An argument or an environment variable contains a NUL byte.
    #[error("{0} contains a NUL byte")]
    Nul(String),
    /// The script could not be written to its file.
    #[error("{}: {}", .0, reason(&.0.source))]
    Script(PathError),
    /// The process could not be monitored.
    #[error("{action}: {}", reason(error))]
    Process { action: &'static str, error: io::Error },
}

/// An error in the output file or the export file.
#[derive(Debug, thiserror::Error)]
pub enum StepOutputError {
    /// The file could not be created or read.
    #[error("{action} {}: {}", path.display(), reason(error))]
    Io { action: &'static str, path: PathBuf, error: io::Error },
    #[error(transparent)]
    Content(#[from] OutputFileError),
    /// The step delegates its outputs to a step result in the output file, but the content is not
    /// one in JSON.
    #[error("reading output_file as a step result: {0}")]
    StepResult(serde_json::Error),
    /// The step delegates its outputs to a step result in the output file, but it is that of a
    /// failed step.
    #[error("output_file contains the result of a failed step")]
    Delegated,
}

impl StepError {
    /// Returns the exit code of the command that failed; 1 if the step failed otherwise.
    pub fn exit_code(&self) -> i32 {
        match self {
            StepError::Step { error, .. } => error.exit_code(),
            StepError::Exec(error) => error.exit_code(),
            StepError::Builtin(error) => error.exit_code(),
            _ => 1,
        }
    }

    /// Returns whether `builtin://concrete` failed in its scripts or after them, and not because of
    /// a cancellation of the job: the function continues after the failure of a script, and may be
    /// cancelled then.
    pub(super) fn has_other_cause(&self) -> bool {
        match self {
            StepError::Step { error, .. } => error.has_other_cause(),
            StepError::Builtin(error) => {
                error.is_job_failure() && error.failure() != CommandFailure::Cancelled
            }
            _ => false,
        }
    }
}

impl ExecError {
    /// Returns the exit code as a shell would report it: for example, 127 if the program was not
    /// found, and 128 + signal if a signal ended it.
    fn exit_code(&self) -> i32 {
        match self {
            ExecError::Exit(code) => *code,
            ExecError::Signal(signal) => 128 + signal,
            ExecError::NotFound(_) => 127,
            ExecError::Execute { .. } => 126,
            ExecError::WithHint { error, .. } => error.exit_code(),
            _ => 1,
        }
    }
}

impl ExecError {
    /// Adds a hint to the error of a program that does not exist. Its path may be relative to `work_dir`.
    pub(super) fn with_hint(self, program: &str, work_dir: &Path, step_dir: &str) -> Self {
        let is_missing = match &self {
            ExecError::NotFound(_) => true,
            // If the program exists, its interpreter does not.
            ExecError::Execute { path, error } => {
                error.kind() == io::ErrorKind::NotFound && !work_dir.join(path).exists()
            }
            _ => false,
        };
        let beside = Path::new(program).strip_prefix(".").unwrap_or(Path::new(program));
        let hint = if !is_missing {
            None
        } else if program.contains(char::is_whitespace) {
            Some("write each argument as an item of `command`, or use `script`".to_owned())
        } else if program.contains('/') && Path::new(step_dir).join(program).is_file() {
            Some(format!(
                "for the file in the directory of the step, write \"${{{{ func_dir }}}}/{}\"",
                beside.display()
            ))
        } else {
            None
        };
        match hint {
            Some(hint) => ExecError::WithHint { error: Box::new(self), hint },
            None => self,
        }
    }
}

impl From<ExecError> for CommandError {
    fn from(error: ExecError) -> Self {
        let failure = match error {
            ExecError::Signal(signal) => CommandFailure::Signal(signal),
            _ => CommandFailure::Exit,
        };
        CommandError { failure, code: error.exit_code(), message: error.to_string() }
    }
}

impl From<ReferenceError> for LoadError {
    fn from(error: ReferenceError) -> Self {
        LoadError::Resolve(error.into())
    }
}

/// Returns the name of a signal as Go formats it.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_without_its_interpreter_has_no_hint() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("a program");
        let error =
            || ExecError::Execute { path: program.clone(), error: io::ErrorKind::NotFound.into() };
        let (name, step_dir) = (program.to_str().unwrap(), dir.path().to_str().unwrap());
        let is_hinted =
            || matches!(error().with_hint(name, dir.path(), step_dir), ExecError::WithHint { .. });
        assert!(is_hinted());
        std::fs::write(&program, "#!/no/such/interpreter\n").unwrap();
        assert!(!is_hinted());
    }
}
