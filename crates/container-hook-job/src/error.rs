//! Errors of running a command of the runner.

use std::error::Error;
use std::io;
use std::path::PathBuf;

use oci_hooks_engine::container::{ContainerError, HostSystemError};
use oci_hooks_engine::network::{NetworkError, PortError};
use oci_hooks_files::error::chain;
use oci_hooks_files::fs::PathError;
use oci_hooks_image::{PlatformError, ReferenceError, StoreError};

use super::audit::{AuditError, AuditEvent};
use super::options::OptionError;
use super::policy::{PolicyDenial, PolicyError};
use super::request::RequestError;
use super::response::ResponseError;
use super::template::{TemplateError, TemplateFault, TemplateFaults};
use super::volumes::VolumeError;
use super::words::WordsError;

/// Errors of running a command of the runner.
#[derive(Debug, thiserror::Error)]
pub enum HookError {
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error(transparent)]
    Response(#[from] ResponseError),
    /// A file that the request names cannot be used.
    #[error(transparent)]
    Files(PathError),
    /// The error is about one of the request's containers.
    #[error("{container}")]
    In {
        /// `job container`, `service redis` and the like.
        container: String,
        source: Box<HookError>,
    },
    /// Errors of several containers.
    #[error("{}", .0.iter().map(|error| chain(error)).collect::<Vec<_>>().join("\n"))]
    Several(Vec<HookError>),
    #[error(transparent)]
    Options(#[from] OptionError),
    #[error("cannot split the arguments of the program into words")]
    Words(#[from] WordsError),
    #[error(transparent)]
    Policy(#[from] PolicyError),
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// A port mapping is invalid.
    #[error(transparent)]
    Port(#[from] PortError),
    #[error(transparent)]
    Audit(#[from] AuditError),
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    #[error("--platform")]
    Platform(#[source] PlatformError),
    #[error(transparent)]
    Backend(Box<dyn Error + Send + Sync>),
    #[error(transparent)]
    Path(#[from] PathError),
    /// A path in the runner's work directory has a symbolic link, which is not followed.
    #[error(
        "a symbolic link in {} is not followed, because it could lead out of the work directory {}: remove the link",
        path.display(), work.display()
    )]
    Escapes {
        path: PathBuf,
        /// Parent of all of the runner's directories.
        work: PathBuf,
    },
    /// The job was not prepared by this hook.
    #[error(
        "the request names no job container of container-hook: prepare_job did not run, failed, or was run by \
         another hook"
    )]
    NoState,
    /// The container belongs to another runner.
    #[error("container {id} does not belong to this runner")]
    Foreign { id: String },
    #[error(transparent)]
    Template(Box<TemplateError>),
    /// The pod template has fields that a single host does not support.
    #[error(transparent)]
    Pod(#[from] TemplateFaults),
    /// An init container failed.
    #[error("its program ended with {}", code.map_or("an unknown code".to_owned(), |code| format!("code {code}")))]
    Init {
        /// Exit code, if it was recorded.
        code: Option<i32>,
    },
    /// Containers did not become healthy.
    #[error("{}", .0.join("; "))]
    Unhealthy(Vec<String>),
}

impl From<PolicyDenial> for HookError {
    fn from(denial: PolicyDenial) -> Self {
        HookError::Policy(PolicyError(vec![denial]))
    }
}

impl From<TemplateFault> for HookError {
    fn from(fault: TemplateFault) -> Self {
        HookError::Pod(fault.into())
    }
}

impl From<TemplateError> for HookError {
    fn from(error: TemplateError) -> Self {
        // Boxed because it is larger than most other errors.
        HookError::Template(Box::new(error))
    }
}

/// Implements `From` for errors of backends: they become [`HookError::Backend`].
#[macro_export]
macro_rules! backend_errors {
    ($($error:ty),*) => {
        $(impl From<$error> for $crate::HookError {
            fn from(error: $error) -> Self {
                $crate::HookError::Backend(Box::new(error))
            }
        })*
    };
}

backend_errors!(ContainerError, HostSystemError, NetworkError, StoreError);

impl HookError {
    /// Collects the values, or all errors up to the first that is not about the request.
    ///
    /// # Errors
    ///
    /// Returns the only error, or all as [`HookError::Several`].
    pub fn collect<T>(results: impl Iterator<Item = Result<T, Self>>) -> Result<Vec<T>, Self> {
        let (mut values, mut errors) = (Vec::new(), Vec::new());
        for result in results {
            match result {
                Ok(value) => values.push(value),
                Err(error) => {
                    let is_last = !error.is_of_request();
                    errors.push(error);
                    if is_last {
                        break;
                    }
                }
            }
        }
        match errors.len() {
            0 => Ok(values),
            1 => Err(errors.remove(0)),
            _ => Err(HookError::Several(errors)),
        }
    }

    /// Returns whether the error is a policy denial, or about the text of the request.
    fn is_of_request(&self) -> bool {
        match self {
            HookError::In { source, .. } => source.is_of_request(),
            HookError::Options(_)
            | HookError::Words(_)
            | HookError::Policy(_)
            | HookError::Volume(_)
            | HookError::Port(_)
            | HookError::Reference(_)
            | HookError::Platform(_)
            | HookError::Escapes { .. } => true,
            _ => false,
        }
    }

    /// Returns each container and its denials for the audit log; no denials if the call failed for another
    /// reason.
    pub(super) fn denials(&self) -> Vec<(&str, Vec<AuditEvent>)> {
        match self {
            HookError::In { container, source } => vec![(container, source.denied_events())],
            HookError::Several(errors) => errors.iter().flat_map(HookError::denials).collect(),
            error => vec![("", error.denied_events())],
        }
    }

    fn denied_events(&self) -> Vec<AuditEvent> {
        let denied = |PolicyDenial { option, advice }: &PolicyDenial| AuditEvent::Denied {
            option: option.clone(),
            reason: advice.clone(),
        };
        match self {
            HookError::Policy(PolicyError(all)) => all.iter().map(denied).collect(),
            // A missing file is a mistyped path, not an attempt to get at a file of the host.
            HookError::Files(error) if error.source.kind() == io::ErrorKind::NotFound => Vec::new(),
            HookError::Files(_) | HookError::Escapes { .. } | HookError::Foreign { .. } => {
                let option = "a file or container of the request".to_owned();
                vec![AuditEvent::Denied { option, reason: chain(self) }]
            }
            _ => Vec::new(),
        }
    }

    /// Returns a function that wraps an error in [`HookError::In`] with this container title.
    pub fn of(container: &str) -> impl FnOnce(HookError) -> HookError {
        move |source| HookError::In { container: container.to_owned(), source: Box::new(source) }
    }
}
