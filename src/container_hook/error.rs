//! Why a command of the runner could not be carried out.

use std::error::Error;
use std::io;
use std::path::PathBuf;

use super::audit::{AuditError, AuditEvent};
use super::options::OptionError;
use super::policy::{Denied, PolicyError};
use super::request::RequestError;
use super::response::ResponseError;
use super::template::{Fault, Faults, TemplateError};
use super::volumes::VolumeError;
use super::words::WordsError;
use crate::image::{PlatformError, ReferenceError};
use crate::network::PortError;
use crate::sys::error::chain;
use crate::sys::fs::PathError;

/// A command of the runner could not be carried out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HookError {
    /// The request is not one.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The answer has no place.
    #[error(transparent)]
    Response(#[from] ResponseError),
    /// A file that the request names cannot be used.
    #[error(transparent)]
    Files(PathError),
    /// What is wrong is said of one of the request's containers.
    #[error("{container}")]
    In {
        /// `job container`, `service redis` and the like.
        container: String,
        source: Box<HookError>,
    },
    /// `options:` cannot be understood.
    #[error(transparent)]
    Options(#[from] OptionError),
    #[error(transparent)]
    Words(#[from] WordsError),
    /// The policy does not allow what was asked for.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The policy does not allow a volume.
    #[error(transparent)]
    Denied(#[from] Denied),
    /// A volume cannot be understood or found.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// A port cannot be understood.
    #[error(transparent)]
    Port(#[from] PortError),
    /// What is done cannot be written down.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// The image's name is none.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    #[error("--platform")]
    Platform(#[source] PlatformError),
    /// What carries the command out failed.
    #[error(transparent)]
    Backend(Box<dyn Error + Send + Sync>),
    #[error(transparent)]
    Path(#[from] PathError),
    /// A directory of the runner is a link now.
    #[error(
        "{} is outside {}: something replaced it by a link; remove it, the runner makes it anew",
        path.display(), work.display()
    )]
    Escapes {
        /// What was to be mounted.
        path: PathBuf,
        /// Where all of the runner's directories are.
        work: PathBuf,
    },
    /// The job is not one of ours.
    #[error(
        "the state of the job has no container of this hook: prepare_job did not run or failed, or \
         another hook did"
    )]
    NoState,
    /// The container belongs to another runner.
    #[error("container {id} is not one of this runner")]
    Foreign { id: String },
    /// The pod template is none.
    #[error(transparent)]
    Template(Box<TemplateError>),
    /// The pod template asks for what one host cannot do.
    #[error(transparent)]
    Pod(#[from] Faults),
    /// A container that prepares the job failed.
    #[error("{container} ended with {}", code.map_or("no code".to_owned(), |code| format!("code {code}")))]
    Init {
        container: String,
        /// Its code, if it was recorded.
        code: Option<i32>,
    },
    /// Services did not come up.
    #[error("{}", .0.join("; "))]
    Unhealthy(Vec<String>),
}

impl From<Fault> for HookError {
    fn from(fault: Fault) -> Self {
        HookError::Pod(fault.into())
    }
}

impl From<TemplateError> for HookError {
    fn from(error: TemplateError) -> Self {
        // Larger than most others.
        HookError::Template(Box::new(error))
    }
}

impl HookError {
    /// Returns which container was denied what, for the audit log; nothing if that is not why the call
    /// failed.
    pub(super) fn denials(&self) -> (&str, Vec<AuditEvent>) {
        match self {
            HookError::In { container, source } => (container, source.denied()),
            error => ("", error.denied()),
        }
    }

    fn denied(&self) -> Vec<AuditEvent> {
        let denied = |Denied { option, advice }: &Denied| AuditEvent::Denied {
            option: option.clone(),
            reason: advice.clone(),
        };
        match self {
            HookError::Policy(PolicyError(all)) => all.iter().map(denied).collect(),
            HookError::Denied(one) => vec![denied(one)],
            // A path with a slip in it is no attempt at anything.
            HookError::Files(error) if error.source.kind() == io::ErrorKind::NotFound => Vec::new(),
            HookError::Files(_) | HookError::Escapes { .. } | HookError::Foreign { .. } => {
                let option = "a file or container of the request".to_owned();
                vec![AuditEvent::Denied { option, reason: chain(self) }]
            }
            _ => Vec::new(),
        }
    }

    /// Returns the error with which of the request's containers it is about.
    pub(super) fn of(container: &str) -> impl FnOnce(HookError) -> HookError {
        move |source| HookError::In { container: container.to_owned(), source: Box::new(source) }
    }
}
