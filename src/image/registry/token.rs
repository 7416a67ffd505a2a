//! Token servers: where a registry sends us for a permission to read or write.

use std::io::Read as _;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use ureq::http::Uri;

use super::budget::Budget;
use super::endpoint::{Endpoint, Request};
use super::error::RegistryError;
use crate::http::Origin;
use crate::image::credentials::Login;

/// More than any token needs.
const MAX_ANSWER_BYTES: u64 = 1 << 20;

/// A token server, as a registry names it.
pub struct TokenServer<'a> {
    pub realm: &'a str,
    pub service: Option<&'a str>,
}

/// Who wants a token, and for what.
pub struct Asker<'a> {
    pub endpoint: &'a Endpoint,
    pub repository: &'a str,
    /// What shall be done there: `pull`, or `pull,push`.
    pub actions: &'a str,
    pub login: Option<&'a Login>,
}

#[derive(Deserialize)]
struct Token {
    #[serde(default)]
    token: Option<String>,
    #[serde(default)]
    access_token: Option<String>,
}

impl TokenServer<'_> {
    /// Asks for a token with which the named actions can be done, and nothing else: what the registry
    /// suggests to ask for does not count.
    pub fn token(&self, asker: &Asker<'_>, budget: &Arc<Budget>) -> Result<String, RegistryError> {
        let Asker { endpoint, repository, actions, login } = *asker;
        let reject = |reason| self.reject(endpoint, reason);
        let realm: Uri = self.realm.parse().map_err(|_| reject("not an address"))?;
        let origin = Origin::of(&realm)
            .ok_or_else(|| reject("not an address of a web server without a login in it"))?;
        if endpoint.origin()?.is_https && !origin.is_https {
            return Err(reject("that is not encrypted, and the registry itself is"));
        }
        let scope = format!("repository:{repository}:{actions}");
        let mut form = Vec::new();
        form.extend(self.service.map(|service| ("service", service)));
        form.push(("scope", scope.as_str()));
        let answer = if let Some(Login::IdentityToken(token)) = login {
            form.push(("grant_type", "refresh_token"));
            form.push(("client_id", "oci-hooks"));
            form.push(("refresh_token", token.reveal()));
            endpoint.post(&realm, &encode(&form))?
        } else {
            let separator = if realm.query().is_some() { '&' } else { '?' };
            let uri = format!("{realm}{separator}{}", encode(&form));
            let uri = uri.parse().map_err(|_| reject("not an address"))?;
            let authorization = login.and_then(basic);
            let authorization = authorization.as_deref();
            endpoint.send(&uri, Request { authorization, ..Request::default() })?
        };
        match answer.response.status().as_u16() {
            200 => {}
            400 | 401 | 403 => return Err(unauthorized(&endpoint.name, repository, login)),
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
        let token: Option<Token> = serde_json::from_slice(&bytes).ok();
        let token = token.and_then(|token| token.token.or(token.access_token));
        let token = token.filter(|token| !token.is_empty() && token.bytes().all(is_visible));
        token.ok_or_else(|| reject("it gives no token"))
    }

    fn reject(&self, endpoint: &Endpoint, reason: &'static str) -> RegistryError {
        let realm = self.realm.chars().take(200).collect();
        RegistryError::TokenServer { registry: endpoint.name.clone(), realm, reason }
    }
}

/// Returns the value of `Authorization` for a login by password.
pub fn basic(login: &Login) -> Option<String> {
    let Login::Password { username, password } = login else { return None };
    let text = format!("{username}:{}", password.reveal());
    Some(format!("Basic {}", STANDARD.encode(text)))
}

/// Returns the error for a login that does not suffice.
pub fn unauthorized(registry: &str, repository: &str, login: Option<&Login>) -> RegistryError {
    RegistryError::Unauthorized {
        registry: registry.to_owned(),
        repository: repository.to_owned(),
        hint: match login {
            None => "check the name, or give credentials for it",
            Some(_) => "the credentials that were given for it do not suffice",
        },
    }
}

fn is_visible(byte: u8) -> bool {
    byte.is_ascii_graphic()
}

/// Writes a form as the query of an address.
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
                // Registries want to see these two as they are.
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
    fn forms_are_encoded() {
        let form = encode(&[("scope", "repository:a/b:pull"), ("service", "a b&c=d+é")]);
        assert_eq!(form, "scope=repository:a/b:pull&service=a%20b%26c%3Dd%2B%C3%A9");
    }
}
