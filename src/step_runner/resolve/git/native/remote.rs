//! A repository on a server: redirects, passwords, and the two addresses that it is asked at.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ureq::Agent;
use ureq::http::{HeaderValue, Request, Uri};

use super::super::options::Git;
use super::super::repository::Repository;
use super::connections;
use super::exchange::{Answer, Body, send};
use super::failure::Failure;
use super::netrc;
use super::transfer::Transfer;
use crate::http::{MAX_REDIRECTS, Origin, TOO_MANY_REDIRECTS, redirect};

/// Where a repository says what it can, below its own address.
const ADVERTISEMENT: &str = "/info/refs?service=git-upload-pack";

/// More than a server has to say of its capabilities.
const MAX_ADVERTISEMENT_BYTES: u64 = 1 << 20;

/// A repository on a server.
pub(super) struct Remote<'a> {
    git: &'a Git<'a>,
    transfer: &'a Transfer,
    agent: Agent,
    /// The address, without a slash at its end.
    base: String,
    origin: Origin,
    /// Names and passwords for the server that have not been tried, the best one last.
    logins: Vec<(String, String)>,
    /// What the server gets since it asked for a password.
    authorization: Option<String>,
}

impl<'a> Remote<'a> {
    /// Finds the repository, and returns what the server says of it.
    pub(super) fn open(
        git: &'a Git<'a>,
        repository: &Repository,
        transfer: &'a Transfer,
    ) -> Result<(Self, Body), Failure> {
        let invalid = || Failure::Message("not an address of a web server".to_owned());
        let base = repository.url.trim_end_matches('/').to_owned();
        let uri: Uri = base.parse().map_err(|_| invalid())?;
        let origin = Origin::of(&uri).ok_or_else(invalid)?;
        let login = |name: &str, password: &str| (name.to_owned(), password.to_owned());
        let mut logins = Vec::new();
        // As git does: what the user wrote down comes first.
        if let Some(credential) = &repository.credential {
            logins.push(login(&credential.username, &credential.password));
        } else {
            let of_job = git.credential.as_ref().filter(|c| repository.is_at(&c.origin));
            logins.extend(of_job.map(|c| login(&c.username, &c.password)));
            logins.extend(netrc::login(git.env, &origin.host));
        }
        let agent = connections::agent(git, &origin)?;
        let mut remote = Remote { git, transfer, agent, base, origin, logins, authorization: None };
        let body = remote.find()?;
        Ok((remote, body))
    }

    fn find(&mut self) -> Result<Body, Failure> {
        for _ in 0..=MAX_REDIRECTS {
            let address = format!("{}{ADVERTISEMENT}", self.base);
            let answer = self.ask("GET", &address, Vec::new(), MAX_ADVERTISEMENT_BYTES)?;
            match answer.status {
                200 if is(&answer, "advertisement") => return Ok(answer.body),
                // A server that knows nothing of git, or a page for people to log in.
                200 => return Err(Failure::Outdated),
                301 | 302 | 303 | 307 | 308 => self.follow(&address, &answer)?,
                status => return Err(self.explain(status)),
            }
        }
        Err(Failure::Message(TOO_MANY_REDIRECTS.to_owned()))
    }

    /// Goes where the server says that the repository is. No password goes to another server.
    fn follow(&mut self, address: &str, answer: &Answer) -> Result<(), Failure> {
        let wrong = |reason| Failure::Message(format!("redirect not followed: {reason}"));
        let location = answer.headers.get("location").ok_or_else(|| wrong("no address"))?;
        let uri: Uri = address.parse().map_err(|_| wrong("not an address"))?;
        let (uri, origin) = redirect(&uri, &self.origin, location, |_| false).map_err(wrong)?;
        let uri = uri.to_string();
        let base = uri.strip_suffix(ADVERTISEMENT).ok_or_else(|| wrong("not to a repository"))?;
        self.base = base.trim_end_matches('/').to_owned();
        if origin != self.origin {
            // For good: who comes back was sent by somebody else.
            self.logins.clear();
            self.authorization = None;
            self.agent = connections::agent(self.git, &origin)?;
            self.origin = origin;
        }
        Ok(())
    }

    /// Sends a command and returns the answer to it, of at most so many bytes.
    pub(super) fn command(&mut self, body: &[u8], limit_bytes: u64) -> Result<Body, Failure> {
        let address = format!("{}/git-upload-pack", self.base);
        let answer = self.ask("POST", &address, body.to_vec(), limit_bytes)?;
        match answer.status {
            200 if is(&answer, "result") => Ok(answer.body),
            200 => Err(Failure::Message("the answer is not one of a git server".to_owned())),
            status => Err(self.explain(status)),
        }
    }

    /// Sends a request, again with a password if the server asks for one that there is.
    fn ask(
        &mut self,
        method: &str,
        address: &str,
        body: Vec<u8>,
        limit_bytes: u64,
    ) -> Result<Answer, Failure> {
        loop {
            let mut request = Request::builder().method(method).uri(address);
            request = request.header("git-protocol", "version=2");
            if method == "POST" {
                request = request.header("content-type", "application/x-git-upload-pack-request");
                request = request.header("accept", "application/x-git-upload-pack-result");
            }
            if let Some(authorization) = &self.authorization {
                request = request.header("authorization", authorization);
            }
            let request = request.body(body.clone()).map_err(|error| {
                // A password never stands in an error of a header.
                Failure::Message(format!("invalid request: {error}"))
            })?;
            let answer = send(&self.agent, request, limit_bytes, self.transfer)?;
            let asks =
                |value: &HeaderValue| value.as_bytes().to_ascii_lowercase().starts_with(b"basic");
            let is_asked =
                answer.status == 401 && answer.headers.get_all("www-authenticate").iter().any(asks);
            if !is_asked {
                return Ok(answer);
            }
            let Some((name, password)) = self.logins.pop() else { return Ok(answer) };
            let text = STANDARD.encode(format!("{name}:{password}"));
            self.authorization = Some(format!("Basic {text}"));
        }
    }

    fn explain(&self, status: u16) -> Failure {
        Failure::Message(match status {
            401 if self.authorization.is_some() => "the server rejects the password".to_owned(),
            401 => "the server asks for a password, and there is none for it".to_owned(),
            403 => "access denied".to_owned(),
            404 | 410 => "repository not found".to_owned(),
            status => format!("the server answers with HTTP status {status}"),
        })
    }
}

/// Returns whether an answer is one of git's.
fn is(answer: &Answer, kind: &str) -> bool {
    let kind = format!("application/x-git-upload-pack-{kind}");
    let found = answer.header("content-type").unwrap_or_default();
    found.split(';').next().is_some_and(|found| found.trim().eq_ignore_ascii_case(&kind))
}
