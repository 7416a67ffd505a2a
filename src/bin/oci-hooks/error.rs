//! Errors of commands, and how they are printed.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use oci_hooks::hooks::capture::{CaptureError, RecorderError};
use oci_hooks::hooks::directories::DirectoriesError;
use oci_hooks::hooks::lint::Finding;
use oci_hooks::hooks::manage::ManageError;
use oci_hooks::hooks::monitor::MonitorError;
use oci_hooks::hooks::pipeline::PipelineFailure;
use oci_hooks::hooks::trust::TrustError;
use oci_hooks::hooks::{
    ConfigError, Fault, FilterError, HookError, MatchError, PatternError, Problem,
};
use oci_hooks::json::Location;
use oci_hooks::program::context::OutputError;
use oci_hooks::program::exit::Failure;
use oci_hooks::sys::error::chain;
use oci_hooks::sys::fs::{PathError, ReadError, ReplaceError};
use serde::Serialize;

/// An error of a command. Its exit code is 2.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Path(#[from] PathError),
    #[error(transparent)]
    Monitor(#[from] MonitorError),
    #[error("cannot wait for events")]
    Wait(#[source] io::Error),
    #[error(transparent)]
    Output(#[from] OutputError),
    #[error("{} is larger than {} MiB", path.display(), limit_bytes >> 20)]
    TooLarge { path: PathBuf, limit_bytes: u64 },
    #[error(transparent)]
    Hook(Box<Problem>),
    #[error("invalid hook file")]
    Fault { path: PathBuf, fault: Box<Fault> },
    #[error(transparent)]
    Manage(#[from] ManageError),
    #[error("invalid pattern {pattern:?}")]
    Pattern { pattern: String, source: PatternError },
    #[error("cannot use configuration")]
    Config { path: PathBuf, source: ConfigError },
    #[error(transparent)]
    Match(#[from] MatchError),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Replace(#[from] ReplaceError),
    #[error(transparent)]
    Filter(#[from] Box<FilterError>),
    #[error(transparent)]
    Pipeline(PipelineFailure),
    #[error(transparent)]
    Recorder(#[from] RecorderError),
    #[error(transparent)]
    Capture(#[from] CaptureError),
    #[error(transparent)]
    Trust(#[from] TrustError),
    #[error("{0}")]
    Lint(Box<Diagnostic>),
    #[error("{message}")]
    Usage { message: String, hint: Option<String> },
    #[error("cannot tell which hook directories {consumer} reads")]
    Directories { consumer: &'static str, source: DirectoriesError },
    #[error("{consumer} does not read this hook")]
    UnreadHook { path: PathBuf, consumer: &'static str, hint: String },
    #[error("{consumer} reads no hook directory, by {decided_by}")]
    NothingRead { consumer: &'static str, decided_by: String, hint: String },
    /// An error that this program knows more about than who raised it.
    #[error("{error}")]
    Hinted { error: Box<Error>, hint: String },
}

impl Failure for Error {
    fn is_broken_pipe(&self) -> bool {
        matches!(self, Error::Output(error) if error.is_broken_pipe())
    }
}

impl Error {
    /// Returns the error as it is printed.
    pub fn diagnostic(&self) -> Diagnostic {
        let simple = |class, path: Option<&Path>| Diagnostic {
            class,
            path: path.map(Path::to_owned),
            location: None,
            message: chain(self),
            hint: None,
        };
        match self {
            Error::Path(error) => simple("io", Some(&error.path)).without_path_in_text(),
            Error::Monitor(error) => {
                Diagnostic { hint: error.hint().map(str::to_owned), ..simple(error.class(), None) }
            }
            Error::Wait(_) | Error::Output(_) => simple("io", None),
            Error::TooLarge { path, .. } => simple("too-large", Some(path)).without_path_in_text(),
            Error::Hook(problem) => Diagnostic::of_problem(problem),
            Error::Fault { path, fault } => Diagnostic::of_fault(path, fault),
            Error::Manage(ManageError::Invalid(problem)) => Diagnostic::of_problem(problem),
            Error::Manage(error) => {
                Diagnostic { hint: error.hint(), ..simple(error.class(), error.path()) }
                    .without_path_in_text()
            }
            Error::Pattern { source, .. } => {
                Diagnostic { hint: source.hint().map(str::to_owned), ..simple("bad-regex", None) }
            }
            Error::Config { path, source } => Diagnostic {
                class: source.class(),
                path: Some(path.clone()),
                location: Some(source.location().clone()),
                message: chain(source),
                hint: source.hint().map(str::to_owned),
            },
            Error::Match(error) => simple(error.class(), Some(&error.path)).without_path_in_text(),
            Error::Lint(diagnostic) => Diagnostic::clone(diagnostic),
            Error::Replace(ReplaceError::ForeignLink { path, .. }) => {
                simple("foreign-link", Some(path))
            }
            Error::Read(_) | Error::Replace(_) => simple("io", None),
            Error::Filter(error) => simple("precreate", Some(Path::new(&error.path))),
            Error::Pipeline(PipelineFailure::RequiredHook(error)) => Diagnostic {
                hint: error.problem.as_ref().and_then(|problem| problem.source.hint()),
                ..simple("required-hook", None)
            },
            Error::Pipeline(_) => simple("inject", None),
            Error::Recorder(_) | Error::Capture(_) => simple("capture", None),
            Error::Trust(error) => Diagnostic {
                hint: error.hint(),
                ..simple("untrusted", Some(error.path())).without_path_in_text()
            },
            Error::Usage { hint, .. } => Diagnostic { hint: hint.clone(), ..simple("usage", None) },
            Error::Directories { source, .. } => Diagnostic {
                hint: Some(source.hint().to_owned()),
                ..simple("consumer-config", source.path())
            },
            Error::UnreadHook { path, hint, .. } => {
                Diagnostic { hint: Some(hint.clone()), ..simple("unread-dir", Some(path)) }
            }
            Error::NothingRead { hint, .. } => {
                Diagnostic { hint: Some(hint.clone()), ..simple("no-directory", None) }
            }
            Error::Hinted { error, hint } => {
                Diagnostic { hint: Some(hint.clone()), ..error.diagnostic() }
            }
        }
    }
}

/// An error, a warning or a finding, as it is printed.
#[derive(Clone, Debug)]
pub struct Diagnostic {
    /// A stable identifier of the kind of error, such as `bad-regex`.
    pub class: &'static str,
    pub path: Option<PathBuf>,
    pub location: Option<Location>,
    pub message: String,
    pub hint: Option<String>,
}

/// A diagnostic in JSON, one object on a line.
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
    pub fn new(class: &'static str, path: &Path, message: &str) -> Self {
        Diagnostic {
            class,
            path: Some(path.to_owned()),
            location: None,
            message: message.to_owned(),
            hint: None,
        }
    }

    pub fn of_fault(path: &Path, fault: &Fault) -> Self {
        Diagnostic {
            class: fault.error.class(),
            path: Some(path.to_owned()),
            location: fault.location.clone(),
            message: chain(&fault.error),
            hint: fault.error.hint(),
        }
    }

    pub fn of_error(class: &'static str, error: &(dyn std::error::Error + 'static)) -> Self {
        Diagnostic { class, path: None, location: None, message: chain(error), hint: None }
    }

    pub fn of_finding(finding: &Finding) -> Self {
        Diagnostic {
            class: finding.rule.name,
            path: Some(finding.path.clone()),
            location: finding.location.clone(),
            message: format!("{} ({})", finding.message, finding.rule.code),
            hint: finding.help.clone(),
        }
    }

    pub fn of_problem(problem: &Problem) -> Self {
        let diagnostic = Diagnostic {
            class: problem.source.class(),
            path: Some(problem.path.clone()),
            location: problem.location.clone(),
            message: chain(&problem.source),
            hint: problem.source.hint(),
        };
        match &problem.source {
            HookError::Read(_) | HookError::List(_) => diagnostic.without_path_in_text(),
            _ => diagnostic,
        }
    }

    /// Returns the diagnostic as it is serialized.
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

    /// Removes the path from the message, which is printed before it.
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
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = &self.path {
            write!(f, "{}", path.display())?;
            if let Some(at) = &self.location {
                write!(f, ":{}:{}", at.line, at.column)?;
                if !at.pointer.is_empty() {
                    write!(f, " ({})", at.pointer)?;
                }
            }
            f.write_str(": ")?;
        }
        f.write_str(&self.message)
    }
}

impl Error {
    /// Converts the error of an injection.
    pub fn of_pipeline(path: &Path, failure: PipelineFailure) -> Self {
        match failure {
            PipelineFailure::Config(source) => Error::Config { path: path.to_owned(), source },
            PipelineFailure::HookFile(problem) => Error::Hook(problem),
            PipelineFailure::Match(error) => error.into(),
            PipelineFailure::Trust(error) => error.into(),
            PipelineFailure::Filter(error) => error.into(),
            other => Error::Pipeline(other),
        }
    }
}

/// Adds the path of the configuration to an error.
pub fn in_config<T>(path: &Path, result: Result<T, ConfigError>) -> Result<T, Error> {
    result.map_err(|source| Error::Config { path: path.to_owned(), source })
}
