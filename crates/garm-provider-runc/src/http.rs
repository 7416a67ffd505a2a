//! HTTP client for GARM and for servers of runner archives: certificates, proxies, retries.

mod error;
#[cfg(test)]
pub mod fake;

use std::io::{self, Read};
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use ureq::Agent;
use ureq::http::{self, Response, Uri};
use ureq::tls::{Certificate, RootCerts};

pub use error::HttpError;
use oci_hooks_image::http::{
    AgentOptions, HttpOrigin, MAX_REDIRECTS, TOO_MANY_REDIRECTS, certificates, config, is_direct,
    proxy_at, redact_url, redirect, tls,
};

/// Timeout for connecting to a server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Timeout for a server that sends nothing.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Size limit for reading the body of an error response.
const MAX_MESSAGE_BYTES: u64 = 16 << 10;

/// Length limit of a server's message in an error.
const MAX_MESSAGE_CHARS: usize = 200;

/// Proxies for each scheme of URLs, as in the environment variables of the same names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProxyUrls {
    /// `http_proxy`; empty if none.
    pub http_proxy: String,
    /// `https_proxy`; empty if none.
    pub https_proxy: String,
    /// `no_proxy`, with Go's syntax: hosts, domains and networks.
    pub no_proxy: String,
}

/// Certificates and proxies of a client.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct HttpOptions {
    /// CA certificates to trust in addition to the host's, PEM; empty if none.
    pub ca_pem: String,
    pub proxy: ProxyUrls,
}

/// HTTP client for GARM and for servers of runner archives.
#[derive(Debug)]
pub struct HttpClient {
    direct: Agent,
    http_proxy: Option<Agent>,
    https_proxy: Option<Agent>,
    no_proxy: Vec<String>,
}

/// Body of a response, as a stream.
pub struct HttpBody {
    /// Offset of the first byte: the requested one, or 0 if the server does not support ranges.
    pub start: u64,
    /// Total size from offset 0, if the server sends it.
    pub total: Option<u64>,
    /// Content. Without `total`, a truncated body is not detected.
    pub reader: Box<dyn Read + Send>,
}

/// Number of attempts, and the pause between them.
#[derive(Clone, Copy, Debug)]
pub struct HttpRetry {
    pub attempts: u32,
    pub pause: Duration,
}

/// Returns whether a URL can be that of a proxy: it has a scheme that this client supports.
pub fn is_proxy(url: &str) -> bool {
    url.contains("://") && proxy_at(url).is_some()
}

struct HttpRequest<'a> {
    method: &'static str,
    bearer: Option<&'a str>,
    accept: &'static str,
    start: u64,
    json: Option<&'a [u8]>,
}

impl HttpClient {
    /// Returns a client with the default timeouts.
    pub fn new(options: &HttpOptions) -> Result<Self, HttpError> {
        HttpClient::with_timeouts(options, CONNECT_TIMEOUT, IDLE_TIMEOUT)
    }

    fn with_timeouts(
        options: &HttpOptions,
        connect: Duration,
        idle: Duration,
    ) -> Result<Self, HttpError> {
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
                None => Err(HttpError::Proxy { proxy: redact_url(address) }),
            },
        };
        let proxy = &options.proxy;
        Ok(HttpClient {
            direct: agent(&roots, None),
            http_proxy: proxied(&proxy.http_proxy)?,
            https_proxy: proxied(&proxy.https_proxy)?,
            no_proxy: proxy.no_proxy.split(',').map(str::to_owned).collect(),
        })
    }

    /// Gets a document of at most `limit_bytes`.
    pub fn get(
        &self,
        url: &str,
        bearer: Option<&str>,
        limit_bytes: u64,
    ) -> Result<Vec<u8>, HttpError> {
        let accept = "application/json";
        let request = HttpRequest { method: "GET", bearer, accept, start: 0, json: None };
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

    /// Posts a document; ignores the body of the response.
    pub fn post_json(
        &self,
        url: &str,
        bearer: Option<&str>,
        document: &serde_json::Value,
    ) -> Result<(), HttpError> {
        let json = document.to_string();
        let accept = "application/json";
        let json = Some(json.as_bytes());
        self.send(url, &HttpRequest { method: "POST", bearer, accept, start: 0, json })?;
        Ok(())
    }

    /// Opens a large file as a stream, from offset `start`.
    pub fn open(&self, url: &str, bearer: Option<&str>, start: u64) -> Result<HttpBody, HttpError> {
        let request = HttpRequest { method: "GET", bearer, accept: "*/*", start, json: None };
        let (response, url) = self.send(url, &request)?;
        let header = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
        let (start, total) = if response.status() == 206 {
            let range = header("content-range").and_then(parse_content_range);
            let Some((begin, total)) = range.filter(|(begin, _)| *begin == start) else {
                let message = "the server sent a different range than requested";
                let source = io::Error::new(io::ErrorKind::InvalidData, message);
                return Err(HttpError::Protocol { method: "GET", url, source });
            };
            (begin, total)
        } else {
            (0, header("content-length").and_then(|length| length.parse().ok()))
        };
        Ok(HttpBody { start, total, reader: Box::new(response.into_body().into_reader()) })
    }

    /// Sends a request, follows redirects, and returns the response and its URL.
    fn send(
        &self,
        url: &str,
        request: &HttpRequest<'_>,
    ) -> Result<(Response<ureq::Body>, String), HttpError> {
        let method = request.method;
        let invalid = || HttpError::Address { url: shorten_url(url) };
        let mut uri: Uri = url.parse().map_err(|_| invalid())?;
        let mut origin = HttpOrigin::of(&uri).ok_or_else(invalid)?;
        let mut bearer = request.bearer;
        for _ in 0..=MAX_REDIRECTS {
            let response =
                self.send_once(&uri, &origin, &HttpRequest { bearer, ..*request }).map_err(
                    |error| HttpError::of_request(method, shorten_url(&uri.to_string()), error),
                )?;
            let url = shorten_url(&uri.to_string());
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
                let target = shorten_url(&String::from_utf8_lossy(location.as_bytes()));
                HttpError::Redirect { method, url, target, reason }
            })?;
            // After a redirect to another origin, the token is never sent again, even to the first origin: the other
            // server chose that URL.
            if next_origin != origin {
                bearer = None;
            }
            (uri, origin) = (next, next_origin);
        }
        let target = shorten_url(&uri.to_string());
        let reason = TOO_MANY_REDIRECTS;
        Err(HttpError::Redirect { method, url: shorten_url(url), target, reason })
    }

    fn send_once(
        &self,
        uri: &Uri,
        origin: &HttpOrigin,
        request: &HttpRequest<'_>,
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

impl Default for HttpRetry {
    fn default() -> Self {
        HttpRetry { attempts: 5, pause: Duration::from_secs(5) }
    }
}

impl HttpRetry {
    /// Calls `f` until it succeeds or fails with a permanent error, at most `attempts` times. Stops earlier if
    /// `is_time` returns false after a failure.
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

/// Returns the host's CA certificates and those in `pem`.
fn root_certificates(pem: &str) -> Result<RootCerts, HttpError> {
    if pem.trim().is_empty() {
        return Ok(RootCerts::PlatformVerifier);
    }
    let found = certificates(pem.as_bytes());
    let mut certificates =
        found.map_err(|error| HttpError::Certificates { source: error.into_io() })?;
    if certificates.is_empty() {
        let source = io::Error::new(io::ErrorKind::InvalidData, "no certificate found");
        return Err(HttpError::Certificates { source });
    }
    // The platform's verifier uses the same certificates. A host may have none.
    let host = rustls_native_certs::load_native_certs().certs;
    certificates.extend(host.iter().map(|der| Certificate::from_der(der).to_owned()));
    Ok(RootCerts::new_with_certs(&certificates))
}

/// Returns the offset of the first byte and the total size of a `Content-Range` such as `bytes 0-1/2`.
fn parse_content_range(text: &str) -> Option<(u64, Option<u64>)> {
    let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (begin, _) = range.split_once('-')?;
    Some((begin.parse().ok()?, total.parse().ok()))
}

/// Returns the message of an error response, in one short line.
fn message(response: Response<ureq::Body>) -> String {
    #[derive(Deserialize)]
    struct ErrorBody {
        #[serde(default)]
        error: String,
        #[serde(default)]
        details: String,
    }
    let mut bytes = Vec::new();
    // If reading fails, the bytes read so far are used.
    let _ = response.into_body().into_reader().take(MAX_MESSAGE_BYTES).read_to_end(&mut bytes);
    let text = match serde_json::from_slice::<ErrorBody>(&bytes) {
        Ok(ErrorBody { error, details }) if details.is_empty() => error,
        Ok(ErrorBody { error, details }) if error.is_empty() => details,
        Ok(ErrorBody { error, details }) => format!("{error}: {details}"),
        // An HTML page is not helpful.
        Err(_) if bytes.trim_ascii_start().starts_with(b"<") => String::new(),
        Err(_) => String::from_utf8_lossy(&bytes).into_owned(),
    };
    let line = text.trim().lines().next().unwrap_or("");
    line.chars().filter(|c| !c.is_control()).take(MAX_MESSAGE_CHARS).collect()
}

/// Returns a URL for messages, without credentials and query, which may contain signatures.
pub fn shorten_url(url: &str) -> String {
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
