//! From a reference to a step file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::super::document::{Reference, StepFile};
use super::error::ResolveError;
use super::git::{self, Git};
use super::{builtin, local, oci};
use crate::image::{Credentials, RegistryClient};

/// How long a repository may take.
const GIT_TIMEOUT: Duration = Duration::from_secs(600);

/// Finds step files.
#[derive(Clone, Debug, Default)]
pub struct Resolver {
    remote: Option<Arc<Remote>>,
}

/// What is needed for step files that are not on this machine.
#[derive(Debug)]
pub struct Remote {
    /// A directory of this user's alone, for what was fetched.
    pub cache: PathBuf,
    /// How registries are reached.
    pub registries: RegistryClient,
    /// Logins for registries, besides those that a job brings.
    pub credentials: Credentials,
}

/// Who calls a step.
#[derive(Clone, Copy, Debug)]
pub struct Caller<'a> {
    /// The directory of the step file that has the reference.
    pub dir: &'a Path,
    /// The variables of the CI job.
    pub vars: &'a BTreeMap<String, String>,
    /// The environment.
    pub env: &'a BTreeMap<String, String>,
}

/// A step file that was found.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// What it says.
    pub file: StepFile,
    /// Where it is: what its own references are relative to.
    pub dir: PathBuf,
    /// Whether secrets may go into its inputs though they are not declared sensitive.
    pub takes_secrets: bool,
}

impl Caller<'_> {
    /// Returns a variable of the job, or else of the environment.
    pub(super) fn variable(&self, name: &str) -> Option<&str> {
        let value = self.vars.get(name).or_else(|| self.env.get(name))?;
        Some(value.as_str()).filter(|value| !value.is_empty())
    }
}

impl Resolver {
    /// Returns a resolver that fetches as well.
    pub fn new(remote: Remote) -> Self {
        Resolver { remote: Some(Arc::new(remote)) }
    }

    /// Finds a step file.
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
