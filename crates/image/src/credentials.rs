//! Registry credentials: explicit ones, Docker's `config.json`, Podman's `auth.json`, and helpers.
//!
//! This module reads no files: callers pass their text. [`Credentials::find`] returns the login for
//! a repository, and runs helper programs only then.

mod file;
mod helper;

use std::fmt;

use oci_hooks_files::fs::random_u64;

use super::digest::Digest;

pub use file::{CredentialFile, CredentialFileError};
pub use helper::{CredentialHelpers, HelperError};

/// Secret text, which `Debug` prints as `***`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

/// Login to a registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoginMethod {
    /// User name with a password or an access token.
    Password { username: String, password: Secret },
    /// A refresh token for the registry's token server.
    IdentityToken(Secret),
    /// Token that the registry accepts unchanged.
    RegistryToken(Secret),
}

/// Login for a registry or a part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistryCredential {
    /// Registry, or part of one: `HOST[:PORT][/NAMESPACE]`.
    scope: String,
    login: LoginMethod,
}

/// Sources of logins, in order of precedence.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    given: Vec<RegistryCredential>,
    files: Vec<CredentialFile>,
    helpers: CredentialHelpers,
}

impl Secret {
    /// Wraps a secret text.
    pub fn new(text: impl Into<String>) -> Self {
        Secret(text.into())
    }

    /// Returns the text.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl RegistryCredential {
    /// Returns a credential for a registry, or for the repositories below a path in it.
    ///
    /// The registry may have any form of Docker's configuration: `ghcr.io`,
    /// `https://index.docker.io/v1/`; an empty one means Docker Hub.
    pub fn new(registry: &str, login: LoginMethod) -> Self {
        RegistryCredential { scope: scope(registry), login }
    }
}

impl LoginMethod {
    /// Returns a salted hash that identifies the login later.
    pub fn fingerprint(&self) -> String {
        self.fingerprint_with(&format!("{:016x}{:016x}", random_u64(), random_u64()))
    }

    /// Returns whether a fingerprint is that of this login.
    pub fn has_fingerprint(&self, fingerprint: &str) -> bool {
        let salt = fingerprint.split('.').next().unwrap_or("");
        self.fingerprint_with(salt) == fingerprint
    }

    fn fingerprint_with(&self, salt: &str) -> String {
        let (kind, name, secret) = match self {
            LoginMethod::Password { username, password } => {
                ("password", username.as_str(), password)
            }
            LoginMethod::IdentityToken(token) => ("identity", "", token),
            LoginMethod::RegistryToken(token) => ("registry", "", token),
        };
        let text = format!("{salt}\0{kind}\0{name}\0{}", secret.reveal());
        format!("{salt}.{}", Digest::of(text.as_bytes()).hex())
    }
}

impl Credentials {
    /// Returns credentials that override those of files.
    pub fn new(given: Vec<RegistryCredential>) -> Self {
        Credentials { given, ..Credentials::default() }
    }

    /// Adds a login that overrides those of files.
    #[must_use]
    pub fn with_login(mut self, login: RegistryCredential) -> Self {
        self.given.push(login);
        self
    }

    /// Adds a file; files added earlier take precedence.
    #[must_use]
    pub fn with_file(mut self, file: CredentialFile) -> Self {
        self.files.push(file);
        self
    }

    /// Sets the search path, environment and timeout of credential helpers.
    #[must_use]
    pub fn with_helpers(mut self, helpers: CredentialHelpers) -> Self {
        self.helpers = helpers;
        self
    }

    /// Returns the login for a repository: that with the longest matching scope in the first source
    /// that has one.
    pub fn find(
        &self,
        registry: &str,
        repository: &str,
    ) -> Result<Option<LoginMethod>, HelperError> {
        let registry = scope(registry);
        let given = self.given.iter().map(|given| (given.scope.as_str(), &given.login));
        if let Some(login) = longest_scope(given, &registry, repository) {
            return Ok(Some(login.clone()));
        }
        for file in &self.files {
            if let Some(login) = file.find(&registry, repository, &self.helpers)? {
                return Ok(Some(login));
            }
        }
        Ok(None)
    }
}

/// Returns the value of the longest scope that contains a repository.
fn longest_scope<'a, T>(
    scopes: impl Iterator<Item = (&'a str, T)>,
    registry: &str,
    repository: &str,
) -> Option<T> {
    let full = format!("{registry}/{repository}");
    let holds = |scope: &str| {
        full.strip_prefix(scope).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let mut best: Option<(usize, T)> = None;
    for (scope, value) in scopes.filter(|(scope, _)| holds(scope)) {
        if best.as_ref().is_none_or(|(len, _)| scope.len() > *len) {
            best = Some((scope.len(), value));
        }
    }
    best.map(|(_, value)| value)
}

/// Returns a registry, or a path in one, normalized for comparison.
fn scope(key: &str) -> String {
    let key = key.split_once("://").map_or(key, |(_, rest)| rest).trim_end_matches('/');
    // Docker's keys end with the version of the protocol.
    let key = key.strip_suffix("/v1").or(key.strip_suffix("/v2")).unwrap_or(key);
    let (host, path) = key.split_once('/').map_or((key, ""), |(host, path)| (host, path));
    let host = host.to_ascii_lowercase();
    let host = match host.as_str() {
        "" | "index.docker.io" | "registry-1.docker.io" | "registry.hub.docker.com" => "docker.io",
        host => host,
    };
    if path.is_empty() { host.to_owned() } else { format!("{host}/{path}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn login(name: &str) -> LoginMethod {
        LoginMethod::Password { username: name.to_owned(), password: Secret::new("secret") }
    }

    #[test]
    fn longest_scope_applies_and_others_get_nothing() {
        let credentials = Credentials::new(vec![
            RegistryCredential::new("ghcr.io", login("all")),
            RegistryCredential::new("ghcr.io/team", login("team")),
            RegistryCredential::new("", login("hub")),
        ]);
        let find = |registry: &str, repository: &str| {
            credentials.find(registry, repository).unwrap().map(|found| match found {
                LoginMethod::Password { username, .. } => username,
                other => panic!("{other:?}"),
            })
        };
        assert_eq!(find("ghcr.io", "team/a").as_deref(), Some("team"));
        assert_eq!(find("ghcr.io", "team").as_deref(), Some("team"));
        assert_eq!(find("ghcr.io", "teams/a").as_deref(), Some("all"));
        assert_eq!(find("docker.io", "library/a").as_deref(), Some("hub"));
        for other in ["ghcr.io:444", "ghcr.io.example", "evil.example", "xghcr.io"] {
            assert_eq!(find(other, "team/a"), None);
        }
    }

    #[test]
    fn all_names_of_docker_hub_are_equivalent() {
        for name in [
            "",
            "docker.io",
            "index.docker.io",
            "https://index.docker.io/v1/",
            "registry-1.docker.io",
        ] {
            assert_eq!(scope(name), "docker.io", "{name}");
        }
        assert_eq!(scope("https://Quay.io/v2/"), "quay.io");
        assert_eq!(scope("quay.io/Team/x"), "quay.io/Team/x");
    }

    #[test]
    fn fingerprint_identifies_only_its_login() {
        let fingerprint = login("a").fingerprint();
        assert!(login("a").has_fingerprint(&fingerprint));
        assert!(!login("b").has_fingerprint(&fingerprint));
        assert!(!LoginMethod::IdentityToken(Secret::new("secret")).has_fingerprint(&fingerprint));
        assert_ne!(fingerprint, login("a").fingerprint());
        assert!(!fingerprint.contains("secret"));
    }

    #[test]
    fn secrets_are_not_shown() {
        assert!(!format!("{:?}", RegistryCredential::new("", login("a"))).contains("secret"));
    }
}
