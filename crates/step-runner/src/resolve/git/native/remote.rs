//! A repository on an HTTP server: redirects, passwords, and its two URLs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use oci_hooks_files::fs::read_bounded;
use oci_hooks_image::http::{
    AgentOptions, HttpOrigin, MAX_CERTIFICATES_BYTES, MAX_REDIRECTS, TOO_MANY_REDIRECTS,
    certificates, config, host_roots, is_direct, proxy_at, redact_url, redirect, tls,
};
use ureq::http::{HeaderValue, Request, Uri};
use ureq::tls::RootCerts;
use ureq::{Agent, Proxy};

use super::super::options::GitFetcher;
use super::super::repository::GitRepository;
use super::exchange::{AnswerBody, HttpAnswer, send};
use super::transfer::{GitTransfer, TransferError};

/// Path of the server's capabilities, below the URL of the repository.
const ADVERTISEMENT: &str = "/info/refs?service=git-upload-pack";

/// Size limit of the list of capabilities.
const MAX_ADVERTISEMENT_BYTES: u64 = 1 << 20;

/// A repository on a server.
pub struct GitRemote<'a> {
    git: &'a GitFetcher<'a>,
    transfer: &'a GitTransfer,
    agent: Agent,
    /// URL of the repository, without a trailing slash.
    base: String,
    origin: HttpOrigin,
    /// User names and passwords that have not been tried, the preferred one last.
    logins: Vec<(String, String)>,
    /// `Authorization` header, once the server has asked for a password.
    authorization: Option<String>,
}

impl<'a> GitRemote<'a> {
    /// Finds the repository, and returns the server's capabilities.
    pub(super) fn open(
        git: &'a GitFetcher<'a>,
        repository: &GitRepository,
        transfer: &'a GitTransfer,
    ) -> Result<(Self, AnswerBody), TransferError> {
        let invalid = || TransferError::Message("not an address of a web server".to_owned());
        let base = repository.url.trim_end_matches('/').to_owned();
        let uri: Uri = base.parse().map_err(|_| invalid())?;
        let origin = HttpOrigin::of(&uri).ok_or_else(invalid)?;
        let login = |name: &str, password: &str| (name.to_owned(), password.to_owned());
        let mut logins = Vec::new();
        // As in git, a password in the URL takes precedence.
        if let Some(credential) = &repository.credential {
            logins.push(login(&credential.username, &credential.password));
        } else {
            let of_job = git.credential.as_ref().filter(|c| repository.is_at(&c.origin));
            logins.extend(of_job.map(|c| login(&c.username, &c.password)));
            logins.extend(netrc_login(git.env, &origin.host));
        }
        let agent = agent(git, &origin)?;
        let mut remote =
            GitRemote { git, transfer, agent, base, origin, logins, authorization: None };
        let body = remote.find()?;
        Ok((remote, body))
    }

    fn find(&mut self) -> Result<AnswerBody, TransferError> {
        for _ in 0..=MAX_REDIRECTS {
            let address = format!("{}{ADVERTISEMENT}", self.base);
            let answer = self.ask("GET", &address, Vec::new(), MAX_ADVERTISEMENT_BYTES)?;
            match answer.status {
                200 if is(&answer, "advertisement") => return Ok(answer.body),
                // A server without support for git, or a login page.
                200 => return Err(TransferError::Outdated),
                301 | 302 | 303 | 307 | 308 => self.follow(&address, &answer)?,
                status => return Err(self.explain(status)),
            }
        }
        Err(TransferError::Message(TOO_MANY_REDIRECTS.to_owned()))
    }

    /// Follows a redirect of the repository. No password is sent to another server.
    fn follow(&mut self, address: &str, answer: &HttpAnswer) -> Result<(), TransferError> {
        let wrong = |reason| TransferError::Message(format!("redirect not followed: {reason}"));
        let location = answer.headers.get("location").ok_or_else(|| wrong("no address"))?;
        let uri: Uri = address.parse().map_err(|_| wrong("not an address"))?;
        let (uri, origin) = redirect(&uri, &self.origin, location, |_| false).map_err(wrong)?;
        let uri = uri.to_string();
        let base = uri.strip_suffix(ADVERTISEMENT).ok_or_else(|| wrong("not to a repository"))?;
        self.base = base.trim_end_matches('/').to_owned();
        if origin != self.origin {
            // Not restored by a redirect back, which the other server has chosen.
            self.logins.clear();
            self.authorization = None;
            self.agent = agent(self.git, &origin)?;
            self.origin = origin;
        }
        Ok(())
    }

    /// Sends a command and returns the response, of at most `limit_bytes`.
    pub(super) fn command(
        &mut self,
        body: &[u8],
        limit_bytes: u64,
    ) -> Result<AnswerBody, TransferError> {
        let address = format!("{}/git-upload-pack", self.base);
        let answer = self.ask("POST", &address, body.to_vec(), limit_bytes)?;
        match answer.status {
            200 if is(&answer, "result") => Ok(answer.body),
            200 => Err(TransferError::Message("the response is not from a git server".to_owned())),
            status => Err(self.explain(status)),
        }
    }

    /// Sends a request, again with a password if the server asks for one and there is one to try.
    fn ask(
        &mut self,
        method: &str,
        address: &str,
        body: Vec<u8>,
        limit_bytes: u64,
    ) -> Result<HttpAnswer, TransferError> {
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
                // Errors of headers contain no passwords.
                TransferError::Message(format!("invalid request: {error}"))
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

    fn explain(&self, status: u16) -> TransferError {
        TransferError::Message(match status {
            401 if self.authorization.is_some() => "the server rejects the password".to_owned(),
            401 => "the server asks for a password, but none is configured for it".to_owned(),
            403 => "access denied".to_owned(),
            404 | 410 => "repository not found".to_owned(),
            status => format!("the server answers with HTTP status {status}"),
        })
    }
}

/// Returns whether a response has git's content type of this kind.
fn is(answer: &HttpAnswer, kind: &str) -> bool {
    let kind = format!("application/x-git-upload-pack-{kind}");
    let found = answer.header("content-type").unwrap_or_default();
    found.split(';').next().is_some_and(|found| found.trim().eq_ignore_ascii_case(&kind))
}

/// Timeout for connecting, and for silence of the server after that.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Variables that name files with CA certificates, by precedence.
const CERTIFICATES: [&str; 3] = ["GIT_SSL_CAINFO", "CURL_CA_BUNDLE", "SSL_CERT_FILE"];

/// Some servers respond only to git.
const USER_AGENT: &str = concat!("git/step-runner-", env!("CARGO_PKG_VERSION"));

/// Returns an HTTP client for a server.
fn agent(git: &GitFetcher<'_>, origin: &HttpOrigin) -> Result<Agent, TransferError> {
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
fn first_non_empty<'a>(env: &'a BTreeMap<String, String>, names: &[&str]) -> Option<&'a str> {
    let values = names.iter().filter_map(|name| env.get(*name));
    values.map(String::as_str).find(|value| !value.is_empty())
}

fn proxy(
    env: &BTreeMap<String, String>,
    origin: &HttpOrigin,
) -> Result<Option<Proxy>, TransferError> {
    // Not `HTTP_PROXY`, which curl ignores too: in a CGI program it is a header of the request.
    let names: &[&str] = match origin.is_https {
        true => &["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"],
        false => &["http_proxy", "all_proxy", "ALL_PROXY"],
    };
    let Some(address) = first_non_empty(env, names) else { return Ok(None) };
    let direct = first_non_empty(env, &["no_proxy", "NO_PROXY"]).unwrap_or_default();
    let direct: Vec<_> = direct.split(',').map(|entry| entry.trim().to_owned()).collect();
    if is_direct(origin, &direct) {
        return Ok(None);
    }
    let unknown =
        || TransferError::Message(format!("invalid proxy address {:?}", redact_url(address)));
    proxy_at(address).map(Some).ok_or_else(unknown)
}

fn roots(
    env: &BTreeMap<String, String>,
    fallback: Option<&Path>,
) -> Result<RootCerts, TransferError> {
    let Some(path) = first_non_empty(env, &CERTIFICATES) else {
        return Ok(host_roots(|| read_bounded(fallback?, MAX_CERTIFICATES_BYTES).ok()));
    };
    let wrong = |error: &dyn std::error::Error| {
        TransferError::Message(format!("cannot read certificates from {path:?}: {error}"))
    };
    let pem = read_bounded(Path::new(path), MAX_CERTIFICATES_BYTES).map_err(|e| wrong(&e))?;
    let found = certificates(&pem).map_err(|error| wrong(&error))?;
    Ok(RootCerts::new_with_certs(&found))
}

/// Size limit of a `.netrc` file.
const MAX_BYTES: u64 = 1 << 20;

/// Returns user name and password for a host from `.netrc`, if the file can be read and has an entry.
fn netrc_login(env: &BTreeMap<String, String>, host: &str) -> Option<(String, String)> {
    let set = |name: &str| env.get(name).filter(|value| !value.is_empty());
    let path = match set("NETRC") {
        Some(path) => PathBuf::from(path),
        None => Path::new(set("HOME")?).join(".netrc"),
    };
    // An unreadable file is ignored, as by curl.
    let text = String::from_utf8(read_bounded(&path, MAX_BYTES).ok()?).ok()?;
    find(&text, host)
}

fn find(text: &str, host: &str) -> Option<(String, String)> {
    let mut words = split_words(text).into_iter();
    let (mut is_meant, mut login, mut password) = (false, None, None);
    while let Some(word) = words.next() {
        match word.as_str() {
            "machine" | "default" if is_meant => break,
            "machine" => {
                is_meant =
                    strip_brackets(&words.next()?).eq_ignore_ascii_case(strip_brackets(host));
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
fn strip_brackets(host: &str) -> &str {
    host.trim_matches(['[', ']'])
}

/// Splits the text into words, which may be quoted, without comments and macros.
fn split_words(text: &str) -> Vec<String> {
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
                read_quoted(&mut chars)
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

fn read_quoted(chars: &mut impl Iterator<Item = char>) -> String {
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
    fn proxy_is_selected_by_scheme_and_excluded_hosts() {
        let env = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        let host = |env: &BTreeMap<String, String>, url: &str| {
            let origin = HttpOrigin::of(&url.parse().unwrap()).unwrap();
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
    fn certificate_file_without_certificates_is_an_error() {
        let env = BTreeMap::from([("SSL_CERT_FILE".to_owned(), "/no/such/file".to_owned())]);
        let Err(TransferError::Message(message)) = roots(&env, None) else {
            panic!("it is not there")
        };
        assert!(message.contains("/no/such/file"), "{message}");
    }

    #[test]
    fn login_of_a_host_is_found() {
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
