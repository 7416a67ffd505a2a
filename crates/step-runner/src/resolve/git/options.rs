//! Options for fetching git repositories: cache, credentials, limits, method.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use super::super::interrupt::Interrupt;
use super::error::GitError;

/// Fetches git repositories.
#[derive(Clone, Debug)]
pub struct GitFetcher<'a> {
    /// Private cache directory, created if missing.
    pub cache: &'a Path,
    /// Environment of git, with `PATH` and `HOME` (for `.netrc` and SSH keys), proxies and `SSL_CERT_FILE`.
    pub env: &'a BTreeMap<String, String>,
    /// Credentials for one host; those in a URL take precedence.
    pub credential: Option<GitCredential>,
    /// If set, local repositories (`file://…`) are allowed.
    pub files: bool,
    /// Timeout of one fetch, with all calls of git.
    pub timeout: Duration,
    /// Method for repositories over HTTP.
    pub method: GitMethod,
    /// Maximum size in bytes of a server's response, and of a file, for fetches without the program `git`.
    pub max_bytes: u64,
    /// File with CA certificates, for a host without its own.
    pub fallback_ca_file: Option<&'a Path>,
    /// Ends the fetch once it is set.
    pub interrupt: &'a Interrupt,
}

impl GitFetcher<'_> {
    pub(super) fn timeout_error(&self, url: &str) -> GitError {
        GitError::TimedOut { url: url.to_owned(), seconds: self.timeout.as_secs() }
    }
}

/// Method to fetch repositories over HTTP. Others, such as SSH, are always fetched by the program `git`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GitMethod {
    /// Without the program `git`, unless the program exists and the user has settings for it that concern
    /// servers, or the server is too old.
    #[default]
    Auto,
    /// Without the program `git`.
    Native,
    /// By the program `git`.
    Program,
}

/// An unknown name of a method.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown method to fetch git repositories {0:?}: expected auto, native or program")]
pub struct UnknownGitMethod(pub String);

impl FromStr for GitMethod {
    type Err = UnknownGitMethod;

    fn from_str(text: &str) -> Result<Self, UnknownGitMethod> {
        match text {
            "auto" => Ok(GitMethod::Auto),
            "native" => Ok(GitMethod::Native),
            "program" => Ok(GitMethod::Program),
            _ => Err(UnknownGitMethod(text.to_owned())),
        }
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
