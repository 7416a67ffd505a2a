//! A repository, a server for it, and a cache.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use oci_hooks_testsupport::git;
use oci_hooks_testsupport::http::{WebResponse, WebServer};
use oci_hooks_testsupport::program::DEADLINE;
use step_runner::resolve::{GitCredential, GitError, GitFetcher, Interrupt};
use tempfile::TempDir;

/// A repository whose commits contain their own name, and its cache.
pub(crate) struct TestRepository {
    pub(crate) dir: TempDir,
    /// Commit ids, oldest first.
    pub(crate) commits: Mutex<Vec<String>>,
}

/// Options of a fetch.
pub(crate) struct FetchOptions {
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) credential: Option<GitCredential>,
    pub(crate) files: bool,
    pub(crate) timeout: Duration,
    pub(crate) fallback_git: Option<PathBuf>,
    pub(crate) max_file_bytes: u64,
    pub(crate) interrupt: Interrupt,
}

impl TestRepository {
    /// Creates a repository with three commits: `one` has the tag `v1` and the annotated tag `v1a`; `two` is
    /// the branch `feature/x`, `three` is `main`.
    pub(crate) fn new() -> Self {
        Self::with_format("sha1")
    }

    /// Creates the same repository with another hash algorithm.
    pub(crate) fn with_format(format: &str) -> Self {
        let format = format!("--object-format={format}");
        let dir = tempfile::tempdir().unwrap();
        let repository = TestRepository { dir, commits: Mutex::default() };
        fs::create_dir(repository.dir.path().join("r.git")).unwrap();
        fs::create_dir(repository.home()).unwrap();
        repository.git(&["init", "--quiet", "--initial-branch=main", &format]);
        repository.commit("one");
        repository.git(&["tag", "v1"]);
        repository.git(&["tag", "--annotate", "--message=m", "v1a"]);
        repository.commit("two");
        repository.git(&["branch", "feature/x"]);
        repository.commit("three");
        repository
    }

    /// Creates a commit in which the file `text` contains `text`.
    pub(crate) fn commit(&self, text: &str) {
        fs::write(self.path().join("text"), text).unwrap();
        self.git(&["add", "."]);
        self.git(&["commit", "--quiet", "--message", text]);
        self.commits.lock().unwrap().push(self.git(&["rev-parse", "HEAD"]));
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join("r.git")
    }

    /// Returns a home directory without a git configuration.
    pub(crate) fn home(&self) -> PathBuf {
        self.dir.path().join("home")
    }

    pub(crate) fn cache(&self) -> PathBuf {
        self.dir.path().join("cache")
    }

    pub(crate) fn git(&self, arguments: &[&str]) -> String {
        let output = Command::new("git")
            .args(["-c", "user.name=a", "-c", "user.email=b"])
            .args(arguments)
            .current_dir(self.path())
            .env("HOME", self.home())
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .output()
            .expect("git is installed");
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Serves the repository, with `user:password` required if set.
    pub(crate) fn serve(&self, password: Option<&'static str>) -> WebServer {
        let root = self.dir.path().to_owned();
        WebServer::start(move |request| match password {
            Some(password) if request.header("authorization") != Some(&basic(password)) => {
                WebResponse::status(401).with("www-authenticate", "Basic realm=\"test\"")
            }
            _ => git::answer(&root, request),
        })
    }

    pub(crate) fn env(&self) -> BTreeMap<String, String> {
        BTreeMap::from([
            ("PATH".to_owned(), std::env::var("PATH").unwrap()),
            ("HOME".to_owned(), self.home().to_str().unwrap().to_owned()),
        ])
    }

    /// Fetches a revision, and returns its directory.
    pub(crate) fn fetch(&self, url: &str, rev: &str) -> Result<PathBuf, GitError> {
        self.fetch_as(None, url, rev)
    }

    pub(crate) fn fetch_as(
        &self,
        credential: Option<GitCredential>,
        url: &str,
        rev: &str,
    ) -> Result<PathBuf, GitError> {
        self.fetch_with(url, rev, |git| git.credential = credential)
    }

    /// Fetches a revision with changed options.
    pub(crate) fn fetch_with(
        &self,
        url: &str,
        rev: &str,
        change: impl FnOnce(&mut FetchOptions),
    ) -> Result<PathBuf, GitError> {
        let mut options = FetchOptions {
            env: self.env(),
            credential: None,
            files: false,
            timeout: DEADLINE,
            fallback_git: None,
            max_file_bytes: 1 << 30,
            interrupt: Interrupt::new().unwrap(),
        };
        change(&mut options);
        let FetchOptions {
            env,
            credential,
            files,
            timeout,
            fallback_git,
            max_file_bytes,
            interrupt,
        } = options;
        let (cache, env, interrupt) = (&self.cache(), &env, &interrupt);
        let fallback_ca_file = None;
        let git = GitFetcher {
            cache,
            env,
            credential,
            files,
            timeout,
            max_file_bytes,
            fallback_ca_file,
            fallback_git: fallback_git.as_deref(),
            interrupt,
        };
        git.fetch(url, rev)
    }

    /// Returns an environment with additional variables.
    pub(crate) fn env_with(&self, variables: &[(&str, &str)]) -> BTreeMap<String, String> {
        let mut env = self.env();
        env.extend(variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        env
    }
}

/// Returns the content of the file `text`.
pub(crate) fn text(tree: &Path) -> String {
    fs::read_to_string(tree.join("text")).unwrap()
}

/// Returns the `Authorization` header value for `user:password`.
pub(crate) fn basic(password: &str) -> String {
    use base64::Engine as _;
    format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(password))
}
