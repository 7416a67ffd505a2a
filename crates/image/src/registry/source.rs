//! A repository on one server, a registry or its mirror, and the client's authorization there.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ureq::http::Uri;

use super::budget::Budget;
use super::challenge::Challenge;
use super::endpoint::{self, RegistryEndpoint, RegistryRequest, RegistryResponse};
use super::error::RegistryError;
use super::token::{TokenRequest, TokenServer, basic, unauthorized_error};
use crate::credentials::LoginMethod;

/// Purpose of opening a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepositoryAccess {
    Pull,
    Push,
}

/// A repository on one server.
#[derive(Debug)]
pub struct RepositorySource {
    pub endpoint: Arc<RegistryEndpoint>,
    repository: String,
    login: Option<LoginMethod>,
    access: RepositoryAccess,
    /// Last value of `Authorization` that the server required.
    authorization: Mutex<Option<Arc<str>>>,
    used_login: AtomicBool,
    budget: Arc<Budget>,
}

impl RepositoryAccess {
    /// Returns the actions of a token's scope.
    fn actions(self) -> &'static str {
        match self {
            RepositoryAccess::Pull => "pull",
            RepositoryAccess::Push => "pull,push",
        }
    }

    fn name(self) -> &'static str {
        match self {
            RepositoryAccess::Pull => "pull",
            RepositoryAccess::Push => "push",
        }
    }
}

impl RepositorySource {
    pub(super) fn new(
        endpoint: Arc<RegistryEndpoint>,
        repository: String,
        login: Option<LoginMethod>,
        access: RepositoryAccess,
        budget: Arc<Budget>,
    ) -> Self {
        RepositorySource {
            endpoint,
            repository,
            login,
            access,
            authorization: Mutex::new(None),
            used_login: AtomicBool::new(false),
            budget,
        }
    }

    /// Returns the login if the server required it.
    pub(super) fn used_login(&self) -> Option<&LoginMethod> {
        self.login.as_ref().filter(|_| self.used_login.load(Ordering::Relaxed))
    }

    /// Requests a path below the repository, such as `manifests/TAG`. A response other than success
    /// is an error.
    pub(super) fn get(
        &self,
        path: &str,
        request: RegistryRequest<'_>,
    ) -> Result<RegistryResponse, RegistryError> {
        let uri = self.uri(path)?;
        let answer = self.send_authorized(|authorization| {
            self.endpoint.send(&uri, RegistryRequest { authorization, ..request })
        })?;
        match answer.response.status().as_u16() {
            200 | 206 => Ok(answer),
            _ => Err(self.failure(answer, path)),
        }
    }

    /// Returns the URL of a path below the repository.
    pub(super) fn uri(&self, path: &str) -> Result<Uri, RegistryError> {
        let origin = self.endpoint.origin()?;
        self.endpoint.uri(origin, &format!("/v2/{}/{path}", self.repository))
    }

    /// Sends a request with the last `Authorization`, and once more if the server requires another.
    pub(super) fn send_authorized(
        &self,
        mut send: impl FnMut(Option<&str>) -> Result<RegistryResponse, RegistryError>,
    ) -> Result<RegistryResponse, RegistryError> {
        let origin = self.endpoint.origin()?;
        let mut authorization = self.current_authorization();
        let mut is_refreshed = false;
        loop {
            let answer = send(authorization.as_deref())?;
            if answer.response.status() != 401 || answer.origin != *origin || is_refreshed {
                return Ok(answer);
            }
            let headers = answer.response.headers().get_all("www-authenticate");
            let challenge =
                Challenge::choose(headers.iter().filter_map(|value| value.to_str().ok()));
            authorization = Some(self.authorize(challenge, authorization.as_deref())?);
            is_refreshed = true;
        }
    }

    /// Returns the last value of `Authorization` that the server required.
    pub(super) fn current_authorization(&self) -> Option<Arc<str>> {
        self.authorization.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Obtains the value of `Authorization` to replace `refused`.
    ///
    /// One thread obtains a value at a time; threads that wait meanwhile use it too.
    fn authorize(
        &self,
        challenge: Option<Challenge>,
        refused: Option<&str>,
    ) -> Result<Arc<str>, RegistryError> {
        let mut current = self.authorization.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(other) = current.as_ref().filter(|current| Some(&***current) != refused) {
            return Ok(Arc::clone(other));
        }
        let login = self.login.as_ref();
        let denied = || unauthorized_error(&self.endpoint.name, &self.repository, login);
        let value = match (challenge, login) {
            (None, _) => {
                return Err(RegistryError::Challenge { registry: self.endpoint.name.clone() });
            }
            (_, Some(LoginMethod::RegistryToken(token))) => format!("Bearer {}", token.reveal()),
            (Some(Challenge::Basic), login) => login.and_then(basic).ok_or_else(denied)?,
            (Some(Challenge::Bearer { realm, service }), login) => {
                let server = TokenServer { realm: &realm, service: service.as_deref() };
                let endpoint = &*self.endpoint;
                let actions = self.access.actions();
                let request =
                    TokenRequest { endpoint, repository: &self.repository, actions, login };
                format!("Bearer {}", server.token(&request, &self.budget)?)
            }
        };
        if login.is_some() {
            self.used_login.store(true, Ordering::Relaxed);
        }
        // The same value would be rejected again.
        if Some(value.as_str()) == refused {
            return Err(denied());
        }
        let value: Arc<str> = value.into();
        *current = Some(Arc::clone(&value));
        Ok(value)
    }

    /// Converts an unsuccessful response to an error.
    pub(super) fn failure(&self, answer: RegistryResponse, path: &str) -> RegistryError {
        let registry = || self.endpoint.name.clone();
        let is_own = self.endpoint.origin().is_ok_and(|origin| *origin == answer.origin);
        let status = answer.response.status().as_u16();
        match status {
            401 if is_own => unauthorized_error(&registry(), &self.repository, self.login.as_ref()),
            403 if is_own && self.login.is_none() => {
                unauthorized_error(&registry(), &self.repository, None)
            }
            403 if is_own => RegistryError::Forbidden {
                registry: registry(),
                repository: self.repository.clone(),
                action: self.access.name(),
            },
            404 if is_own => {
                RegistryError::NotFound { registry: registry(), what: self.name(path) }
            }
            429 => RegistryError::RateLimited {
                registry: answer.origin.server(),
                retry_after: endpoint::retry_after(&answer.response),
            },
            _ => RegistryError::Status {
                server: answer.origin.server(),
                what: self.name(path),
                status,
                retry_after: endpoint::retry_after(&answer.response),
                message: endpoint::message(answer, &self.budget),
            },
        }
    }

    /// Returns a name for error messages of the content at a path, such as `blob DIGEST of
    /// REPOSITORY`.
    fn name(&self, path: &str) -> String {
        match path.split_once('/') {
            Some(("manifests", digest)) if digest.contains(':') => {
                format!("{}@{digest}", self.repository)
            }
            Some(("blobs", "uploads/")) => format!("an upload to {}", self.repository),
            Some(("tags", _)) => format!("the tags of {}", self.repository),
            Some(("manifests", tag)) => format!("{}:{tag}", self.repository),
            Some((_, digest)) => format!("blob {digest} of {}", self.repository),
            None => self.repository.clone(),
        }
    }
}
