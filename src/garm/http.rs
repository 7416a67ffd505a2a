//! HTTP with GARM and with whoever has the runner's archive: certificates, proxies, retries.

mod error;
#[cfg(test)]
pub mod fake;

use std::fmt;
use std::io::{self, Read};
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use ureq::Agent;
use ureq::http::{self, Response, Uri};
use ureq::tls::{Certificate, RootCerts};

pub use error::HttpError;

use crate::http::{
    AgentOptions, MAX_REDIRECTS, Origin, TOO_MANY_REDIRECTS, certificates, config, is_direct,
    proxy_at, redacted, redirect, tls,
};

/// How long a server may take until a connection stands.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long it may then be silent.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// How much of a refusal is read to learn what was wrong.
const MAX_MESSAGE_BYTES: u64 = 16 << 10;

/// How much of what a server says is passed on.
const MAX_MESSAGE_CHARS: usize = 200;

/// Proxies by the scheme of what is fetched, as in the variables of these names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Proxy {
    /// `http_proxy`; empty if none.
    pub http_proxy: String,
    /// `https_proxy`; empty if none.
    pub https_proxy: String,
    /// `no_proxy`, as Go reads it: hosts, domains and networks.
    pub no_proxy: String,
}

/// Certificates and proxies by which servers are reached.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct HttpOptions {
    /// Certificates to trust besides those of the host, PEM; empty if none.
    pub ca_pem: String,
    pub proxy: Proxy,
}

/// A client for GARM and for servers with archives of runners.
#[derive(Debug)]
pub struct Http {
    direct: Agent,
    http_proxy: Option<Agent>,
    https_proxy: Option<Agent>,
    no_proxy: Vec<String>,
}

/// An answer as a stream.
#[non_exhaustive]
pub struct Body {
    /// The offset of its first byte: what was asked for, or 0 if the server cannot begin there.
    pub start: u64,
    /// How many bytes there are in all, from offset 0, if the server says so.
    pub total: Option<u64>,
    /// The bytes. They may end early without an error if the server did not say how many there are.
    pub reader: Box<dyn Read + Send>,
}

/// How often something is tried.
#[derive(Clone, Copy, Debug)]
pub struct Retry {
    pub attempts: u32,
    /// How long to wait in between.
    pub pause: Duration,
}

struct Request<'a> {
    method: &'static str,
    bearer: Option<&'a str>,
    accept: &'static str,
    start: u64,
    json: Option<&'a [u8]>,
}

impl Http {
    /// Returns a client with the usual timeouts.
    pub fn new(options: &HttpOptions) -> Result<Self, HttpError> {
        Http::within(options, CONNECT_TIMEOUT, IDLE_TIMEOUT)
    }

    fn within(options: &HttpOptions, connect: Duration, idle: Duration) -> Result<Self, HttpError> {
        let agent = |roots: &RootCerts, proxy| {
            Agent::new_with_config(config(AgentOptions {
                user_agent: concat!("garm-provider-runc/", env!("CARGO_PKG_VERSION")),
                proxy,
                tls: tls(roots.clone(), false),
                connect_timeout: connect,
                idle_timeout: idle,
            }))
        };
        let roots = root_certificates(&options.ca_pem)?;
        let proxied = |address: &str| match address {
            "" => Ok(None),
            address => match proxy_at(address) {
                Some(proxy) => Ok(Some(agent(&roots, Some(proxy)))),
                None => Err(HttpError::Proxy { proxy: redacted(address) }),
            },
        };
        let proxy = &options.proxy;
        Ok(Http {
            direct: agent(&roots, None),
            http_proxy: proxied(&proxy.http_proxy)?,
            https_proxy: proxied(&proxy.https_proxy)?,
            no_proxy: proxy.no_proxy.split(',').map(str::to_owned).collect(),
        })
    }

    /// Gets a document of at most so many bytes.
    pub fn get(
        &self,
        url: &str,
        bearer: Option<&str>,
        limit_bytes: u64,
    ) -> Result<Vec<u8>, HttpError> {
        let accept = "application/json";
        let request = Request { method: "GET", bearer, accept, start: 0, json: None };
        let (response, url) = self.send(url, &request)?;
        let mut content = Vec::new();
        let mut reader = response.into_body().into_reader().take(limit_bytes.saturating_add(1));
        match reader.read_to_end(&mut content) {
            Err(error) => Err(HttpError::of_io("GET", url, error)),
            Ok(_) if content.len() as u64 > limit_bytes => {
                Err(HttpError::TooLarge { method: "GET", url, limit_bytes })
            }
            Ok(_) => Ok(content),
        }
    }

    /// Posts a document; what is answered does not matter if it is not a refusal.
    pub fn post_json(
        &self,
        url: &str,
        bearer: Option<&str>,
        document: &serde_json::Value,
    ) -> Result<(), HttpError> {
        let json = document.to_string();
        let accept = "application/json";
        let json = Some(json.as_bytes());
        self.send(url, &Request { method: "POST", bearer, accept, start: 0, json })?;
        Ok(())
    }

    /// Opens something big, from an offset on.
    pub fn open(&self, url: &str, bearer: Option<&str>, start: u64) -> Result<Body, HttpError> {
        let request = Request { method: "GET", bearer, accept: "*/*", start, json: None };
        let (response, url) = self.send(url, &request)?;
        let header = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
        let (start, total) = if response.status() == 206 {
            let range = header("content-range").and_then(parse_content_range);
            let Some((begin, total)) = range.filter(|(begin, _)| *begin == start) else {
                let message = "it sent another part than the one it was asked for";
                let source = io::Error::new(io::ErrorKind::InvalidData, message);
                return Err(HttpError::Protocol { method: "GET", url, source });
            };
            (begin, total)
        } else {
            (0, header("content-length").and_then(|length| length.parse().ok()))
        };
        Ok(Body { start, total, reader: Box::new(response.into_body().into_reader()) })
    }

    /// Asks, follows redirects, and returns what was answered and where.
    fn send(
        &self,
        url: &str,
        request: &Request<'_>,
    ) -> Result<(Response<ureq::Body>, String), HttpError> {
        let method = request.method;
        let invalid = || HttpError::Address { url: shown(url) };
        let mut uri: Uri = url.parse().map_err(|_| invalid())?;
        let mut origin = Origin::of(&uri).ok_or_else(invalid)?;
        let mut bearer = request.bearer;
        for _ in 0..=MAX_REDIRECTS {
            let response = self
                .send_once(&uri, &origin, &Request { bearer, ..*request })
                .map_err(|error| HttpError::of_request(method, shown(&uri.to_string()), error))?;
            let url = shown(&uri.to_string());
            let status = response.status().as_u16();
            let location = response.headers().get("location");
            let location = match (status, location) {
                (200..=299, _) => return Ok((response, url)),
                (301 | 302 | 303 | 307 | 308, Some(location)) if method == "GET" => location,
                _ => {
                    let message = message(response);
                    return Err(HttpError::Status { method, url, status, message });
                }
            };
            let next = redirect(&uri, &origin, location, |_| false);
            let (next, next_origin) = next.map_err(|reason| {
                let target = shown(&String::from_utf8_lossy(location.as_bytes()));
                HttpError::Redirect { method, url, target, reason }
            })?;
            // Once gone it stays away: who comes back was sent by somebody else.
            if next_origin != origin {
                bearer = None;
            }
            (uri, origin) = (next, next_origin);
        }
        let target = shown(&uri.to_string());
        let reason = TOO_MANY_REDIRECTS;
        Err(HttpError::Redirect { method, url: shown(url), target, reason })
    }

    fn send_once(
        &self,
        uri: &Uri,
        origin: &Origin,
        request: &Request<'_>,
    ) -> Result<Response<ureq::Body>, ureq::Error> {
        let proxied = if origin.is_https { &self.https_proxy } else { &self.http_proxy };
        let proxied = proxied.as_ref().filter(|_| !is_direct(origin, &self.no_proxy));
        let mut builder = http::Request::builder().method(request.method).uri(uri);
        builder = builder.header("accept", request.accept);
        if let Some(bearer) = request.bearer {
            builder = builder.header("authorization", format!("Bearer {bearer}"));
        }
        if request.start > 0 {
            builder = builder.header("range", format!("bytes={}-", request.start));
        }
        let agent = proxied.unwrap_or(&self.direct);
        match request.json {
            None => agent.run(builder.body(())?),
            Some(json) => {
                let builder = builder.header("content-type", "application/json");
                agent.run(builder.body(json)?)
            }
        }
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut body = f.debug_struct("Body");
        body.field("start", &self.start).field("total", &self.total).finish_non_exhaustive()
    }
}

impl Default for Retry {
    fn default() -> Self {
        Retry { attempts: 5, pause: Duration::from_secs(5) }
    }
}

impl Retry {
    /// Tries something until it works, or does not for a reason that stays.
    pub fn run<T>(self, f: impl FnMut() -> Result<T, HttpError>) -> Result<T, HttpError> {
        self.run_while(|| true, f)
    }

    /// Tries something as long as there is time for another try.
    pub fn run_while<T>(
        self,
        mut is_time: impl FnMut() -> bool,
        mut f: impl FnMut() -> Result<T, HttpError>,
    ) -> Result<T, HttpError> {
        for _ in 1..self.attempts {
            match f() {
                Err(error) if error.is_transient() && is_time() => thread::sleep(self.pause),
                result => return result,
            }
        }
        f()
    }
}

/// Returns the certificates of the host and these.
fn root_certificates(pem: &str) -> Result<RootCerts, HttpError> {
    if pem.trim().is_empty() {
        return Ok(RootCerts::PlatformVerifier);
    }
    let found = certificates(pem.as_bytes());
    let mut certificates =
        found.map_err(|error| HttpError::Certificates { source: error.into_io() })?;
    if certificates.is_empty() {
        let source = io::Error::new(io::ErrorKind::InvalidData, "there is no certificate in them");
        return Err(HttpError::Certificates { source });
    }
    // What the platform's verifier would take too. A host without any is fine.
    let host = rustls_native_certs::load_native_certs().certs;
    certificates.extend(host.iter().map(|der| Certificate::from_der(der).to_owned()));
    Ok(RootCerts::new_with_certs(&certificates))
}

/// Returns the offset of the first byte and how many there are in all, of `bytes 0-1/2`.
fn parse_content_range(text: &str) -> Option<(u64, Option<u64>)> {
    let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (begin, _) = range.split_once('-')?;
    Some((begin.parse().ok()?, total.parse().ok()))
}

/// Returns what a server said of its refusal, in one short line.
fn message(response: Response<ureq::Body>) -> String {
    #[derive(Deserialize)]
    struct Refusal {
        #[serde(default)]
        error: String,
        #[serde(default)]
        details: String,
    }
    let mut bytes = Vec::new();
    // What came before it broke will do.
    let _ = response.into_body().into_reader().take(MAX_MESSAGE_BYTES).read_to_end(&mut bytes);
    let text = match serde_json::from_slice::<Refusal>(&bytes) {
        Ok(Refusal { error, details }) if details.is_empty() => error,
        Ok(Refusal { error, details }) if error.is_empty() => details,
        Ok(Refusal { error, details }) => format!("{error}: {details}"),
        // A page in HTML helps nobody.
        Err(_) if bytes.trim_ascii_start().starts_with(b"<") => String::new(),
        Err(_) => String::from_utf8_lossy(&bytes).into_owned(),
    };
    let line = text.trim().lines().next().unwrap_or("");
    line.chars().filter(|c| !c.is_control()).take(MAX_MESSAGE_CHARS).collect()
}

/// Returns an address without login and parameters, which may be permissions.
pub fn shown(url: &str) -> String {
    let url: String = url.split(['?', '#']).next().unwrap_or("").chars().take(200).collect();
    match url.split_once("://") {
        Some((scheme, rest)) => {
            let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
            format!("{scheme}://{host}{path}")
        }
        None => url,
    }
}

#[cfg(test)]
mod tests;
