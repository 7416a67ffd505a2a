//! The resolver of step references.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::super::document::{Reference, StepFile};
use super::error::ResolveError;
use super::git::{self, Git};
use super::{builtin, local, oci};
use crate::image::{Credentials, RegistryClient};

/// Timeout for fetching a repository.
const GIT_TIMEOUT: Duration = Duration::from_secs(600);

/// Resolves step references to step files.
#[derive(Clone, Debug, Default)]
pub struct Resolver {
    remote: Option<Arc<Remote>>,
}

/// Cache and credentials for remote step files.
#[derive(Debug)]
#[non_exhaustive]
pub struct Remote {
    /// Private cache directory for images and repositories.
    pub cache: PathBuf,
    pub registries: RegistryClient,
    /// Credentials for registries, besides those of a job.
    pub credentials: Credentials,
}

impl Remote {
    /// Returns options without credentials.
    pub fn new(cache: PathBuf, registries: RegistryClient) -> Self {
        Remote { cache, registries, credentials: Credentials::default() }
    }
}

/// The context of a reference: directory, variables and environment of the caller.
#[derive(Clone, Copy, Debug)]
pub struct Caller<'a> {
    /// Directory of the step file with the reference.
    pub dir: &'a Path,
    /// Variables of the CI job.
    pub vars: &'a BTreeMap<String, String>,
    pub env: &'a BTreeMap<String, String>,
}

/// A loaded step file.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Loaded {
    pub file: StepFile,
    /// Directory of the step file, the base of its own relative references.
    pub dir: PathBuf,
    /// Whether inputs that are not declared sensitive accept sensitive values.
    pub accepts_secrets: bool,
}

impl Caller<'_> {
    /// Returns a non-empty variable of the job, or else of the environment.
    pub(super) fn variable(&self, name: &str) -> Option<&str> {
        let value = self.vars.get(name).or_else(|| self.env.get(name))?;
        Some(value.as_str()).filter(|value| !value.is_empty())
    }
}

impl Resolver {
    /// Returns a resolver that also fetches remote steps.
    pub fn new(remote: Remote) -> Self {
        Resolver { remote: Some(Arc::new(remote)) }
    }

    /// Loads the step file of a reference.
    pub fn load(&self, reference: &Reference, caller: &Caller<'_>) -> Result<Loaded, ResolveError> {
        match reference {
            Reference::Local { path, filename } => {
                local::load(local::directory(caller.dir, path), filename.as_deref())
            }
            Reference::Builtin { path } => builtin::load(path, caller.dir),
            Reference::Oci { registry, repository, tag, path, filename } => {
                let separator = if tag.contains(':') { '@' } else { ':' };
                let name = format!("{registry}/{repository}{separator}{tag}");
                let tree = oci::fetch(self.remote()?, &name, caller)
                    .map_err(|error| ResolveError::Oci { name, error: Box::new(error) })?;
                local::load_beneath(&tree, path, filename.as_deref())
            }
            Reference::Git { url, rev, path, filename } => {
                let git = Git {
                    cache: &self.remote()?.cache.join("git"),
                    env: caller.env,
                    credential: git::Credential::of_job(caller),
                    files: false,
                    timeout: GIT_TIMEOUT,
                };
                let tree = git.fetch(url, rev)?;
                local::load_beneath(&tree, path, filename.as_deref())
                    .map_err(|error| ResolveError::InRepository(Box::new(error)))
            }
            Reference::Dynamic(text) => self.load(&Reference::parse(text)?, caller),
        }
    }

    fn remote(&self) -> Result<&Remote, ResolveError> {
        self.remote.as_deref().ok_or(ResolveError::NoCache)
    }
}
