//! Credentials for git hosts.

use std::fmt;

use super::super::context::Caller;

/// User name for a job token.
const JOB_USER: &str = "gitlab-ci-token";

/// Credentials for one git host.
#[derive(Clone, PartialEq, Eq)]
pub struct Credential {
    /// Scheme, host and port: `https://gitlab.com`, `https://gitlab.example:8443`.
    pub origin: String,
    pub username: String,
    pub password: String,
}

impl Credential {
    /// Returns the credentials of a CI job for its GitLab instance, if it has a token. For HTTPS only.
    pub fn of_job(caller: &Caller<'_>) -> Option<Self> {
        let host = caller.variable("CI_SERVER_HOST")?;
        let password = caller.variable("CI_JOB_TOKEN")?.to_owned();
        let port = caller.variable("CI_SERVER_PORT").filter(|port| *port != "443");
        let origin = match port {
            Some(port) => format!("https://{host}:{port}"),
            None => format!("https://{host}"),
        };
        Some(Credential { origin, username: JOB_USER.to_owned(), password })
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Credential { origin, username, .. } = self;
        write!(f, "Credential({username:?} at {origin:?})")
    }
}
