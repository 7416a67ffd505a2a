//! A repository on one server, and our permission to read it there.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ureq::http::Uri;

use super::budget::Budget;
use super::challenge::Challenge;
use super::endpoint::{self, Answer, Endpoint, Request};
use super::error::RegistryError;
use super::token::{Asker, TokenServer, basic, unauthorized};
use crate::image::credentials::Login;

/// What a repository is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Pull,
    /// Also to read what is there.
    Push,
}

/// A repository on one server.
#[derive(Debug)]
pub struct Source {
    pub endpoint: Arc<Endpoint>,
    repository: String,
    login: Option<Login>,
    access: Access,
    /// The value of `Authorization` that the server wanted last.
    authorization: Mutex<Option<Arc<str>>>,
    used_login: AtomicBool,
    budget: Arc<Budget>,
}

impl Access {
    /// Returns the actions of a token's scope.
    fn actions(self) -> &'static str {
        match self {
            Access::Pull => "pull",
            Access::Push => "pull,push",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Access::Pull => "pull",
            Access::Push => "push",
        }
    }
}

impl Source {
    pub(super) fn new(
        endpoint: Arc<Endpoint>,
        repository: String,
        login: Option<Login>,
        access: Access,
        budget: Arc<Budget>,
    ) -> Self {
        Source {
            endpoint,
            repository,
            login,
            access,
            authorization: Mutex::new(None),
            used_login: AtomicBool::new(false),
            budget,
        }
    }

    /// Returns the login that the server wanted to see, if it wanted one.
    pub(super) fn used_login(&self) -> Option<&Login> {
        self.login.as_ref().filter(|_| self.used_login.load(Ordering::Relaxed))
    }

    /// Asks for something below the repository, such as `manifests/TAG`, and returns an answer
    /// that has it.
    pub(super) fn get(&self, path: &str, request: Request<'_>) -> Result<Answer, RegistryError> {
        let uri = self.uri(path)?;
        let answer = self.authorized(|authorization| {
            self.endpoint.send(&uri, Request { authorization, ..request })
        })?;
        match answer.response.status().as_u16() {
            200 | 206 => Ok(answer),
            _ => Err(self.failure(answer, path)),
        }
    }

    /// Returns the address of something below the repository.
    pub(super) fn uri(&self, path: &str) -> Result<Uri, RegistryError> {
        let origin = self.endpoint.origin()?;
        self.endpoint.uri(origin, &format!("/v2/{}/{path}", self.repository))
    }

    /// Asks with the `Authorization` that the server wanted last, and once more if it wants another.
    pub(super) fn authorized(
        &self,
        mut send: impl FnMut(Option<&str>) -> Result<Answer, RegistryError>,
    ) -> Result<Answer, RegistryError> {
        let origin = self.endpoint.origin()?;
        let mut authorization = self.current();
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

    /// Returns the value of `Authorization` that the server wanted last.
    pub(super) fn current(&self) -> Option<Arc<str>> {
        self.authorization.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Obtains what the server wants to see instead of `refused`.
    ///
    /// One thread does it at a time; the others take what it got.
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
        let denied = || unauthorized(&self.endpoint.name, &self.repository, login);
        let value = match (challenge, login) {
            (None, _) => {
                return Err(RegistryError::Challenge { registry: self.endpoint.name.clone() });
            }
            (_, Some(Login::RegistryToken(token))) => format!("Bearer {}", token.reveal()),
            (Some(Challenge::Basic), login) => login.and_then(basic).ok_or_else(denied)?,
            (Some(Challenge::Bearer { realm, service }), login) => {
                let server = TokenServer { realm: &realm, service: service.as_deref() };
                let endpoint = &*self.endpoint;
                let actions = self.access.actions();
                let asker = Asker { endpoint, repository: &self.repository, actions, login };
                format!("Bearer {}", server.token(&asker, &self.budget)?)
            }
        };
        if login.is_some() {
            self.used_login.store(true, Ordering::Relaxed);
        }
        // The same again would be refused again.
        if Some(value.as_str()) == refused {
            return Err(denied());
        }
        let value: Arc<str> = value.into();
        *current = Some(Arc::clone(&value));
        Ok(value)
    }

    /// Makes an error of an answer that does not have what was asked for.
    pub(super) fn failure(&self, answer: Answer, path: &str) -> RegistryError {
        let registry = || self.endpoint.name.clone();
        let is_own = self.endpoint.origin().is_ok_and(|origin| *origin == answer.origin);
        let status = answer.response.status().as_u16();
        match status {
            401 if is_own => unauthorized(&registry(), &self.repository, self.login.as_ref()),
            403 if is_own && self.login.is_none() => {
                unauthorized(&registry(), &self.repository, None)
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

    /// Returns how people call what is at a path.
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
