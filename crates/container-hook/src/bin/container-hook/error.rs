//! Errors of requests and commands, with hints.

use std::io;
use std::path::PathBuf;

use container_hook_job::HookError;
use container_hook_job::request::RequestError;
use container_hook_job::template::{TemplateError, TemplateFaults};
use oci_hooks::hooks::trust::TrustError;
use oci_hooks_cli::context::OutputError;
use oci_hooks_cli::exit::CliError;
use oci_hooks_engine::container::{ContainerError, StepError};
use oci_hooks_engine_cli::host::HostError;
use oci_hooks_engine_cli::rootless::{PauseError, RootlessError};
use oci_hooks_engine_cli::settings_file::SettingsError;
use oci_hooks_files::error::is_full;
use oci_hooks_files::fs::{PathError, ReadError, ReplaceError};
use oci_hooks_host::privilege::PrivilegeError;
use oci_hooks_image::{ImportError, PlatformError, PullError, StoreError};

use crate::environment::{EnvironmentError, TEMPLATE_VARIABLE};
use crate::job_backend::KubernetesUnsupported;
use crate::log::FULL;
use crate::stdin::StdinError;
use crate::try_job::TryJobError;

/// Errors of requests and commands.
#[derive(Debug, thiserror::Error)]
pub enum HookCommandError {
    #[error(transparent)]
    Path(#[from] PathError),
    #[error(transparent)]
    Replace(#[from] ReplaceError),
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error(transparent)]
    Output(#[from] OutputError),
    #[error(
        "invalid path {path:?}: the runner's command line takes only letters, digits and /._-+@"
    )]
    NotPlain { path: PathBuf },
    /// The directory of the installed script cannot be created.
    #[error(transparent)]
    ScriptDirectory(ReplaceError),
    #[error(transparent)]
    Rootless(#[from] RootlessError),
    #[error(transparent)]
    Host(#[from] HostError),
    #[error(transparent)]
    Container(#[from] ContainerError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Import(#[from] ImportError),
    #[error(transparent)]
    Pull(#[from] Box<PullError>),
    #[error(transparent)]
    Hook(#[from] Box<HookError>),
    #[error(transparent)]
    Try(#[from] TryJobError),
    #[error("no audit log: set `file` under [audit] in the settings")]
    NoAudit,
    #[error("{} {} not in the store", missing.join(", "), if missing.len() == 1 { "is" } else { "are" })]
    NoSuchImage { missing: Vec<String> },
    #[error("unknown volume {}", missing.join(", "))]
    NoSuchVolume { missing: Vec<String> },
    #[error("several runners have a volume {name}: {}", choices.join(", "))]
    AmbiguousVolume { name: String, choices: Vec<String> },
    #[error("volumes in use are not removed: {}", in_use.join("; "))]
    VolumesInUse { in_use: Vec<String> },
    #[error("cannot trust the program or the script that the runner calls")]
    Trust(#[from] TrustError),
    #[error(transparent)]
    Privilege(#[from] PrivilegeError),
    #[error("containers cannot run: {found}")]
    CannotRun { found: String, hint: String },
    #[error("--sudo is not supported: containers of an ordinary user need no root")]
    Sudo,
    #[error(transparent)]
    Template(#[from] TemplateError),
    #[error(transparent)]
    Fields(#[from] TemplateFaults),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Stdin(#[from] StdinError),
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    #[error("DOCKER_DEFAULT_PLATFORM")]
    Platform(#[from] PlatformError),
    #[error("cannot execute {program}")]
    Execute { program: String, source: io::Error },
    #[error("process {parent} did not start this one, or has ended")]
    Parent { parent: u32, source: io::Error },
    #[error("a request {command} has no pod: expected prepare_job or run_container_step")]
    NoPod { command: &'static str },
    #[error("--explain cannot be combined with --format json")]
    NoComments,
    #[error("--format yaml is only for `container-hook template`")]
    NoYaml,
    #[error("no pod {pod} in namespace {namespace}")]
    NoSuchPod { pod: String, namespace: String },
    #[error("pod {pod} has containers {}: name one of them", containers.join(", "))]
    WhichContainer { pod: String, containers: Vec<String> },
    #[error("no such job or service is running on this machine")]
    NoSuchJob,
    #[error("several containers match")]
    SeveralJobs,
    #[error("shell is for jobs of this machine: in a cluster use `kubectl exec`")]
    NoShell,
    #[error(transparent)]
    Step(#[from] StepError),
    #[error("--follow cannot be combined with --format json")]
    EndlessJson,
    #[error("--follow is for containers of this machine: use `kubectl logs --follow`")]
    FollowedPod,
    #[error("CONTAINER is only for pods of a cluster: name one container of this machine")]
    NoPods,
    #[error("{option} is for images of this machine: a cluster manages its own images")]
    NoImages { option: &'static str },
    #[error(transparent)]
    Cluster(Box<dyn std::error::Error>),
    #[error(transparent)]
    KubernetesUnsupported(#[from] KubernetesUnsupported),
}

impl HookCommandError {
    /// Returns the error of creating or entering namespaces, if it is one.
    pub fn namespace_error(&self) -> Option<&PrivilegeError> {
        match self {
            HookCommandError::Privilege(error)
            | HookCommandError::Rootless(RootlessError::PauseProcess(PauseError::Privilege(
                error,
            ))) => Some(error),
            _ => None,
        }
    }
}

impl CliError for HookCommandError {
    fn is_broken_pipe(&self) -> bool {
        matches!(self, HookCommandError::Output(error) if error.is_broken_pipe())
    }

    fn hint(&self) -> Option<String> {
        match self {
            HookCommandError::NotPlain { .. } => Some("use another directory".to_owned()),
            HookCommandError::Trust(error) | HookCommandError::Settings(SettingsError::Trust { source: error, .. }) => {
                error.hint()
            }
            HookCommandError::Template(TemplateError::Read(_)) => Some(format!(
                "--template or {TEMPLATE_VARIABLE} names the file; without them there is no template"
            )),
            HookCommandError::ScriptDirectory(ReplaceError::Path(error))
                if error.source.kind() == io::ErrorKind::PermissionDenied =>
            {
                Some("name a directory of this user, such as one below the home directory".to_owned())
            }
            HookCommandError::CannotRun { hint, .. } => Some(hint.clone()),
            HookCommandError::Sudo => Some(
                "run `container-hook install DIR` as the runner's user, and then `container-hook doctor`, \
                 which prints what this machine lacks"
                    .to_owned(),
            ),
            HookCommandError::Try(TryJobError::Cluster) => Some(
                "set `kind = \"engine\"` under [backend] for jobs on this machine".to_owned(),
            ),
            HookCommandError::NoSuchJob | HookCommandError::SeveralJobs => Some(
                "`container-hook ps` lists the containers of jobs: name one by its id".to_owned(),
            ),
            HookCommandError::NoSuchPod { .. } => {
                Some("`container-hook ps` lists the pods of jobs".to_owned())
            }
            HookCommandError::NoSuchImage { .. } => {
                Some("`container-hook images` lists the images in the store".to_owned())
            }
            HookCommandError::NoSuchVolume { .. } => {
                Some("`container-hook volumes` lists the volumes of all runners".to_owned())
            }
            HookCommandError::AmbiguousVolume { name, .. } => {
                let name = name.rsplit('/').next().unwrap_or_default();
                Some(format!("put the beginning of the runner's id before it: ID/{name}"))
            }
            HookCommandError::VolumesInUse { .. } => Some(
                "wait until the job has ended; `container-hook prune` removes jobs whose runner is gone"
                    .to_owned(),
            ),
            _ if is_full(self) => Some(FULL.to_owned()),
            _ => None,
        }
    }
}
