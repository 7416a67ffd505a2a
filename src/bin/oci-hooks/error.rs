//! Errors of commands, and their output.

use std::path::{Path, PathBuf};
use std::{fmt, io};

use oci_hooks::cdi::DeviceError;
use oci_hooks::hooks::capture::RecorderError;
use oci_hooks::hooks::directories::DirectoriesError;
use oci_hooks::hooks::lint::HookFinding;
use oci_hooks::hooks::manage::ManageError;
use oci_hooks::hooks::monitor::MonitorError;
use oci_hooks::hooks::pipeline::PipelineFailure;
use oci_hooks::hooks::trust::TrustError;
use oci_hooks::hooks::{ConfigError, HookError, HookFault, LoadProblem, PatternError};
use oci_hooks::json::TextLocation;
use oci_hooks_cli::context::OutputError;
use oci_hooks_cli::exit::CliError;
use oci_hooks_cli::terminal::escape_control;
use oci_hooks_files::error::chain;
use oci_hooks_files::fs::{PathError, ReadError, ReplaceError};
use serde::Serialize;

/// An error of a command. Its exit code is 2.
#[derive(Debug, thiserror::Error)]
pub enum HooksCommandError {
    #[error(transparent)]
    Path(#[from] PathError),
    #[error(transparent)]
    Monitor(#[from] MonitorError),
    #[error("cannot wait for signals and changes of hook directories")]
    Wait(#[source] io::Error),
    #[error(transparent)]
    Output(#[from] OutputError),
    #[error("{} is larger than {} MiB", path.display(), limit_bytes >> 20)]
    TooLarge { path: PathBuf, limit_bytes: u64 },
    #[error("invalid hook file")]
    Fault { path: PathBuf, fault: Box<HookFault> },
    #[error(transparent)]
    Manage(#[from] ManageError),
    #[error("invalid pattern {pattern:?}")]
    Pattern { pattern: String, source: PatternError },
    #[error("cannot use configuration")]
    Config { path: PathBuf, source: ConfigError },
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Replace(#[from] ReplaceError),
    #[error(transparent)]
    Pipeline(PipelineFailure),
    #[error(transparent)]
    Recorder(#[from] RecorderError),
    #[error(transparent)]
    Trust(#[from] TrustError),
    #[error(transparent)]
    Device(DeviceError),
    #[error("{0}")]
    Lint(Box<Diagnostic>),
    #[error("{message}")]
    Usage { message: String, hint: Option<String> },
    #[error("{name} is neither a file nor a container of these engines ({})", answers.join("; "))]
    NoContainer { name: String, answers: Vec<String> },
    #[error("several containers have the name {name}: {}", found.join(", "))]
    ManyContainers { name: String, found: Vec<String>, hint: String },
    #[error("cannot determine the hook directories of {consumer}")]
    Directories { consumer: &'static str, source: DirectoriesError },
    #[error("{consumer} does not read this hook")]
    UnreadHook { path: PathBuf, consumer: &'static str, hint: String },
    #[error("{consumer} reads no hook directory ({decided_by})")]
    NothingRead { consumer: &'static str, decided_by: String, hint: String },
    /// An error with a more specific hint than its own.
    #[error("{error}")]
    Hinted { error: Box<HooksCommandError>, hint: String },
}

impl CliError for HooksCommandError {
    fn is_broken_pipe(&self) -> bool {
        matches!(self, HooksCommandError::Output(error) if error.is_broken_pipe())
    }
}

impl HooksCommandError {
    /// Returns the printable form of the error.
    pub fn diagnostic(&self) -> Diagnostic {
        let simple = |class, path: Option<&Path>| Diagnostic::new(class, path, chain(self));
        match self {
            HooksCommandError::Path(error) => {
                simple("io", Some(&error.path)).without_path_in_text()
            }
            HooksCommandError::Monitor(error) => {
                simple(error.class(), None).with_hint(error.hint().map(str::to_owned))
            }
            HooksCommandError::Wait(_) | HooksCommandError::Output(_) => simple("io", None),
            HooksCommandError::TooLarge { path, .. } => {
                simple("too-large", Some(path)).without_path_in_text()
            }
            HooksCommandError::Fault { path, fault } => Diagnostic::of_fault(path, fault),
            HooksCommandError::Manage(ManageError::Invalid(problem))
            | HooksCommandError::Pipeline(PipelineFailure::HookFile(problem)) => {
                Diagnostic::of_problem(problem)
            }
            HooksCommandError::Manage(error) => {
                simple(error.class(), error.path()).with_hint(error.hint()).without_path_in_text()
            }
            HooksCommandError::Pattern { source, .. } => {
                simple("bad-regex", None).with_hint(source.hint().map(str::to_owned))
            }
            HooksCommandError::Config { path, source } => Diagnostic {
                location: Some(source.location().clone()),
                hint: source.hint().map(str::to_owned),
                ..Diagnostic::new(source.class(), Some(path), chain(source))
            },
            HooksCommandError::Lint(diagnostic) => Diagnostic::clone(diagnostic),
            HooksCommandError::Replace(ReplaceError::ForeignLink { path, .. }) => {
                simple("foreign-link", Some(path))
            }
            HooksCommandError::Replace(ReplaceError::Path(PathError { source, .. }))
                if source.kind() == io::ErrorKind::PermissionDenied =>
            {
                simple("io", None).with_hint("run as root".to_owned())
            }
            HooksCommandError::Read(_) | HooksCommandError::Replace(_) => simple("io", None),
            HooksCommandError::Pipeline(PipelineFailure::Match(error)) => {
                simple(error.class(), Some(&error.path)).without_path_in_text()
            }
            HooksCommandError::Pipeline(PipelineFailure::Filter(error)) => {
                simple("precreate", Some(Path::new(&error.path))).without_path_in_text()
            }
            HooksCommandError::Pipeline(PipelineFailure::RequiredHook(error)) => {
                let hint = error.problem.as_ref().and_then(|problem| problem.source.hint());
                simple("required-hook", None).with_hint(hint)
            }
            HooksCommandError::Pipeline(_) => simple("inject", None),
            HooksCommandError::Recorder(_) => simple("capture", None),
            HooksCommandError::Trust(error) => simple("untrusted", Some(error.path()))
                .with_hint(error.hint())
                .without_path_in_text(),
            HooksCommandError::Device(error) => {
                simple("device", None).with_hint(device_hint(error).map(str::to_owned))
            }
            HooksCommandError::Usage { hint, .. } => simple("usage", None).with_hint(hint.clone()),
            HooksCommandError::NoContainer { .. } => simple("no-container", None)
                .with_hint("run oci-hooks as the user who runs the container".to_owned()),
            HooksCommandError::ManyContainers { hint, .. } => {
                simple("many-containers", None).with_hint(hint.clone())
            }
            HooksCommandError::Directories { source, .. } => {
                let hint = source.hint();
                let hint = format!("{hint}; or name the hook directories with --hooks-dir");
                simple("consumer-config", source.path()).with_hint(hint)
            }
            HooksCommandError::UnreadHook { path, hint, .. } => {
                simple("unread-dir", Some(path)).with_hint(hint.clone())
            }
            HooksCommandError::NothingRead { hint, .. } => {
                simple("no-directory", None).with_hint(hint.clone())
            }
            HooksCommandError::Hinted { error, hint } => error.diagnostic().with_hint(hint.clone()),
        }
    }
}

/// An error, a warning or a finding to print.
#[derive(Clone, Debug)]
pub struct Diagnostic {
    /// A stable identifier of the kind of error, such as `bad-regex`.
    pub class: &'static str,
    pub path: Option<PathBuf>,
    pub location: Option<TextLocation>,
    pub message: String,
    pub hint: Option<String>,
}

/// A diagnostic in JSON, one object per line.
#[derive(Serialize)]
pub struct DiagnosticJson<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    level: Option<&'a str>,
    class: &'a str,
    path: Option<String>,
    line: Option<usize>,
    column: Option<usize>,
    pointer: Option<&'a str>,
    message: &'a str,
    hint: Option<&'a str>,
}

impl Diagnostic {
    pub fn new(class: &'static str, path: Option<&Path>, message: impl Into<String>) -> Self {
        Diagnostic {
            class,
            path: path.map(Path::to_owned),
            location: None,
            message: message.into(),
            hint: None,
        }
    }

    pub fn with_hint(self, hint: impl Into<Option<String>>) -> Self {
        Diagnostic { hint: hint.into(), ..self }
    }

    pub fn of_fault(path: &Path, fault: &HookFault) -> Self {
        Diagnostic::of_hook_error(path, fault.location.as_ref(), &fault.error)
    }

    pub fn of_finding(finding: &HookFinding) -> Self {
        Diagnostic {
            class: finding.rule.name,
            path: Some(finding.path.clone()),
            location: finding.location.clone(),
            message: format!("{} ({})", finding.message, finding.rule.code),
            hint: finding.hint.clone(),
        }
    }

    pub fn of_problem(problem: &LoadProblem) -> Self {
        Diagnostic::of_hook_error(&problem.path, problem.location.as_ref(), &problem.source)
    }

    fn of_hook_error(path: &Path, location: Option<&TextLocation>, error: &HookError) -> Self {
        let diagnostic = Diagnostic {
            location: location.cloned(),
            hint: error.hint(),
            ..Diagnostic::new(error.class(), Some(path), chain(error))
        };
        match error {
            HookError::Read(_) | HookError::List(_) => diagnostic.without_path_in_text(),
            _ => diagnostic,
        }
    }

    /// Returns the serializable form of the diagnostic.
    pub fn json<'a>(&'a self, level: Option<&'a str>) -> DiagnosticJson<'a> {
        DiagnosticJson {
            level,
            class: self.class,
            path: self.path.as_ref().map(|path| path.to_string_lossy().into_owned()),
            line: self.location.as_ref().map(|at| at.line),
            column: self.location.as_ref().map(|at| at.column),
            pointer: self.location.as_ref().map(|at| at.pointer.as_str()),
            message: &self.message,
            hint: self.hint.as_deref(),
        }
    }

    pub fn to_json(&self, level: &str) -> String {
        serde_json::to_string(&self.json(Some(level))).expect("strings and numbers")
    }

    /// Removes the path from the message, because the path is printed before the message.
    fn without_path_in_text(mut self) -> Self {
        if let Some(path) = &self.path {
            let message = std::mem::take(&mut self.message);
            self.message = match message.strip_prefix(&format!("{} ", path.display())) {
                Some(rest) => rest.to_owned(),
                None => message.replace(&format!(" {}", path.display()), ""),
            };
        }
        self
    }
}

impl Serialize for Diagnostic {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.json(None).serialize(serializer)
    }
}

impl fmt::Display for Diagnostic {
    /// Escapes control characters: files and their names may have them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        if let Some(path) = &self.path {
            text += &path.to_string_lossy();
            if let Some(at) = &self.location {
                text += &format!(":{}:{}", at.line, at.column);
                if !at.pointer.is_empty() {
                    text += &format!(" ({})", at.pointer);
                }
            }
            text += ": ";
        }
        text += &self.message;
        f.write_str(&escape_control(text.as_bytes()))
    }
}

impl HooksCommandError {
    /// Converts the error of an injection.
    pub fn of_pipeline(path: &Path, failure: PipelineFailure) -> Self {
        match failure {
            PipelineFailure::Config(source) => {
                HooksCommandError::Config { path: path.to_owned(), source }
            }
            PipelineFailure::Trust(error) => error.into(),
            other => HooksCommandError::Pipeline(other),
        }
    }
}

fn device_hint(error: &DeviceError) -> Option<&'static str> {
    match error {
        DeviceError::Unknown { .. } => Some(
            "`oci-hooks list --cdi` prints the devices; --cdi-spec-dir names other directories",
        ),
        DeviceError::Conflict { .. } => Some("remove the device from all files but one"),
        _ => None,
    }
}

/// Adds the path of the configuration to an error.
pub fn add_config_path<T>(
    path: &Path,
    result: Result<T, ConfigError>,
) -> Result<T, HooksCommandError> {
    result.map_err(|source| HooksCommandError::Config { path: path.to_owned(), source })
}
