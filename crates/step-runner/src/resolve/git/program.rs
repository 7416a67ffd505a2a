//! Runs the program `git`.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Instant;

use oci_hooks_files::find;
use oci_hooks_files::process::{ChildProgram, ProgramEnd};
use oci_hooks_files::quantity::ByteSize;
use oci_hooks_image::http::has_host_roots;
use rustix::process::Signal;

use super::error::GitError;
use super::options::{GitCredential, GitFetcher};
use super::repository::GitRepository;

/// Variables named `GIT_…` that git inherits, for transport and TLS; a final `_` marks a prefix.
/// Others are removed, as some name repositories or programs to execute.
const KEPT_VARIABLES: [&str; 4] = ["GIT_SSH", "GIT_SSH_COMMAND", "GIT_SSH_VARIANT", "GIT_SSL_"];

/// Credential helper, which git passes to a shell. It prints credentials from the environment.
const HELPER: &str = "!f() { if test \"$1\" = get; then printf 'username=%s\\npassword=%s\\n' \
                      \"$STEP_RUNNER_GIT_USERNAME\" \"$STEP_RUNNER_GIT_PASSWORD\"; fi; }; f";

/// Git settings, some of which disable background processes, and hooks and other programs that a
/// repository names.
const SETTINGS: [&str; 10] = [
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.autocrlf=false",
    "fetch.recurseSubmodules=false",
    "fetch.output=compact",
    // Store fetched objects as a pack: only the size of packs is limited.
    "fetch.unpackLimit=1",
    "transfer.unpackLimit=1",
    "gc.auto=0",
    "maintenance.auto=false",
    "advice.detachedHead=false",
];

/// Maximum memory that git allocates at once, in bytes: a small pack can contain a large object.
const MAX_OBJECT_BYTES: &str = "268435456";

/// Variables of curl and OpenSSL that name a file with CA certificates. Git itself reads only
/// `GIT_SSL_CAINFO`.
const CA_VARIABLES: [&str; 2] = ["CURL_CA_BUNDLE", "SSL_CERT_FILE"];

/// Runs git for one repository, with settings, environment and credentials.
pub struct GitRunner<'a> {
    program: PathBuf,
    repository: &'a GitRepository,
    settings: Vec<String>,
    env: BTreeMap<OsString, OsString>,
    password: Option<String>,
    git: &'a GitFetcher<'a>,
    deadline: Instant,
}

/// Returns the path of git: looked up in PATH, or else the fallback.
fn find(git: &GitFetcher<'_>) -> Result<PathBuf, GitError> {
    let path = git.env.get("PATH").map(String::as_str);
    if let Ok(program) = find::find(&[OsStr::new("git")], path.map(OsStr::new), None) {
        return Ok(program);
    }
    let fallback = git.fallback_git.filter(|program| program.exists()).map(Path::to_owned);
    fallback.ok_or_else(|| GitError::NoProgram(path.unwrap_or(find::DEFAULT_PATH).to_owned()))
}

impl<'a> GitRunner<'a> {
    /// Returns a runner. `deadline` applies to all its calls of git.
    pub(super) fn new(
        repository: &'a GitRepository,
        git: &'a GitFetcher<'a>,
        deadline: Instant,
    ) -> Result<Self, GitError> {
        let program = find(git)?;
        let env = git.env;
        let is_kept = |name: &str| {
            !name.starts_with("GIT_")
                || KEPT_VARIABLES.iter().any(|kept| match kept.strip_suffix('_') {
                    Some(_) => name.starts_with(kept),
                    None => name == *kept,
                })
        };
        let mut env: BTreeMap<OsString, OsString> = env
            .iter()
            .filter(|(name, _)| is_kept(name))
            .map(|(name, value)| (name.into(), value.into()))
            .collect();
        // Git finds its subcommands beside itself.
        let beside = program.parent().unwrap_or(Path::new("/")).display();
        let path = git.env.get("PATH").map_or(find::DEFAULT_PATH, String::as_str);
        let path = format!("{beside}:{path}");
        let protocols = if repository.url.starts_with("file:") { "file" } else { "https:http:ssh" };
        for (name, value) in [
            ("LC_ALL", "C"),
            ("PATH", &*path),
            ("GIT_ALLOW_PROTOCOL", protocols),
            ("GIT_TERMINAL_PROMPT", "0"),
            ("GIT_ASKPASS", ""),
            // Files in Git LFS are not fetched.
            ("GIT_LFS_SKIP_SMUDGE", "1"),
            ("GIT_ALLOC_LIMIT", MAX_OBJECT_BYTES),
            // Objects that a fetch leaves out are not fetched later.
            ("GIT_NO_LAZY_FETCH", "1"),
        ] {
            env.insert(name.into(), value.into());
        }
        if !env.contains_key(OsStr::new("GIT_SSH")) {
            let command = env.entry("GIT_SSH_COMMAND".into());
            command.or_insert_with(|| "ssh -o BatchMode=yes".into());
        }
        let mut settings: Vec<_> = SETTINGS.map(str::to_owned).to_vec();
        settings.extend(ca_file(git).map(|file| format!("http.sslCAInfo={}", file.display())));
        // Credentials in the URL take precedence over those for its origin.
        let of_job = || git.credential.as_ref().filter(|c| repository.is_at(&c.origin));
        let credential = repository.credential.as_ref().or_else(of_job);
        if let (Some(origin), Some(credential)) = (&repository.origin, credential) {
            let GitCredential { username, password, .. } = credential;
            // No other helper is called, neither to get nor to store credentials.
            settings.push("credential.helper=".to_owned());
            settings.push(format!("credential.{origin}.helper={HELPER}"));
            env.insert("STEP_RUNNER_GIT_USERNAME".into(), username.into());
            env.insert("STEP_RUNNER_GIT_PASSWORD".into(), password.into());
        }
        let password = credential.map(|credential| credential.password.clone());
        Ok(GitRunner { program, repository, settings, env, password, git, deadline })
    }

    /// Returns the repository of this runner.
    pub(super) fn repository(&self) -> &GitRepository {
        self.repository
    }

    /// Runs git in a directory and returns its output, or its error message if it fails.
    pub(super) fn try_run(
        &self,
        cwd: &Path,
        arguments: &[&OsStr],
    ) -> Result<Result<String, String>, GitError> {
        let settings = self.settings.iter().flat_map(|setting| ["-c", setting]).map(OsStr::new);
        let mut program = ChildProgram::new(&self.program, cwd);
        program.argv = vec![OsStr::new("git")];
        program.argv.extend(settings);
        program.argv.extend(arguments);
        program.env =
            self.env.iter().map(|(name, value)| (name.as_os_str(), value.as_os_str())).collect();
        program.max_file_bytes = Some(self.git.max_file_bytes);
        program.dies_with_us = true;
        program.timeout = Some(self.deadline.saturating_duration_since(Instant::now()));
        program.interrupt = Some(self.git.interrupt.event());
        let finished = program.run()?;
        match finished.end {
            ProgramEnd::Exited(0) => Ok(Ok(String::from_utf8_lossy(&finished.stdout).into_owned())),
            ProgramEnd::Exited(_) => Ok(Err(self.message(&finished.stderr))),
            ProgramEnd::Signaled(signal) => {
                let message = match signal == Signal::XFSZ.as_raw() {
                    true => format!(
                        "a file of the repository is larger than {}",
                        ByteSize(self.git.max_file_bytes)
                    ),
                    false => format!("git was killed by signal {signal}"),
                };
                Err(self.command_error(message))
            }
            ProgramEnd::TimedOut if self.git.interrupt.is_set() => Err(GitError::Interrupted),
            ProgramEnd::TimedOut => Err(self.git.timeout_error(&self.repository.url)),
            ProgramEnd::OutputTooLarge => Err(self
                .command_error("the repository has too many files, tags or branches".to_owned())),
        }
    }

    /// Runs git in a directory and returns its output.
    pub(super) fn run(&self, cwd: &Path, arguments: &[&OsStr]) -> Result<String, GitError> {
        self.try_run(cwd, arguments)?.map_err(|message| self.command_error(message))
    }

    pub(super) fn command_error(&self, message: String) -> GitError {
        GitError::Failed { url: self.repository.url.clone(), message }
    }

    /// Returns the most useful line of git's stderr: the first `fatal: …`, or else the last one.
    /// The password is masked.
    fn message(&self, stderr: &[u8]) -> String {
        let text = String::from_utf8_lossy(stderr);
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let fatal = lines.clone().find_map(|line| line.strip_prefix("fatal: "));
        let line =
            fatal.or_else(|| lines.next_back()).unwrap_or("git failed without an error message");
        let mut line: String = line.chars().filter(|c| !c.is_control()).take(500).collect();
        // Git does not report that `index-pack` was ended by the limit of the file size.
        if line.ends_with("invalid index-pack output") {
            line += &format!("; pack files can have at most {}", ByteSize(self.git.max_file_bytes));
        }
        match self.password.as_deref() {
            Some(password) if !password.is_empty() => line.replace(password, "[MASKED]"),
            _ => line,
        }
    }
}

/// Returns a file with CA certificates to set for git: named by a variable, or the fallback.
/// Returns `None` if git's own settings and the host's certificates apply.
fn ca_file(git: &GitFetcher<'_>) -> Option<PathBuf> {
    let mut named = CA_VARIABLES.iter().filter_map(|name| git.env.get(*name));
    if let Some(path) = named.find(|path| !path.is_empty()) {
        return Some(path.into());
    }
    let fallback = git.fallback_ca_file.filter(|file| file.exists())?;
    (!has_host_roots()).then(|| fallback.to_owned())
}
