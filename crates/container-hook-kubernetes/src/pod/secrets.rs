//! Values that must not be in a pod's manifest: variables and logins.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{EnvVar, EnvVarSource, Secret, SecretKeySelector};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::json;

use container_hook_job::request::RegistryLogin;

/// Server of logins that name none: Docker Hub, by the URL in Docker's `config.json`.
const DOCKER_HUB: &str = "https://index.docker.io/v1/";

/// Maximum size of a secret's values, below the API server's limit of 1 MiB.
const MAX_BYTES: usize = 768 << 10;

/// Values of variables, in secrets.
#[derive(Default)]
pub struct SecretValues {
    /// Values of each secret, and their size in bytes.
    secrets: Vec<(BTreeMap<String, ByteString>, usize)>,
    /// For each value, the index of its secret in `secrets`, and its key there.
    known: BTreeMap<String, (usize, String)>,
    count: usize,
}

/// A variable whose value is in one of the secrets.
pub struct SecretReference {
    variable: String,
    secret: usize,
    key: String,
}

impl SecretValues {
    /// Adds a value; equal values are stored once.
    pub fn add(&mut self, variable: &str, value: &str) -> SecretReference {
        let (secret, key) = match self.known.get(value) {
            Some((secret, key)) => (*secret, key.clone()),
            None => self.insert(value),
        };
        SecretReference { variable: variable.to_owned(), secret, key }
    }

    fn insert(&mut self, value: &str) -> (usize, String) {
        let key = format!("e{}", self.count);
        self.count += 1;
        let bytes = key.len() + value.len();
        let has_room = self.secrets.last().is_some_and(|(_, used)| used + bytes <= MAX_BYTES);
        if !has_room {
            self.secrets.push((BTreeMap::new(), 0));
        }
        let last = self.secrets.len() - 1;
        let (values, used) = &mut self.secrets[last];
        values.insert(key.clone(), ByteString(value.as_bytes().to_vec()));
        *used += bytes;
        self.known.insert(value.to_owned(), (last, key.clone()));
        (last, key)
    }

    /// Returns the secrets; `name` returns the name of each.
    pub fn secrets(&self, name: impl Fn(usize) -> String) -> Vec<Secret> {
        let secrets = self.secrets.iter().enumerate();
        secrets.map(|(at, (values, _))| secret(name(at), "Opaque", values.clone())).collect()
    }
}

impl SecretReference {
    /// Returns the variable; `name` returns the name of each secret. Kubernetes does not expand variables in
    /// its value.
    pub(super) fn variable(&self, name: impl Fn(usize) -> String) -> EnvVar {
        let selector =
            SecretKeySelector { name: name(self.secret), key: self.key.clone(), optional: None };
        EnvVar {
            name: self.variable.clone(),
            value: None,
            value_from: Some(EnvVarSource {
                secret_key_ref: Some(selector),
                ..EnvVarSource::default()
            }),
        }
    }
}

/// Logins for the images of a pod.
#[derive(Default)]
pub struct PullLogins {
    /// Logins by server. Several logins for one server are in separate maps: kubelets try all.
    maps: Vec<BTreeMap<String, (String, String)>>,
}

impl PullLogins {
    pub(super) fn add(&mut self, registry: &RegistryLogin) {
        let server = registry.server.as_deref().unwrap_or(DOCKER_HUB);
        let login = (registry.username.clone(), registry.password.expose().to_owned());
        let fits = |map: &BTreeMap<String, (String, String)>| {
            map.get(server).is_none_or(|known| *known == login)
        };
        match self.maps.iter_mut().find(|map| fits(map)) {
            Some(map) => {
                map.insert(server.to_owned(), login);
            }
            None => self.maps.push(BTreeMap::from([(server.to_owned(), login)])),
        }
    }

    /// Returns the secrets for `imagePullSecrets`: one, unless a server has several logins.
    pub fn secrets(&self, name: impl Fn(usize) -> String) -> Vec<Secret> {
        let secrets = self.maps.iter().enumerate().map(|(at, logins)| {
            let auths = logins.iter().map(|(server, (username, password))| {
                let auth = STANDARD.encode(format!("{username}:{password}"));
                let login = json!({"username": username, "password": password, "auth": auth});
                (server.clone(), login)
            });
            let auths: serde_json::Map<_, _> = auths.collect();
            let text = json!({ "auths": auths }).to_string();
            let key = ".dockerconfigjson".to_owned();
            let data = BTreeMap::from([(key, ByteString(text.into_bytes()))]);
            secret(name(at), "kubernetes.io/dockerconfigjson", data)
        });
        secrets.collect()
    }
}

/// Returns an immutable secret.
pub fn secret(name: String, kind: &str, data: BTreeMap<String, ByteString>) -> Secret {
    Secret {
        metadata: ObjectMeta { name: Some(name), ..ObjectMeta::default() },
        immutable: Some(true),
        type_: Some(kind.to_owned()),
        data: Some(data),
        string_data: None,
    }
}

#[cfg(test)]
mod tests {
    use container_hook_job::SecretText as Hidden;

    use super::*;

    fn login(user: &str, password: &str, server: Option<&str>) -> RegistryLogin {
        let server = server.map(str::to_owned);
        RegistryLogin { username: user.to_owned(), password: Hidden::new(password), server }
    }

    #[test]
    fn values_are_split_into_secrets_of_limited_size() {
        let mut values = SecretValues::default();
        let large = "x".repeat(MAX_BYTES / 2);
        let other = "y".repeat(MAX_BYTES / 2);
        let references = ["$(A)", "", &large, &other, "$(A)"].map(|value| values.add("V", value));
        let name = |at: usize| format!("s{at}");
        let secrets = values.secrets(name);
        let keys: Vec<Vec<_>> = secrets
            .iter()
            .map(|secret| secret.data.as_ref().unwrap().keys().cloned().collect())
            .collect();
        assert_eq!(keys, [vec!["e0", "e1", "e2"], vec!["e3"]]);
        let last = references[4].variable(name).value_from.unwrap().secret_key_ref.unwrap();
        assert_eq!((last.name.as_str(), last.key.as_str()), ("s0", "e0"));
        assert!(secrets.iter().all(|secret| secret.immutable == Some(true)));
    }

    #[test]
    fn logins_share_one_secret_unless_a_server_has_two() {
        let mut logins = PullLogins::default();
        logins.add(&login("u", "p:w\"x", Some("https://ghcr.io")));
        logins.add(&login("u", "p", None));
        logins.add(&login("u", "p", None));
        let text = |secret: &Secret| {
            let data = secret.data.as_ref().unwrap();
            serde_json::from_slice::<serde_json::Value>(&data[".dockerconfigjson"].0).unwrap()
        };
        let secrets = logins.secrets(|at| at.to_string());
        let ghcr = json!({"username": "u", "password": "p:w\"x", "auth": "dTpwOncieA=="});
        let hub = json!({"username": "u", "password": "p", "auth": "dTpw"});
        let auths = json!({"auths": {"https://ghcr.io": ghcr, DOCKER_HUB: hub}});
        assert_eq!(secrets.iter().map(text).collect::<Vec<_>>(), [auths]);
        logins.add(&login("other", "p", None));
        assert_eq!(logins.secrets(|at| at.to_string()).len(), 2);
    }
}
