//! Options for fetching git repositories: cache, credentials, limits.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::time::Duration;

use super::super::interrupt::Interrupt;
use super::error::GitError;

/// A fetcher of git repositories.
#[derive(Clone, Debug)]
pub struct GitFetcher<'a> {
    /// Private cache directory, created if missing.
    pub cache: &'a Path,
    /// Environment of git, with `PATH`, `HOME` (for `.netrc` and SSH keys), proxies and
    /// `SSL_CERT_FILE`.
    pub env: &'a BTreeMap<String, String>,
    /// Credentials for one host. Credentials in a URL take precedence.
    pub credential: Option<GitCredential>,
    /// If set, local repositories (`file://…`) are allowed.
    pub files: bool,
    /// Timeout of one fetch, for all its calls of git together.
    pub timeout: Duration,
    /// Maximum size in bytes of a file that git writes: of a pack from the server, or of a file in
    /// the repository.
    pub max_file_bytes: u64,
    /// File with CA certificates, used if the host has none.
    pub fallback_ca_file: Option<&'a Path>,
    /// Path of a program `git`, used if there is none in PATH.
    pub fallback_git: Option<&'a Path>,
    /// Ends the fetch once it is set.
    pub interrupt: &'a Interrupt,
}

impl GitFetcher<'_> {
    pub(super) fn timeout_error(&self, url: &str) -> GitError {
        GitError::TimedOut { url: url.to_owned(), seconds: self.timeout.as_secs() }
    }
}

/// Credentials for one git host.
#[derive(Clone, PartialEq, Eq)]
pub struct GitCredential {
    /// Scheme, host and port: `https://gitlab.com`, `https://gitlab.example:8443`.
    pub origin: String,
    pub username: String,
    pub password: String,
}

impl fmt::Debug for GitCredential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let GitCredential { origin, username, .. } = self;
        write!(f, "Credential({username:?} at {origin:?})")
    }
}
