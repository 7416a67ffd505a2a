//! Requests tokens from the token servers of registries, with a login or without.

use std::io::Read as _;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use ureq::http::Uri;

use super::budget::Budget;
use super::endpoint::{RegistryEndpoint, RegistryRequest};
use super::error::RegistryError;
use crate::credentials::LoginMethod;
use crate::http::HttpOrigin;

/// Size limit of a response with a token.
const MAX_ANSWER_BYTES: u64 = 1 << 20;

/// Token server of a registry.
pub struct TokenServer<'a> {
    pub realm: &'a str,
    pub service: Option<&'a str>,
}

/// Server, repository and actions of a token, and the login to request it with.
pub struct TokenRequest<'a> {
    pub endpoint: &'a RegistryEndpoint,
    pub repository: &'a str,
    /// Actions of the scope: `pull`, or `pull,push`.
    pub actions: &'a str,
    pub login: Option<&'a LoginMethod>,
}

#[derive(Deserialize)]
struct TokenResponse {
    #[serde(default)]
    token: Option<String>,
    #[serde(default)]
    access_token: Option<String>,
}

impl TokenServer<'_> {
    /// Requests a token for the given actions only: the scope that the registry suggests is
    /// ignored.
    pub fn token(
        &self,
        request: &TokenRequest<'_>,
        budget: &Arc<Budget>,
    ) -> Result<String, RegistryError> {
        let TokenRequest { endpoint, repository, actions, login } = *request;
        let reject = |reason| self.reject(endpoint, reason);
        let realm: Uri = self
            .realm
            .parse()
            .map_err(|_| reject("expected an http or https URL without a user name or password"))?;
        let origin = HttpOrigin::of(&realm).ok_or_else(|| {
            reject("expected an http or https URL without a user name or password")
        })?;
        if endpoint.origin()?.is_https && !origin.is_https {
            return Err(reject("it is not encrypted, but the registry is"));
        }
        let scope = format!("repository:{repository}:{actions}");
        let mut form = Vec::new();
        form.extend(self.service.map(|service| ("service", service)));
        form.push(("scope", scope.as_str()));
        let answer = if let Some(LoginMethod::IdentityToken(token)) = login {
            form.push(("grant_type", "refresh_token"));
            form.push(("client_id", "oci-hooks"));
            form.push(("refresh_token", token.reveal()));
            endpoint.post(&realm, &encode(&form))?
        } else {
            let separator = if realm.query().is_some() { '&' } else { '?' };
            let uri = format!("{realm}{separator}{}", encode(&form));
            let uri = uri.parse().map_err(|_| {
                reject("expected an http or https URL without a user name or password")
            })?;
            let authorization = login.and_then(basic);
            let authorization = authorization.as_deref();
            endpoint.send(&uri, RegistryRequest { authorization, ..RegistryRequest::default() })?
        };
        match answer.response.status().as_u16() {
            200 => {}
            400 | 401 | 403 => return Err(unauthorized_error(&endpoint.name, repository, login)),
            429 => {
                return Err(RegistryError::RateLimited {
                    registry: answer.origin.server(),
                    retry_after: super::endpoint::retry_after(&answer.response),
                });
            }
            status => {
                return Err(RegistryError::Status {
                    server: answer.origin.server(),
                    what: "a token".to_owned(),
                    status,
                    retry_after: super::endpoint::retry_after(&answer.response),
                    message: super::endpoint::message(answer, budget),
                });
            }
        }
        let server = answer.origin.server();
        let mut bytes = Vec::new();
        let body = budget.watch(server.clone(), answer.response.into_body().into_reader());
        body.take(MAX_ANSWER_BYTES)
            .read_to_end(&mut bytes)
            .map_err(|error| super::endpoint::explain_io(&endpoint.name, server, error))?;
        let token: Option<TokenResponse> = serde_json::from_slice(&bytes).ok();
        let token = token.and_then(|token| token.token.or(token.access_token));
        let token = token
            .filter(|token| !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic()));
        token.ok_or_else(|| reject("no token in its response"))
    }

    fn reject(&self, endpoint: &RegistryEndpoint, reason: &'static str) -> RegistryError {
        let realm = self.realm.chars().take(200).collect();
        RegistryError::TokenServer { registry: endpoint.name.clone(), realm, reason }
    }
}

/// Returns the value of `Authorization` for a login by password; `None` for a token.
pub fn basic(login: &LoginMethod) -> Option<String> {
    let LoginMethod::Password { username, password } = login else { return None };
    let text = format!("{username}:{}", password.reveal());
    Some(format!("Basic {}", STANDARD.encode(text)))
}

/// Returns the error for insufficient credentials.
pub fn unauthorized_error(
    registry: &str,
    repository: &str,
    login: Option<&LoginMethod>,
) -> RegistryError {
    RegistryError::Unauthorized {
        registry: registry.to_owned(),
        repository: repository.to_owned(),
        hint: match login {
            None => "check the name, or give credentials for the registry",
            Some(_) => "the given credentials do not suffice: check them and the name",
        },
    }
}

/// Encodes a form as the query of a URL.
fn encode(form: &[(&str, &str)]) -> String {
    let mut text = String::new();
    for (key, value) in form {
        if !text.is_empty() {
            text.push('&');
        }
        text.push_str(key);
        text.push('=');
        for byte in value.bytes() {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                    text.push(char::from(byte));
                }
                // Registries expect these two unescaped.
                b':' | b'/' => text.push(char::from(byte)),
                other => text.push_str(&format!("%{other:02X}")),
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn form_fields_are_percent_encoded() {
        let form = encode(&[("scope", "repository:a/b:pull"), ("service", "a b&c=d+é")]);
        assert_eq!(form, "scope=repository:a/b:pull&service=a%20b%26c%3Dd%2B%C3%A9");
    }
}
