//! Runs credential helpers: programs that store logins for Docker.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

use oci_hooks_files::process::{ChildProgram, ProgramEnd, RunError};
use serde::Deserialize;

use super::{LoginMethod, Secret};

/// Default timeout of a helper; some query a cloud.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Text in the output of a helper that has no login for a registry, in all versions of the
/// protocol.
const NOT_FOUND: &str = "credentials not found";

/// Search path, environment and timeout of credential helpers.
#[derive(Clone, Debug)]
pub struct CredentialHelpers {
    /// Directories searched for `docker-credential-NAME`.
    pub directories: Vec<PathBuf>,
    /// Complete environment of a helper.
    pub env: Vec<(OsString, OsString)>,
    pub timeout: Duration,
}

/// Errors of calling a credential helper.
#[derive(Debug, thiserror::Error)]
pub enum HelperError {
    #[error("the credential helper docker-credential-{name} is not installed")]
    Missing { name: String },
    /// The helper could not be run.
    #[error("cannot run the credential helper docker-credential-{name}")]
    Run { name: String, source: RunError },
    /// The helper failed, timed out or wrote too much.
    #[error(
        "the credential helper docker-credential-{name} {ended} when asked for the login of {registry}: {message}"
    )]
    Failed {
        name: String,
        /// Registry whose login was requested.
        registry: String,
        ended: String,
        message: String,
    },
    /// The helper's output is malformed.
    #[error(
        "the credential helper docker-credential-{name} printed malformed output: expected JSON with Username and Secret"
    )]
    Answer { name: String },
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct HelperOutput {
    username: String,
    secret: String,
}

impl Default for CredentialHelpers {
    fn default() -> Self {
        CredentialHelpers { directories: Vec::new(), env: Vec::new(), timeout: TIMEOUT }
    }
}

impl CredentialHelpers {
    /// Asks a helper for the login of a registry; returns `None` if the helper has none.
    pub(super) fn get(
        &self,
        name: &str,
        registry: &str,
    ) -> Result<Option<LoginMethod>, HelperError> {
        let path = self.path(name)?;
        // The name that `docker login` uses for Docker Hub.
        let server = if registry == "docker.io" { "https://index.docker.io/v1/" } else { registry };
        let mut program = ChildProgram::new(&path, Path::new("/"));
        program.argv = vec![path.as_os_str(), OsStr::new("get")];
        program.env = self.env.iter().map(|(key, value)| (key.as_ref(), value.as_ref())).collect();
        program.stdin = server.as_bytes();
        program.timeout = Some(self.timeout);
        let finished =
            program.run().map_err(|source| HelperError::Run { name: name.to_owned(), source })?;
        let failed = |ended: String| {
            let text = if finished.stdout.is_empty() { &finished.stderr } else { &finished.stdout };
            let text = String::from_utf8_lossy(text);
            let text = if text.trim().is_empty() { "no output" } else { text.trim() };
            HelperError::Failed {
                name: name.to_owned(),
                registry: registry.to_owned(),
                ended,
                message: text.chars().filter(|c| !c.is_control()).take(300).collect(),
            }
        };
        match finished.end {
            ProgramEnd::Exited(0) => {}
            ProgramEnd::Exited(_)
                if String::from_utf8_lossy(&finished.stdout).contains(NOT_FOUND) =>
            {
                return Ok(None);
            }
            ProgramEnd::Exited(code) => return Err(failed(format!("exited with code {code}"))),
            ProgramEnd::Signaled(signal) => {
                return Err(failed(format!("was killed by signal {signal}")));
            }
            ProgramEnd::TimedOut => {
                return Err(failed(format!("took longer than {:?}", self.timeout)));
            }
            ProgramEnd::OutputTooLarge => return Err(failed("wrote too much output".to_owned())),
        }
        let answer: HelperOutput = serde_json::from_slice(&finished.stdout)
            .map_err(|_| HelperError::Answer { name: name.to_owned() })?;
        let secret = Secret::new(answer.secret);
        Ok(Some(match answer.username.as_str() {
            "<token>" => LoginMethod::IdentityToken(secret),
            _ => LoginMethod::Password { username: answer.username, password: secret },
        }))
    }

    fn path(&self, name: &str) -> Result<PathBuf, HelperError> {
        let is_name = !name.is_empty()
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
        let file = format!("docker-credential-{name}");
        let mut paths = self.directories.iter().map(|directory| directory.join(&file));
        let found = if is_name { paths.find(|path| path.is_file()) } else { None };
        found.ok_or_else(|| HelperError::Missing { name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::super::{CredentialFile, Credentials};
    use super::*;

    /// Returns the credentials of a file whose helper is this shell script.
    fn credentials(config: &str, script: &str) -> (tempfile::TempDir, Credentials) {
        let directory = tempfile::tempdir().unwrap();
        let text = format!("#!/bin/sh\n{script}\n");
        let written = directory.path().join("written");
        let path = directory.path().join("docker-credential-test");
        fs::write(&written, text).unwrap();
        fs::set_permissions(&written, fs::Permissions::from_mode(0o755)).unwrap();
        // Another process copies the script: a file written by this one may be busy (`ETXTBSY`).
        let status = std::process::Command::new("cp").args([&written, &path]).status().unwrap();
        assert!(status.success());
        let helpers = CredentialHelpers {
            directories: vec![directory.path().to_owned()],
            ..CredentialHelpers::default()
        };
        let file = CredentialFile::parse(config).unwrap();
        (directory, Credentials::default().with_file(file).with_helpers(helpers))
    }

    #[test]
    fn helper_is_asked_only_for_its_registry() {
        let (_directory, credentials) = credentials(
            r#"{"credHelpers": {"ghcr.io": "test"}, "auths": {"b.example": {"auth": "YTpi"}}}"#,
            r#"[ "$1" = get ] && read server; printf '{"Username":"%s","Secret":"s"}' "$server""#,
        );
        let login = credentials.find("ghcr.io", "a").unwrap();
        let expected =
            LoginMethod::Password { username: "ghcr.io".into(), password: Secret::new("s") };
        assert_eq!(login, Some(expected));
        assert!(credentials.find("b.example", "a").unwrap().is_some());
        assert_eq!(credentials.find("c.example", "a").unwrap(), None);
    }

    #[test]
    fn helper_knows_docker_hub_by_its_old_name_and_returns_tokens() {
        let (_directory, credentials) = credentials(
            r#"{"credsStore": "test", "auths": {"https://index.docker.io/v1/": {}}}"#,
            r#"read s; case $s in https://index.docker.io/v1/) echo '{"Username":"<token>","Secret":"t"}';; *) echo "credentials not found in native keychain"; exit 1;; esac"#,
        );
        let login = credentials.find("docker.io", "library/a").unwrap();
        assert_eq!(login, Some(LoginMethod::IdentityToken(Secret::new("t"))));
        assert_eq!(credentials.find("ghcr.io", "a").unwrap(), None);
    }

    #[test]
    fn failing_hanging_or_missing_helper_is_an_error() {
        let config = r#"{"credsStore": "test"}"#;
        let (_directory, broken) = credentials(config, "echo locked; exit 3");
        let error = broken.find("ghcr.io", "a").unwrap_err().to_string();
        assert!(
            error.contains("exited with code 3 when asked for the login of ghcr.io: locked"),
            "{error}"
        );
        let (_directory, garbage) = credentials(config, "echo nonsense");
        assert!(matches!(garbage.find("a.example", "a"), Err(HelperError::Answer { .. })));
        let (_directory, mut hanging) = credentials(config, "read x; exec sleep 60");
        hanging.helpers.timeout = Duration::from_millis(50);
        assert!(hanging.find("a.example", "a").unwrap_err().to_string().contains("took longer"));
        for name in ["other", "../test", ""] {
            let file = format!(r#"{{"credHelpers": {{"a.example": "{name}"}}}}"#);
            let file = CredentialFile::parse(&file).unwrap();
            let found = Credentials::default().with_file(file).find("a.example", "a");
            assert!(matches!(found, Err(HelperError::Missing { .. })), "{name}");
        }
    }
}
