//! What git repositories are fetched with: cache, credentials and limits, and who fetches.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use super::super::interrupt::Interrupt;
use super::error::GitError;

/// Fetches git repositories.
#[derive(Clone, Debug)]
pub struct Git<'a> {
    /// Private cache directory, created if missing.
    pub cache: &'a Path,
    /// Environment of git, with `PATH` and `HOME` (for `.netrc` and SSH keys), proxies and `SSL_CERT_FILE`.
    pub env: &'a BTreeMap<String, String>,
    /// Credentials for one host; those in a URL take precedence.
    pub credential: Option<Credential>,
    /// Whether local repositories, `file://…`, are allowed.
    pub files: bool,
    /// Timeout of one fetch, with all calls of git.
    pub timeout: Duration,
    /// Who fetches: this program by itself, or the program `git`.
    pub method: GitMethod,
    /// Maximum size in bytes of what a server sends, and of a file, where this program fetches by itself.
    pub max_bytes: u64,
    /// File with CA certificates, for a host that has none of its own.
    pub fallback_ca_file: Option<&'a Path>,
    /// Ends the fetch once it is set.
    pub interrupt: &'a Interrupt,
}

impl Git<'_> {
    pub(super) fn timed_out(&self, url: &str) -> GitError {
        GitError::TimedOut { url: url.to_owned(), seconds: self.timeout.as_secs() }
    }
}

/// Who fetches from repositories by HTTP. Others, by SSH, are always fetched by the program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum GitMethod {
    /// This program by itself, but the program `git` if it is there and the user has settings for it that
    /// decide about servers, or if the server is too old.
    #[default]
    Auto,
    /// This program by itself.
    Native,
    /// The program `git`.
    Program,
}

/// A text is not the name of a method.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown way to fetch from git repositories {0:?}: expected auto, native or program")]
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
pub struct Credential {
    /// Scheme, host and port: `https://gitlab.com`, `https://gitlab.example:8443`.
    pub origin: String,
    pub username: String,
    pub password: String,
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Credential { origin, username, .. } = self;
        write!(f, "Credential({username:?} at {origin:?})")
    }
}
