//! The file in which buildah finds logins, as `docker login` writes it.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;

use crate::image::{Credentials, HelperError, Login, Reference, RegistryClient};

/// Logins as `docker login` writes them.
#[derive(Debug, Serialize)]
struct AuthFile {
    auths: BTreeMap<String, Auth>,
}

#[derive(Debug, Serialize)]
struct Auth {
    auth: String,
    #[serde(skip_serializing_if = "str::is_empty")]
    identitytoken: String,
}

/// Returns the logins for an image and for its mirrors, as the file that `docker login` writes; none if
/// nobody has one. The file has one login for each registry.
pub(super) fn auth_file(
    client: &RegistryClient,
    credentials: &Credentials,
    image: &Reference,
) -> Result<Option<Vec<u8>>, HelperError> {
    let registries = &client.options().registries;
    let mirrors = registries.get(image.registry()).map_or(&[][..], |registry| &registry.mirrors);
    let mirrors = mirrors.iter().map(|mirror| {
        let (host, path) = mirror.split_once('/').unwrap_or((mirror, ""));
        (host, format!("{path}/{}", image.repository()).trim_start_matches('/').to_owned())
    });
    let own = (image.registry(), image.repository().to_owned());
    let mut auths = BTreeMap::new();
    for (host, repository) in mirrors.chain([own]) {
        let login = credentials.find(host, &repository)?;
        if let Some(auth) = login.as_ref().and_then(Auth::of) {
            auths.insert(host.to_owned(), auth);
        }
    }
    let file = AuthFile { auths };
    Ok((!file.auths.is_empty()).then(|| serde_json::to_vec(&file).expect("strings are JSON")))
}

impl Auth {
    /// Returns a login as it is written; none if it cannot be.
    fn of(login: &Login) -> Option<Self> {
        let (pair, token) = match login {
            Login::Password { username, password } => {
                (format!("{username}:{}", password.reveal()), "")
            }
            Login::IdentityToken(token) => ("<token>:".to_owned(), token.reveal()),
            // There is no place for it.
            Login::RegistryToken(_) => return None,
        };
        Some(Auth { auth: STANDARD.encode(pair), identitytoken: token.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{ClientOptions, Credential, RegistryOptions, Secret};

    fn client() -> RegistryClient {
        let mirrors = vec!["mirror.example/hub".to_owned(), "localhost:5000".to_owned()];
        let hub = RegistryOptions { mirrors, ..RegistryOptions::default() };
        let insecure = RegistryOptions { insecure: true, ..RegistryOptions::default() };
        let mut options = ClientOptions::default();
        options.registries = [("docker.io", hub), ("mirror.example", insecure)]
            .map(|(name, options)| (name.to_owned(), options))
            .into();
        RegistryClient::new(options).unwrap()
    }

    #[test]
    fn logins_are_those_of_the_image_and_of_its_mirrors() {
        let login = |name: &str| Login::Password {
            username: name.to_owned(),
            password: Secret::new("secret"),
        };
        let credentials = Credentials::new(vec![
            Credential::new("docker.io", login("hub")),
            Credential::new("mirror.example/hub/library", login("mirror")),
            Credential::new("ghcr.io", Login::IdentityToken(Secret::new("token"))),
        ]);
        let logins = |image: &str| {
            let logins = auth_file(&client(), &credentials, &image.parse().unwrap()).unwrap();
            logins.map(|text| String::from_utf8(text).unwrap())
        };
        assert_eq!(
            logins("alpine").as_deref(),
            Some(
                r#"{"auths":{"docker.io":{"auth":"aHViOnNlY3JldA=="},"mirror.example":{"auth":"bWlycm9yOnNlY3JldA=="}}}"#
            )
        );
        assert_eq!(
            logins("ghcr.io/a/b").as_deref(),
            Some(r#"{"auths":{"ghcr.io":{"auth":"PHRva2VuPjo=","identitytoken":"token"}}}"#)
        );
        assert_eq!(logins("quay.io/a/b"), None);
    }
}
