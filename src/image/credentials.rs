//! Credentials for registries: given ones, `config.json` of Docker, `auth.json` of podman, helpers.
//!
//! Nothing is read here: texts come in, and [`Credentials::find`] gives out what fits a repository,
//! asking a helper program only then.

mod file;
mod helper;

use std::fmt;

use super::digest::Digest;
use crate::sys::fs::random_u64;

pub use file::{CredentialFile, CredentialFileError};
pub use helper::{HelperError, Helpers};

/// A text that is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

/// How to show a registry who we are.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Login {
    /// A name and a password or an access token.
    Password { username: String, password: Secret },
    /// A refresh token for the registry's token server.
    IdentityToken(Secret),
    /// A token that the registry takes as it is.
    RegistryToken(Secret),
}

/// A login and what it is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credential {
    /// The registry, or part of one: `HOST[:PORT][/NAMESPACE]`.
    scope: String,
    login: Login,
}

/// Everything that logins may be taken from, in order.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    given: Vec<Credential>,
    files: Vec<CredentialFile>,
    helpers: Helpers,
}

impl Secret {
    /// Keeps a text from being shown.
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

impl Credential {
    /// Returns a login for a registry, or for the repositories below a path in one.
    ///
    /// The registry is written in any way that Docker's configuration knows: `ghcr.io`,
    /// `https://index.docker.io/v1/`; nothing at all means Docker Hub.
    pub fn new(registry: &str, login: Login) -> Self {
        Credential { scope: scope(registry), login }
    }
}

impl Login {
    /// Returns a text by which the same login is recognised later, without being one.
    pub fn fingerprint(&self) -> String {
        self.fingerprint_with(&format!("{:016x}{:016x}", random_u64(), random_u64()))
    }

    /// Returns whether a fingerprint was made of this login.
    pub fn has_fingerprint(&self, fingerprint: &str) -> bool {
        let salt = fingerprint.split('.').next().unwrap_or("");
        self.fingerprint_with(salt) == fingerprint
    }

    fn fingerprint_with(&self, salt: &str) -> String {
        let (kind, name, secret) = match self {
            Login::Password { username, password } => ("password", username.as_str(), password),
            Login::IdentityToken(token) => ("identity", "", token),
            Login::RegistryToken(token) => ("registry", "", token),
        };
        let text = format!("{salt}\0{kind}\0{name}\0{}", secret.reveal());
        format!("{salt}.{}", Digest::of(text.as_bytes()).hex())
    }
}

impl Credentials {
    /// Returns credentials that are used before those of any file.
    pub fn new(given: Vec<Credential>) -> Self {
        Credentials { given, ..Credentials::default() }
    }

    /// Adds a login, which is used before those of any file.
    #[must_use]
    pub fn with_login(mut self, login: Credential) -> Self {
        self.given.push(login);
        self
    }

    /// Adds a file; earlier ones win.
    #[must_use]
    pub fn with_file(mut self, file: CredentialFile) -> Self {
        self.files.push(file);
        self
    }

    /// Sets where the helper programs that files name are found, and how they run.
    #[must_use]
    pub fn with_helpers(mut self, helpers: Helpers) -> Self {
        self.helpers = helpers;
        self
    }

    /// Returns the login for a repository, that of the longest scope that holds it.
    pub fn find(&self, registry: &str, repository: &str) -> Result<Option<Login>, HelperError> {
        let registry = scope(registry);
        let given = self.given.iter().map(|given| (given.scope.as_str(), &given.login));
        if let Some(login) = longest(given, &registry, repository) {
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

/// Returns what belongs to the longest scope that a repository is in.
fn longest<'a, T>(
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

/// Returns a registry, or a path in one, as scopes are compared.
fn scope(key: &str) -> String {
    let key = key.split_once("://").map_or(key, |(_, rest)| rest).trim_end_matches('/');
    // These are versions of the protocol, which Docker's keys end with.
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

    fn login(name: &str) -> Login {
        Login::Password { username: name.to_owned(), password: Secret::new("secret") }
    }

    #[test]
    fn the_longest_scope_wins_and_others_get_nothing() {
        let credentials = Credentials::new(vec![
            Credential::new("ghcr.io", login("all")),
            Credential::new("ghcr.io/team", login("team")),
            Credential::new("", login("hub")),
        ]);
        let find = |registry: &str, repository: &str| {
            credentials.find(registry, repository).unwrap().map(|found| match found {
                Login::Password { username, .. } => username,
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
    fn every_name_of_docker_hub_is_the_same() {
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
    fn a_fingerprint_recognises_a_login_and_nothing_else() {
        let fingerprint = login("a").fingerprint();
        assert!(login("a").has_fingerprint(&fingerprint));
        assert!(!login("b").has_fingerprint(&fingerprint));
        assert!(!Login::IdentityToken(Secret::new("secret")).has_fingerprint(&fingerprint));
        assert_ne!(fingerprint, login("a").fingerprint());
        assert!(!fingerprint.contains("secret"));
    }

    #[test]
    fn secrets_are_not_shown() {
        assert!(!format!("{:?}", Credential::new("", login("a"))).contains("secret"));
    }
}
