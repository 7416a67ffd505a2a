//! The context in which references are resolved, and the step file they resolve to.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use oci_hooks_image::{Credentials, RegistryClient};

use super::super::document::StepFile;
use super::git::GitCredential;
use super::interrupt::Interrupt;

/// User name for git over HTTPS with a job token.
const JOB_USER: &str = "gitlab-ci-token";

/// Cache and credentials for remote steps: those in git repositories and container images.
#[derive(Debug)]
pub struct RemoteAccess {
    /// Private cache directory for images and repositories.
    pub cache: PathBuf,
    pub registries: RegistryClient,
    /// Credentials for registries, in addition to those in the variables of a job.
    pub credentials: Credentials,
    /// Path of a program `git`, used if there is none in PATH.
    pub fallback_git: Option<PathBuf>,
}

impl RemoteAccess {
    /// Returns access without credentials for registries and without a fallback for `git`.
    pub fn new(cache: PathBuf, registries: RegistryClient) -> Self {
        RemoteAccess { cache, registries, credentials: Credentials::default(), fallback_git: None }
    }
}

/// The context in which a reference is resolved: directory, variables and environment of the
/// caller.
#[derive(Clone, Copy, Debug)]
pub struct ReferenceContext<'a> {
    /// Directory of the step file with the reference.
    pub dir: &'a Path,
    /// Directory of the fetched repository or image that contains the step file; `None` for a step
    /// file of this host. Local references cannot leave it.
    pub tree: Option<&'a Path>,
    /// Variables of the CI job.
    pub vars: &'a BTreeMap<String, String>,
    pub env: &'a BTreeMap<String, String>,
    /// Stops the load once it is set.
    pub interrupt: &'a Interrupt,
}

/// A loaded step file.
#[derive(Clone, Debug)]
pub struct LoadedStep {
    pub file: StepFile,
    /// Directory of the step file, and base of its relative references.
    pub dir: PathBuf,
    /// Directory of the fetched repository or image that contains the step file; `None` for a step
    /// file of this host.
    pub tree: Option<PathBuf>,
    /// If set, inputs that are not declared sensitive accept sensitive values.
    pub accepts_secrets: bool,
}

impl ReferenceContext<'_> {
    /// Returns a variable of the job, or else of the environment; `None` if it is missing or empty.
    pub(super) fn variable(&self, name: &str) -> Option<&str> {
        let value = self.vars.get(name).or_else(|| self.env.get(name))?;
        Some(value.as_str()).filter(|value| !value.is_empty())
    }

    /// Returns the credentials of a CI job for git repositories on its GitLab server, over HTTPS
    /// only; `None` unless the variables `CI_SERVER_HOST` and `CI_JOB_TOKEN` are set.
    pub fn git_credential(&self) -> Option<GitCredential> {
        let host = self.variable("CI_SERVER_HOST")?;
        let password = self.variable("CI_JOB_TOKEN")?.to_owned();
        let port = self.variable("CI_SERVER_PORT").filter(|port| *port != "443");
        let origin = match port {
            Some(port) => format!("https://{host}:{port}"),
            None => format!("https://{host}"),
        };
        Some(GitCredential { origin, username: JOB_USER.to_owned(), password })
    }
}
