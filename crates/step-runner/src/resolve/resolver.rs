//! The resolver of step references.

use std::sync::Arc;
use std::time::Duration;

use super::super::document::StepReference;
use super::context::{LoadedStep, ReferenceContext, RemoteAccess};
use super::error::ResolveError;
use super::git::{GitError, GitFetcher};
use super::{builtin, local, oci};

/// Timeout for fetching a repository.
const GIT_TIMEOUT: Duration = Duration::from_secs(600);

/// Maximum size in bytes of a file that git writes: of a pack from the server, or of a file in the
/// repository.
const MAX_GIT_FILE_BYTES: u64 = 1 << 30;

/// A resolver of step references to step files.
#[derive(Clone, Debug, Default)]
pub struct Resolver {
    remote: Option<Arc<RemoteAccess>>,
}

impl Resolver {
    /// Returns a resolver that also fetches remote steps.
    pub fn new(remote: RemoteAccess) -> Self {
        Resolver { remote: Some(Arc::new(remote)) }
    }

    /// Loads the step file to which a reference refers. Fetches it if it is remote.
    pub fn load(
        &self,
        reference: &StepReference,
        caller: &ReferenceContext<'_>,
    ) -> Result<LoadedStep, ResolveError> {
        match reference {
            StepReference::Local { path, filename } => match caller.tree {
                Some(tree) => local::load_beneath(tree, caller.dir, path, filename.as_deref()),
                None => local::load(local::directory(caller.dir, path), filename.as_deref()),
            },
            StepReference::Builtin { path } => builtin::load(path, caller),
            StepReference::Oci { registry, repository, tag, path, filename } => {
                let separator = if tag.contains(':') { '@' } else { ':' };
                let name = format!("{registry}/{repository}{separator}{tag}");
                let tree = oci::fetch(self.remote()?, &name, caller)
                    .map_err(|error| ResolveError::Oci { name, error: Box::new(error) })?;
                local::load_fetched(&tree, path, filename.as_deref())
            }
            StepReference::Git { url, rev, path, filename } => {
                let remote = self.remote()?;
                let git = GitFetcher {
                    cache: &remote.cache.join("git"),
                    env: caller.env,
                    credential: caller.git_credential(),
                    files: false,
                    timeout: GIT_TIMEOUT,
                    max_file_bytes: MAX_GIT_FILE_BYTES,
                    fallback_ca_file: remote.registries.options().fallback_ca_file.as_deref(),
                    fallback_git: remote.fallback_git.as_deref(),
                    interrupt: caller.interrupt,
                };
                let tree = git.fetch(url, rev).map_err(|error| match error {
                    GitError::Interrupted => ResolveError::Interrupted,
                    error => error.into(),
                })?;
                local::load_fetched(&tree, path, filename.as_deref())
                    .map_err(|error| ResolveError::InRepository(Box::new(error)))
            }
            StepReference::Dynamic(text) => self.load(&StepReference::parse(text)?, caller),
        }
    }

    /// Returns the cache and credentials for remote steps; `None` if only local and built-in steps
    /// can be loaded.
    pub fn shared_remote(&self) -> Option<Arc<RemoteAccess>> {
        self.remote.clone()
    }

    fn remote(&self) -> Result<&RemoteAccess, ResolveError> {
        self.remote.as_deref().ok_or(ResolveError::NoCache)
    }
}
