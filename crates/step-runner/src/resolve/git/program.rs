//! The program `git`, and the user's git configuration.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Instant;

use oci_hooks_files::find;
use oci_hooks_files::fs::read_if_there;
use oci_hooks_files::process::{ChildProgram, ProgramEnd};

use super::error::GitError;
use super::options::{GitCredential, GitFetcher};
use super::repository::GitRepository;

/// Prefixes of git's environment variables that are kept: transport and TLS. Other variables set paths of
/// repositories or programs to execute.
const KEPT_VARIABLES: [&str; 4] = ["GIT_SSH", "GIT_SSH_COMMAND", "GIT_SSH_VARIANT", "GIT_SSL_"];

/// Credential helper, which git passes to a shell.
const HELPER: &str = "!f() { if test \"$1\" = get; then printf 'username=%s\\npassword=%s\\n' \
                      \"$STEP_RUNNER_GIT_USERNAME\" \"$STEP_RUNNER_GIT_PASSWORD\"; fi; }; f";

/// Settings that disable hooks and other programs named by a repository, and background processes.
const SETTINGS: [&str; 7] = [
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.autocrlf=false",
    "fetch.recurseSubmodules=false",
    "gc.auto=0",
    "maintenance.auto=false",
    "advice.detachedHead=false",
];

/// Runs git for one repository.
pub struct GitRunner<'a> {
    program: PathBuf,
    repository: &'a GitRepository,
    settings: Vec<String>,
    env: BTreeMap<OsString, OsString>,
    password: Option<String>,
    git: &'a GitFetcher<'a>,
    deadline: Instant,
}

/// Returns the path of git, found by the variable `PATH`.
fn find(env: &BTreeMap<String, String>) -> Result<PathBuf, GitError> {
    let path = env.get("PATH").map(String::as_str);
    find::find(&[OsStr::new("git")], path.map(OsStr::new), None)
        .map_err(|_| GitError::NoProgram(path.unwrap_or(find::DEFAULT_PATH).to_owned()))
}

impl<'a> GitRunner<'a> {
    /// Returns a runner for which all calls share one deadline.
    pub(super) fn new(
        repository: &'a GitRepository,
        git: &'a GitFetcher<'a>,
        deadline: Instant,
    ) -> Result<Self, GitError> {
        let program = find(git.env)?;
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
        let protocols = if repository.url.starts_with("file:") { "file" } else { "https:http:ssh" };
        for (name, value) in [
            ("LC_ALL", "C"),
            ("GIT_ALLOW_PROTOCOL", protocols),
            ("GIT_TERMINAL_PROMPT", "0"),
            ("GIT_ASKPASS", ""),
            // Files in Git LFS are not fetched.
            ("GIT_LFS_SKIP_SMUDGE", "1"),
        ] {
            env.insert(name.into(), value.into());
        }
        if !env.contains_key(OsStr::new("GIT_SSH")) {
            let command = env.entry("GIT_SSH_COMMAND".into());
            command.or_insert_with(|| "ssh -o BatchMode=yes".into());
        }
        let mut settings: Vec<_> = SETTINGS.map(str::to_owned).to_vec();
        // Credentials in the URL take precedence over those for its origin.
        let of_job = || git.credential.as_ref().filter(|c| repository.is_at(&c.origin));
        let credential = repository.credential.as_ref().or_else(of_job);
        if let Some(GitCredential { origin, username, password }) = credential {
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
        program.timeout = Some(self.deadline.saturating_duration_since(Instant::now()));
        program.interrupt = Some(self.git.interrupt.event());
        let finished = program.run()?;
        let url = || self.repository.url.clone();
        match finished.end {
            ProgramEnd::Exited(0) => Ok(Ok(String::from_utf8_lossy(&finished.stdout).into_owned())),
            ProgramEnd::Exited(_) | ProgramEnd::Signaled(_) => {
                Ok(Err(self.message(&finished.stderr)))
            }
            ProgramEnd::TimedOut if self.git.interrupt.is_set() => Err(GitError::Interrupted),
            ProgramEnd::TimedOut => Err(self.git.timeout_error(&self.repository.url)),
            ProgramEnd::OutputTooLarge => {
                let message = "too many tags and branches".to_owned();
                Err(GitError::Failed { url: url(), message })
            }
        }
    }

    /// Runs git in a directory and returns its output.
    pub(super) fn run(&self, cwd: &Path, arguments: &[&OsStr]) -> Result<String, GitError> {
        self.try_run(cwd, arguments)?.map_err(|message| self.command_error(message))
    }

    pub(super) fn command_error(&self, message: String) -> GitError {
        GitError::Failed { url: self.repository.url.clone(), message }
    }

    /// Returns the most useful line of git's stderr: `fatal: …`, or else the last one.
    fn message(&self, stderr: &[u8]) -> String {
        let text = String::from_utf8_lossy(stderr);
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let fatal = lines.clone().find_map(|line| line.strip_prefix("fatal: "));
        let line = fatal.or_else(|| lines.next_back()).unwrap_or("no error message");
        let line: String = line.chars().filter(|c| !c.is_control()).take(500).collect();
        match self.password.as_deref() {
            Some(password) if !password.is_empty() => line.replace(password, "[MASKED]"),
            _ => line,
        }
    }
}

/// Size limit of a git configuration file.
const MAX_SETTINGS_BYTES: u64 = 1 << 20;

/// Variables and configuration sections that change how git connects to servers: other addresses, proxies,
/// certificates, passwords.
const VARIABLES: [&str; 6] = [
    "GIT_SSL_CAPATH",
    "GIT_SSL_CERT",
    "GIT_SSL_CIPHER_LIST",
    "GIT_SSL_KEY",
    "GIT_SSL_NO_VERIFY",
    "GIT_SSL_VERSION",
];
const SECTIONS: [&str; 5] = ["credential", "http", "include", "includeif", "url"];

/// Returns whether git exists and has settings for a server that this program does not read.
pub fn prefers_program(env: &BTreeMap<String, String>, host: &str) -> bool {
    let has_variable = VARIABLES.iter().any(|name| env.contains_key(*name));
    (has_variable || files(env).into_iter().any(|file| has_section(file, host)))
        && find(env).is_ok()
}

/// Returns git's configuration files outside of repositories.
fn files(env: &BTreeMap<String, String>) -> Vec<PathBuf> {
    let dir = |name: &str| env.get(name).filter(|dir| !dir.is_empty()).map(PathBuf::from);
    let home = dir("HOME");
    let config = dir("XDG_CONFIG_HOME").or_else(|| home.as_ref().map(|home| home.join(".config")));
    let mut files = vec![PathBuf::from("/etc/gitconfig")];
    files.extend(config.map(|config| config.join("git/config")));
    files.extend(home.map(|home| home.join(".gitconfig")));
    files
}

/// Returns whether a file has one of the sections for a host; `true` if the file cannot be read.
fn has_section(file: PathBuf, host: &str) -> bool {
    match read_if_there(&file, MAX_SETTINGS_BYTES) {
        Ok(None) => false,
        Ok(Some(text)) => names_section(&String::from_utf8_lossy(&text), host),
        Err(_) => true,
    }
}

fn names_section(text: &str, host: &str) -> bool {
    text.lines().any(|line| {
        let Some(title) = line.trim_start().strip_prefix('[') else { return false };
        let end = title.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(title.len());
        let (name, rest) = title.split_at(end);
        if !SECTIONS.iter().any(|section| name.eq_ignore_ascii_case(section)) {
            return false;
        }
        // These sections may be for one server only: `[http "https://host/"]`.
        let is_bound = ["credential", "http"].iter().any(|bound| name.eq_ignore_ascii_case(bound));
        match rest.split('"').nth(1).filter(|_| is_bound) {
            Some(url) => url.contains('*') || url.to_ascii_lowercase().contains(host),
            None => true,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_server_settings_require_the_git_program() {
        for text in [
            "[url \"https://mirror/\"]\n\tinsteadOf = https://host/",
            "[user]\n\tname = a\n [HTTP]\nproxy = http://p",
            "[http \"https://HOST:8443/\"] sslVerify = false",
            "[credential \"https://*\"]",
            "[credential]\nhelper = store",
            "[includeIf \"gitdir:~/\"]\npath = x",
            "[url.x]\ninsteadOf = y",
        ] {
            assert!(names_section(text, "host"), "{text}");
        }
        for text in
            ["", "[user]\nname = http", "[safe]\n# [http]\n; [url]\n", "[httpx]", "[http \"x\"]"]
        {
            assert!(!names_section(text, "host"), "{text}");
        }
    }

    #[test]
    fn settings_are_ignored_without_the_git_program() {
        let home = tempfile::tempdir().unwrap();
        let text = |text: &Path| text.to_str().unwrap().to_owned();
        let bin = home.path().join("bin");
        let mut env = BTreeMap::from([
            ("HOME".to_owned(), text(home.path())),
            ("PATH".to_owned(), text(&bin)),
        ]);
        std::fs::write(home.path().join(".gitconfig"), "[http]\nproxy = x\n").unwrap();
        assert!(!prefers_program(&env, "host"));
        env.insert("PATH".to_owned(), std::env::var("PATH").unwrap());
        assert!(prefers_program(&env, "host"));
        std::fs::write(home.path().join(".gitconfig"), "[user]\nname = x\n").unwrap();
        assert!(!prefers_program(&env, "host"));
        env.insert("GIT_SSL_NO_VERIFY".to_owned(), "1".to_owned());
        assert!(prefers_program(&env, "host"));
    }
}
