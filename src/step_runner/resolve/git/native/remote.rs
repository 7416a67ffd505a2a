//! A repository on a server: redirects, passwords, and the two addresses that it is asked at.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ureq::http::{HeaderValue, Request, Uri};
use ureq::tls::RootCerts;
use ureq::{Agent, Proxy};

use super::super::options::Git;
use super::super::repository::Repository;
use super::exchange::{Answer, Body, send};
use super::transfer::{Failure, Transfer};
use crate::http::{
    AgentOptions, MAX_CERTIFICATES_BYTES, MAX_REDIRECTS, Origin, TOO_MANY_REDIRECTS, certificates,
    config, host_roots, is_direct, proxy_at, redacted, redirect, tls,
};
use crate::sys::fs::read_bounded;

/// Where a repository says what it can, below its own address.
const ADVERTISEMENT: &str = "/info/refs?service=git-upload-pack";

/// More than a server has to say of its capabilities.
const MAX_ADVERTISEMENT_BYTES: u64 = 1 << 20;

/// A repository on a server.
pub struct Remote<'a> {
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
            logins.extend(netrc_login(git.env, &origin.host));
        }
        let agent = agent(git, &origin)?;
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
            self.agent = agent(self.git, &origin)?;
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

/// How long a server may take until a connection stands, and how long it may then be silent.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Files with certificates of authorities, the first one that is named counts.
const CERTIFICATES: [&str; 3] = ["GIT_SSL_CAINFO", "CURL_CA_BUNDLE", "SSL_CERT_FILE"];

/// Some servers answer nobody but git.
const USER_AGENT: &str = concat!("git/step-runner-", env!("CARGO_PKG_VERSION"));

/// Returns what talks to a server.
fn agent(git: &Git<'_>, origin: &Origin) -> Result<Agent, Failure> {
    let env = git.env;
    Ok(Agent::new_with_config(config(AgentOptions {
        user_agent: USER_AGENT,
        proxy: proxy(env, origin)?,
        tls: tls(roots(env, git.fallback_ca_file)?, false),
        connect_timeout: CONNECT_TIMEOUT,
        idle_timeout: IDLE_TIMEOUT,
    })))
}

/// Returns the first of these variables that is not empty.
fn any<'a>(env: &'a BTreeMap<String, String>, names: &[&str]) -> Option<&'a str> {
    let values = names.iter().filter_map(|name| env.get(*name));
    values.map(String::as_str).find(|value| !value.is_empty())
}

fn proxy(env: &BTreeMap<String, String>, origin: &Origin) -> Result<Option<Proxy>, Failure> {
    // Not `HTTP_PROXY`, which curl does not read either: a web server may have made it of a header.
    let names: &[&str] = match origin.is_https {
        true => &["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"],
        false => &["http_proxy", "all_proxy", "ALL_PROXY"],
    };
    let Some(address) = any(env, names) else { return Ok(None) };
    let direct = any(env, &["no_proxy", "NO_PROXY"]).unwrap_or_default();
    let direct: Vec<_> = direct.split(',').map(|entry| entry.trim().to_owned()).collect();
    if is_direct(origin, &direct) {
        return Ok(None);
    }
    let unknown = || Failure::Message(format!("invalid proxy address {:?}", redacted(address)));
    proxy_at(address).map(Some).ok_or_else(unknown)
}

fn roots(env: &BTreeMap<String, String>, fallback: Option<&Path>) -> Result<RootCerts, Failure> {
    let Some(path) = any(env, &CERTIFICATES) else {
        return Ok(host_roots(|| read_bounded(fallback?, MAX_CERTIFICATES_BYTES).ok()));
    };
    let wrong = |error: &dyn std::error::Error| {
        Failure::Message(format!("cannot read certificates from {path:?}: {error}"))
    };
    let pem = read_bounded(Path::new(path), MAX_CERTIFICATES_BYTES).map_err(|e| wrong(&e))?;
    let found = certificates(&pem).map_err(|error| wrong(&error))?;
    Ok(RootCerts::new_with_certs(&found))
}

/// More than anybody's file has.
const MAX_BYTES: u64 = 1 << 20;

/// Returns name and password for a host; none if there is no readable file or nothing for the host in it.
fn netrc_login(env: &BTreeMap<String, String>, host: &str) -> Option<(String, String)> {
    let set = |name: &str| env.get(name).filter(|value| !value.is_empty());
    let path = match set("NETRC") {
        Some(path) => PathBuf::from(path),
        None => Path::new(set("HOME")?).join(".netrc"),
    };
    // As curl does: whoever cannot read it has none.
    let text = String::from_utf8(read_bounded(&path, MAX_BYTES).ok()?).ok()?;
    find(&text, host)
}

fn find(text: &str, host: &str) -> Option<(String, String)> {
    let mut words = words(text).into_iter();
    let (mut is_meant, mut login, mut password) = (false, None, None);
    while let Some(word) = words.next() {
        match word.as_str() {
            "machine" | "default" if is_meant => break,
            "machine" => {
                is_meant = bare(&words.next()?).eq_ignore_ascii_case(bare(host));
            }
            "default" => is_meant = true,
            "login" if is_meant => login = words.next(),
            "password" if is_meant => password = words.next(),
            "login" | "password" | "account" => drop(words.next()),
            _ => {}
        }
    }
    Some((login.filter(|_| is_meant).unwrap_or_default(), password?))
}

/// Returns a host without the brackets of an IPv6 address.
fn bare(host: &str) -> &str {
    host.trim_matches(['[', ']'])
}

/// Splits the text into words, which may be quoted, without comments and macros.
fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut in_macro = false;
    for line in text.lines() {
        let line = line.trim();
        if in_macro {
            in_macro = !line.is_empty();
            continue;
        }
        if line.starts_with('#') {
            continue;
        }
        let mut chars = line.chars().peekable();
        while let Some(&c) = chars.peek() {
            if c.is_whitespace() {
                chars.next();
                continue;
            }
            let word = if c == '"' {
                chars.next();
                quoted(&mut chars)
            } else {
                let mut word = String::new();
                while let Some(c) = chars.next_if(|c| !c.is_whitespace()) {
                    word.push(c);
                }
                word
            };
            if word == "macdef" {
                in_macro = true;
                break;
            }
            words.push(word);
        }
    }
    words
}

fn quoted(chars: &mut impl Iterator<Item = char>) -> String {
    let mut word = String::new();
    while let Some(c) = chars.next() {
        match c {
            '"' => break,
            '\\' => word.extend(chars.next().map(|c| match c {
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
                c => c,
            })),
            c => word.push(c),
        }
    }
    word
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxies_are_those_of_the_scheme_and_not_for_everybody() {
        let env = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        let host = |env: &BTreeMap<String, String>, url: &str| {
            let origin = Origin::of(&url.parse().unwrap()).unwrap();
            proxy(env, &origin).unwrap().map(|proxy| proxy.host().to_owned())
        };
        let both = env(&[
            ("HTTPS_PROXY", "http://a:1"),
            ("http_proxy", "http://u:p@b:1"),
            ("HTTP_PROXY", "http://c:1"),
            ("no_proxy", "near.example, 10.0.0.0/8"),
        ]);
        assert_eq!(host(&both, "https://far.example/").as_deref(), Some("a"));
        assert_eq!(host(&both, "http://far.example/").as_deref(), Some("b"));
        for near in ["https://near.example/", "https://10.1.2.3/", "http://localhost/"] {
            assert_eq!(host(&both, near), None, "{near}");
        }
        let all = env(&[("ALL_PROXY", "http://all:1"), ("https_proxy", "")]);
        assert_eq!(host(&all, "https://far.example/").as_deref(), Some("all"));
        assert_eq!(host(&env(&[("HTTP_PROXY", "http://c:1")]), "http://far.example/"), None);
    }

    #[test]
    fn a_named_file_without_certificates_is_an_error() {
        let env = BTreeMap::from([("SSL_CERT_FILE".to_owned(), "/no/such/file".to_owned())]);
        let Err(Failure::Message(message)) = roots(&env, None) else { panic!("it is not there") };
        assert!(message.contains("/no/such/file"), "{message}");
    }

    #[test]
    fn the_login_of_a_host_is_found() {
        let text = "# machine host login no password no\n\
                    machine other login o password secret\n\
                    macdef init\nmachine host login m password m\n\n\
                    machine Host\n  login \"a b\"\n  account x\n  password \"p\\\"w\\\\\"\n\
                    machine ::1 login six password p6\n\
                    machine host login later password later\n\
                    machine named password alone\n\
                    default login d password dp";
        let find = |host| find(text, host);
        let pair = |login: &str, password: &str| Some((login.to_owned(), password.to_owned()));
        assert_eq!(find("host"), pair("a b", "p\"w\\"));
        assert_eq!(find("other"), pair("o", "secret"));
        assert_eq!(find("[::1]"), pair("six", "p6"));
        assert_eq!(find("named"), pair("", "alone"));
        assert_eq!(find("unknown"), pair("d", "dp"));
        assert_eq!(super::find("machine a login b", "a"), None);
        assert_eq!(super::find("machine a login b password c", "x"), None);
        assert_eq!(super::find("machine", "x"), None);
        assert_eq!(super::find("\"machine a password", "a"), None);
    }
}
