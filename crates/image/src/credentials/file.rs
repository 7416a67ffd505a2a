//! Parses the logins in Docker's `config.json` and Podman's `auth.json`.

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use serde::Deserialize;

use super::{CredentialHelpers, HelperError, LoginMethod, Secret, longest_scope, scope};
use crate::manifest::deserialize_or_default;

/// Credential file: logins and the names of helper programs.
#[derive(Clone, Debug, Default)]
pub struct CredentialFile {
    auths: BTreeMap<String, LoginMethod>,
    helpers: BTreeMap<String, String>,
    /// Credential helper for registries without an entry in `helpers` (`credsStore`).
    store: Option<String>,
    container_env: Vec<(String, String)>,
}

/// Errors of parsing a credential file.
#[derive(Debug, thiserror::Error)]
pub enum CredentialFileError {
    /// The file is not JSON, or a field has the wrong type.
    // The source is not kept, because it could quote a secret.
    #[error("the file with credentials is malformed: line {line}, column {column}")]
    Malformed {
        /// Line of the error, counted from 1.
        line: usize,
        /// Column of the error, counted from 1.
        column: usize,
    },
    /// A login is not `USER:PASSWORD` in base64.
    #[error("the credentials for {registry:?} are not \"USER:PASSWORD\" in base64")]
    Auth {
        /// The key of the login.
        registry: String,
    },
}

#[derive(Deserialize)]
struct CredentialJson {
    #[serde(default, deserialize_with = "deserialize_or_default")]
    auths: BTreeMap<String, AuthJson>,
    #[serde(default, rename = "credHelpers", deserialize_with = "deserialize_or_default")]
    helpers: BTreeMap<String, String>,
    #[serde(default, rename = "credsStore", deserialize_with = "deserialize_or_default")]
    store: String,
    #[serde(default, deserialize_with = "deserialize_or_default")]
    proxies: BTreeMap<String, ProxiesJson>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ProxiesJson {
    all_proxy: Option<String>,
    ftp_proxy: Option<String>,
    http_proxy: Option<String>,
    https_proxy: Option<String>,
    no_proxy: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct AuthJson {
    #[serde(deserialize_with = "deserialize_or_default")]
    auth: String,
    #[serde(deserialize_with = "deserialize_or_default")]
    username: String,
    #[serde(deserialize_with = "deserialize_or_default")]
    password: String,
    #[serde(rename = "identitytoken", deserialize_with = "deserialize_or_default")]
    identity_token: String,
    #[serde(rename = "registrytoken", deserialize_with = "deserialize_or_default")]
    registry_token: String,
}

impl CredentialFile {
    /// Parses a credential file. Other settings are ignored.
    pub fn parse(text: &str) -> Result<Self, CredentialFileError> {
        let text: CredentialJson = serde_json::from_str(text).map_err(|error| {
            CredentialFileError::Malformed { line: error.line(), column: error.column() }
        })?;
        let mut auths = BTreeMap::new();
        for (key, auth) in text.auths {
            let login = auth
                .login()
                .map_err(|MalformedAuth| CredentialFileError::Auth { registry: key.clone() })?;
            // Docker leaves an empty entry for logins that a helper keeps.
            if let Some(login) = login {
                auths.insert(scope(&key), login);
            }
        }
        Ok(CredentialFile {
            auths,
            helpers: text.helpers.into_iter().map(|(key, name)| (scope(&key), name)).collect(),
            store: Some(text.store).filter(|store| !store.is_empty()),
            // Other keys than `default` are addresses of Docker daemons.
            container_env: text.proxies.get("default").map(ProxiesJson::env).unwrap_or_default(),
        })
    }

    /// Returns the environment variables with proxies that Docker sets in containers (`proxies.default`).
    pub fn container_env(&self) -> &[(String, String)] {
        &self.container_env
    }

    /// Returns the login for a repository.
    ///
    /// Asks the helper for this registry first, then reads the logins of the file, then asks the
    /// helper for all registries. The order suits Docker, which keeps no logins in a file that
    /// names a helper for all registries.
    pub(super) fn find(
        &self,
        registry: &str,
        repository: &str,
        helpers: &CredentialHelpers,
    ) -> Result<Option<LoginMethod>, HelperError> {
        if let Some(name) = self.helpers.get(registry)
            && let Some(login) = helpers.get(name, registry)?
        {
            return Ok(Some(login));
        }
        let auths = self.auths.iter().map(|(scope, login)| (scope.as_str(), login));
        match (longest_scope(auths, registry, repository), &self.store) {
            (Some(login), _) => Ok(Some(login.clone())),
            (None, Some(store)) => helpers.get(store, registry),
            (None, None) => Ok(None),
        }
    }
}

struct MalformedAuth;

impl ProxiesJson {
    /// Returns the proxy variables that are set, each in upper and in lower case.
    fn env(&self) -> Vec<(String, String)> {
        let ProxiesJson { all_proxy, ftp_proxy, http_proxy, https_proxy, no_proxy } = self;
        let variables = [
            ("ALL_PROXY", all_proxy),
            ("FTP_PROXY", ftp_proxy),
            ("HTTP_PROXY", http_proxy),
            ("HTTPS_PROXY", https_proxy),
            ("NO_PROXY", no_proxy),
        ];
        let set = variables.into_iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
        let set = set.filter(|(_, value)| !value.is_empty());
        set.flat_map(|(name, value)| {
            [(name.to_owned(), value.clone()), (name.to_lowercase(), value.clone())]
        })
        .collect()
    }
}

impl AuthJson {
    fn login(self) -> Result<Option<LoginMethod>, MalformedAuth> {
        if !self.identity_token.is_empty() {
            return Ok(Some(LoginMethod::IdentityToken(Secret::new(self.identity_token))));
        }
        if !self.registry_token.is_empty() {
            return Ok(Some(LoginMethod::RegistryToken(Secret::new(self.registry_token))));
        }
        if self.auth.is_empty() {
            let login = LoginMethod::Password {
                username: self.username,
                password: Secret::new(self.password),
            };
            let is_empty =
                matches!(&login, LoginMethod::Password { username, .. } if username.is_empty());
            return Ok(Some(login).filter(|_| !is_empty));
        }
        let auth = self.auth.trim();
        let bytes = STANDARD.decode(auth).or_else(|_| STANDARD_NO_PAD.decode(auth));
        let text =
            String::from_utf8(bytes.map_err(|_| MalformedAuth)?).map_err(|_| MalformedAuth)?;
        let (username, password) = text.split_once(':').ok_or(MalformedAuth)?;
        // Docker pads passwords with NUL.
        let password = Secret::new(password.trim_matches('\0'));
        Ok(Some(LoginMethod::Password { username: username.to_owned(), password }))
    }
}

impl fmt::Debug for AuthJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Auth").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(text: &str, registry: &str, repository: &str) -> Option<LoginMethod> {
        let file = CredentialFile::parse(text).unwrap();
        file.find(registry, repository, &CredentialHelpers::default()).unwrap()
    }

    fn password(username: &str, password: &str) -> Option<LoginMethod> {
        let password = Secret::new(password);
        Some(LoginMethod::Password { username: username.to_owned(), password })
    }

    #[test]
    fn every_kind_of_login_is_parsed() {
        let text = r#"{
            "auths": {
                "https://index.docker.io/v1/": {"auth": "bWU6aHViOnB3"},
                "ghcr.io": {"auth": "bWU6Z2g", "email": "x"},
                "ghcr.io/team": {"username": "team", "password": "tp"},
                "a.example": {"auth": "bWU6", "identitytoken": "id"},
                "b.example": {"registrytoken": "reg"},
                "c.example": {},
                "d.example": null
            },
            "HttpHeaders": {"User-Agent": "x"}, "credHelpers": null, "credsStore": ""
        }"#
        .replace("\"d.example\": null", "\"d.example\": {\"auth\": null}");
        assert_eq!(find(&text, "docker.io", "library/redis"), password("me", "hub:pw"));
        assert_eq!(find(&text, "ghcr.io", "other/x"), password("me", "gh"));
        assert_eq!(find(&text, "ghcr.io", "team/x"), password("team", "tp"));
        assert_eq!(
            find(&text, "a.example", "x"),
            Some(LoginMethod::IdentityToken(Secret::new("id")))
        );
        assert_eq!(
            find(&text, "b.example", "x"),
            Some(LoginMethod::RegistryToken(Secret::new("reg")))
        );
        for none in ["c.example", "d.example", "e.example"] {
            assert_eq!(find(&text, none, "x"), None);
        }
    }

    #[test]
    fn proxies_are_variables_of_containers() {
        let text = r#"{"proxies": {
            "default": {"httpProxy": "http://p:1", "noProxy": "a,b", "ftpProxy": ""},
            "tcp://docker:2375": {"allProxy": "socks5://q:2"}
        }}"#;
        let env = CredentialFile::parse(text).unwrap().container_env;
        let expected = [
            ("HTTP_PROXY", "http://p:1"),
            ("http_proxy", "http://p:1"),
            ("NO_PROXY", "a,b"),
            ("no_proxy", "a,b"),
        ];
        assert_eq!(env, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }

    #[test]
    fn errors_name_the_position_without_secrets() {
        let error =
            CredentialFile::parse("{\n\"auths\": {\"a\": {\"auth\": \"s3cret\"}").unwrap_err();
        assert!(error.to_string().contains("line 2"), "{error}");
        let error = CredentialFile::parse(r#"{"auths": {"a": {"auth": "s3cret!"}}}"#).unwrap_err();
        assert!(error.to_string().contains("\"a\""), "{error}");
        let error = CredentialFile::parse(r#"{"auths": {"a": {"auth": ["s3cret"]}}}"#).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("s3cret"));
    }
}
