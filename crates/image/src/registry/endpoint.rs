//! Connections to one server of a registry, its redirects, and the explanation of its failures.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use oci_hooks_files::error::cause;
use oci_hooks_files::fs::{PathContext as _, PathError, read_bounded};
use serde::Deserialize;
use tracing::debug;
use ureq::http::{Response, Uri};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::unversioned::transport::DefaultConnector;
use ureq::{Agent, Body, Proxy, SendBody};

use super::budget::Budget;
use super::error::RegistryError;
use super::guard::{AddressGuard, InternalAddress};
use super::options::{ClientOptions, RegistryOptions};
use crate::http::{
    AgentOptions, HttpOrigin, MAX_CERTIFICATES_BYTES, MAX_REDIRECTS, TOO_MANY_REDIRECTS, config,
    host_roots, is_direct, proxy_at, redact_url, redirect, tls,
};

/// Timeout of a registry's response to an upload, which it has to store.
const STORE_TIMEOUT: Duration = Duration::from_secs(300);

/// Options, and objects derived from them that all endpoints share.
#[derive(Debug)]
pub struct ClientSettings {
    pub options: ClientOptions,
    proxy: Option<Proxy>,
    roots: BTreeMap<String, RootCerts>,
    /// Root certificates for servers without an entry in `roots`; loaded on first use.
    host_roots: OnceLock<RootCerts>,
}

/// One server of a registry: its own or a mirror.
#[derive(Debug)]
pub struct RegistryEndpoint {
    settings: Arc<ClientSettings>,
    /// Configured name, `HOST` or `HOST:PORT`.
    pub name: String,
    /// Name to connect to, which differs for Docker Hub.
    host: String,
    agent: Agent,
    origin: OnceLock<HttpOrigin>,
}

/// Request to a server.
#[derive(Clone, Copy, Debug, Default)]
pub struct RegistryRequest<'a> {
    /// If set, only the headers are requested.
    pub head: bool,
    pub accept: Option<&'a str>,
    /// Offset of the first byte to read.
    pub start: u64,
    /// Value of `Authorization`, sent only to the origin of the URL.
    pub authorization: Option<&'a str>,
}

/// Content to upload.
pub struct UploadContent<'a> {
    pub media_type: &'a str,
    pub size: u64,
    pub reader: &'a mut dyn Read,
}

/// HTTP method of an upload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UploadMethod {
    Post,
    Put,
}

/// Response, and the origin that sent it, which differs from the request's after redirects.
pub struct RegistryResponse {
    pub response: Response<Body>,
    pub origin: HttpOrigin,
}

impl ClientSettings {
    pub(super) fn new(options: ClientOptions) -> Result<Self, RegistryError> {
        let proxy = options.proxy.as_deref().map(|address| {
            proxy_at(address).ok_or_else(|| RegistryError::Proxy { proxy: redact_url(address) })
        });
        let mut roots = BTreeMap::new();
        for (name, registry) in &options.registries {
            if !registry.ca_files.is_empty() {
                roots.insert(name.clone(), root_certificates(registry)?);
            }
        }
        let host_roots = OnceLock::new();
        Ok(ClientSettings { proxy: proxy.transpose()?, roots, host_roots, options })
    }

    /// Returns the options of a server, and the name by which it is configured.
    fn registry(&self, origin: &HttpOrigin) -> Option<(&str, &RegistryOptions)> {
        let server = origin.server();
        let server = configured_name(&server);
        let with_port = format!("{}:{}", origin.host, origin.port);
        let is_it =
            |name: &str| name.eq_ignore_ascii_case(server) || name.eq_ignore_ascii_case(&with_port);
        let registries = &self.options.registries;
        let exact = registries.get_key_value(server);
        let found = exact.or_else(|| registries.iter().find(|(name, _)| is_it(name)));
        found.map(|(name, registry)| (name.as_str(), registry))
    }

    /// Returns the options of a registry, by its name in an image reference.
    pub(super) fn registry_named(&self, name: &str) -> Option<&RegistryOptions> {
        let origin = HttpOrigin::of_registry(name, true)?;
        self.registry(&origin).map(|(_, registry)| registry)
    }

    /// Returns whether a server may use any certificate or plain HTTP.
    pub(super) fn is_insecure(&self, origin: &HttpOrigin) -> bool {
        let registry = self.registry(origin);
        let has_roots = registry.is_some_and(|(name, _)| self.roots.contains_key(name));
        origin.is_loopback() && !has_roots
            || registry.is_some_and(|(_, registry)| registry.insecure)
    }

    /// Returns the proxy for connections to a server.
    fn proxy(&self, origin: &HttpOrigin) -> Option<Proxy> {
        self.proxy.clone().filter(|_| !is_direct(origin, &self.options.no_proxy))
    }

    fn tls(&self, origin: &HttpOrigin) -> TlsConfig {
        let own = self.registry(origin).and_then(|(name, _)| self.roots.get(name));
        let roots = own.unwrap_or_else(|| {
            let file = self.options.fallback_ca_file.as_deref();
            let pem = || read_bounded(file?, MAX_CERTIFICATES_BYTES).ok();
            self.host_roots.get_or_init(|| host_roots(pem))
        });
        tls(roots.clone(), self.is_insecure(origin))
    }
}

impl RegistryEndpoint {
    /// Returns the endpoint with a name, or `None` if the name is invalid.
    pub(super) fn new(settings: &Arc<ClientSettings>, name: &str) -> Option<Self> {
        // Docker Hub's registry is on another host than its website.
        let host = if name == "docker.io" { "registry-1.docker.io" } else { name };
        let origin = HttpOrigin::of_registry(host, true)?;
        let options = &settings.options;
        let config = config(AgentOptions {
            user_agent: &options.user_agent,
            proxy: settings.proxy(&origin),
            tls: settings.tls(&origin),
            connect_timeout: options.connect_timeout,
            idle_timeout: options.idle_timeout,
        });
        let uri = format!("https://{host}/").parse().ok()?;
        let proxy_host = settings.proxy.as_ref().map(|proxy| proxy.host().to_owned());
        let agent = Agent::with_parts(
            config,
            DefaultConnector::default(),
            AddressGuard::new(uri, proxy_host),
        );
        Some(RegistryEndpoint {
            settings: Arc::clone(settings),
            name: name.to_owned(),
            host: host.to_owned(),
            agent,
            origin: OnceLock::new(),
        })
    }

    /// Returns the origin of the server: plain HTTP only if that is allowed and HTTPS fails.
    pub(super) fn origin(&self) -> Result<&HttpOrigin, RegistryError> {
        if let Some(origin) = self.origin.get() {
            return Ok(origin);
        }
        let at = |is_https| {
            HttpOrigin::of_registry(&self.host, is_https)
                .expect("this was checked when it was made")
        };
        let is_https = if self.settings.is_insecure(&at(true)) {
            let uri = self.uri(&at(true), "/v2/")?;
            match self.send(&uri, RegistryRequest { head: true, ..RegistryRequest::default() }) {
                Ok(_) => true,
                Err(timeout @ RegistryError::Timeout { .. }) => return Err(timeout),
                Err(_) => false,
            }
        } else {
            true
        };
        Ok(self.origin.get_or_init(|| at(is_https)))
    }

    /// Returns the URL of a path on the server.
    pub(super) fn uri(&self, origin: &HttpOrigin, path: &str) -> Result<Uri, RegistryError> {
        format!("{origin}{path}").parse().map_err(|error| RegistryError::Protocol {
            server: self.name.clone(),
            source: io::Error::other(error),
        })
    }

    /// Sends a request, and follows redirects.
    pub(super) fn send(
        &self,
        uri: &Uri,
        request: RegistryRequest<'_>,
    ) -> Result<RegistryResponse, RegistryError> {
        let mut uri = uri.clone();
        let mut origin = self.origin_of(&uri, "expected an http or https URL")?;
        let mut authorization = request.authorization;
        for _ in 0..=MAX_REDIRECTS {
            debug!(address = strip_query(&uri.to_string()), "send a request");
            let response =
                self.send_once(&uri, &origin, RegistryRequest { authorization, ..request })?;
            let is_redirect = matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308);
            let location = response.headers().get("location").filter(|_| is_redirect);
            let Some(location) = location else { return Ok(RegistryResponse { response, origin }) };
            let next = redirect(&uri, &origin, location, |next| self.settings.is_insecure(next));
            let (target, next) = next.map_err(|reason| RegistryError::Redirect {
                server: origin.server(),
                target: strip_query(&String::from_utf8_lossy(location.as_bytes())),
                reason,
            })?;
            // Never restored: another server may have caused a redirect back.
            if next != origin {
                authorization = None;
            }
            (uri, origin) = (target, next);
        }
        Err(RegistryError::Redirect {
            server: self.name.clone(),
            target: strip_query(&uri.to_string()),
            reason: TOO_MANY_REDIRECTS,
        })
    }

    /// Posts a form, without following redirects.
    pub(super) fn post(&self, uri: &Uri, form: &str) -> Result<RegistryResponse, RegistryError> {
        let origin = self.origin_of(uri, "expected an http or https URL")?;
        let builder = self.agent.post(uri.clone()).config().proxy(self.settings.proxy(&origin));
        let builder = builder.tls_config(self.settings.tls(&origin));
        let builder = builder.build().content_type("application/x-www-form-urlencoded");
        let response = builder.send(form);
        let response = response.map_err(|error| explain(&self.name, origin.server(), error))?;
        Ok(RegistryResponse { response, origin })
    }

    /// Uploads content, without following redirects: the target is known before.
    ///
    /// `authorization` is for the origin of `uri`.
    pub(super) fn transmit(
        &self,
        method: UploadMethod,
        uri: &Uri,
        content: UploadContent<'_>,
        authorization: Option<&str>,
    ) -> Result<RegistryResponse, RegistryError> {
        let origin = self.origin_of(uri, "expected an http or https URL")?;
        debug!(address = strip_query(&uri.to_string()), bytes = content.size, "send content");
        let builder = match method {
            UploadMethod::Post => self.agent.post(uri.clone()),
            UploadMethod::Put => self.agent.put(uri.clone()),
        };
        let options = &self.settings.options;
        let builder = builder.config().proxy(self.settings.proxy(&origin));
        let builder = builder.tls_config(self.settings.tls(&origin));
        let builder = builder.timeout_per_write(Some(options.idle_timeout));
        // Registries hash or copy large blobs once more before they answer.
        let builder = builder.timeout_recv_response(Some(options.idle_timeout.max(STORE_TIMEOUT)));
        let mut builder = builder.build().content_type(content.media_type);
        builder = builder.header("content-length", content.size);
        if let Some(authorization) = authorization {
            builder = builder.header("authorization", authorization);
        }
        let response = builder.send(SendBody::from_reader(content.reader));
        let response = response.map_err(|error| explain(&self.name, origin.server(), error))?;
        Ok(RegistryResponse { response, origin })
    }

    /// Returns the URL in the `Location` of a response.
    pub(super) fn location(
        &self,
        uri: &Uri,
        answer: &RegistryResponse,
    ) -> Result<Uri, RegistryError> {
        let location = answer.response.headers().get("location");
        let location = location.ok_or_else(|| RegistryError::NoLocation {
            registry: self.name.clone(),
            repository: uri.path().trim_start_matches("/v2/").to_owned(),
        })?;
        let is_insecure = |next: &HttpOrigin| self.settings.is_insecure(next);
        let next = redirect(uri, &answer.origin, location, is_insecure);
        next.map(|(target, _)| target).map_err(|reason| RegistryError::Redirect {
            server: answer.origin.server(),
            target: strip_query(&String::from_utf8_lossy(location.as_bytes())),
            reason,
        })
    }

    fn send_once(
        &self,
        uri: &Uri,
        origin: &HttpOrigin,
        request: RegistryRequest<'_>,
    ) -> Result<Response<Body>, RegistryError> {
        let uri = uri.clone();
        let builder = if request.head { self.agent.head(uri) } else { self.agent.get(uri) };
        let builder = builder.config().proxy(self.settings.proxy(origin));
        let mut builder = builder.tls_config(self.settings.tls(origin)).build();
        if let Some(accept) = request.accept {
            builder = builder.header("accept", accept);
        }
        if request.start > 0 {
            builder = builder.header("range", format!("bytes={}-", request.start));
        }
        if let Some(authorization) = request.authorization {
            builder = builder.header("authorization", authorization);
        }
        builder.call().map_err(|error| explain(&self.name, origin.server(), error))
    }

    fn origin_of(&self, uri: &Uri, reason: &'static str) -> Result<HttpOrigin, RegistryError> {
        HttpOrigin::of(uri).ok_or_else(|| RegistryError::Redirect {
            server: self.name.clone(),
            target: strip_query(&uri.to_string()),
            reason,
        })
    }
}

/// Returns the configured name of a server.
fn configured_name(server: &str) -> &str {
    if server == "registry-1.docker.io" { "docker.io" } else { server }
}

fn root_certificates(registry: &RegistryOptions) -> Result<RootCerts, PathError> {
    let mut certificates = Vec::new();
    for path in &registry.ca_files {
        let text = fs::read(path).with_path("read", path)?;
        let found = crate::http::certificates(&text).map_err(ureq::Error::into_io);
        certificates.extend(found.with_path("find certificates in", path)?);
    }
    Ok(RootCerts::new_with_certs(&certificates))
}

/// Returns a URL without its query, which may grant access.
fn strip_query(address: &str) -> String {
    address.split(['?', '#']).next().unwrap_or("").chars().take(200).collect()
}

/// Bytes of a response that are read for its error message.
const MAX_MESSAGE_BYTES: u64 = 16 << 10;

/// Characters of a server's error message that are shown.
const MAX_MESSAGE_CHARS: usize = 200;

/// Converts an error of a request to `server`. `referrer` is the name of the registry or mirror
/// that was asked first, and may have referred to `server`.
pub fn explain(referrer: &str, server: String, error: ureq::Error) -> RegistryError {
    let source = match error {
        ureq::Error::Timeout(_) => return RegistryError::Timeout { server },
        ureq::Error::HostNotFound => io::Error::new(io::ErrorKind::NotFound, "unknown host"),
        ureq::Error::Io(error) => error,
        ureq::Error::Rustls(error) => io::Error::other(error),
        error @ (ureq::Error::Protocol(_)
        | ureq::Error::Http(_)
        | ureq::Error::BadUri(_)
        | ureq::Error::LargeResponseHeader(..)) => {
            return RegistryError::Protocol { server, source: error.into_io() };
        }
        error => error.into_io(),
    };
    explain_io(referrer, server, source)
}

/// Converts an error of reading a response of `server`; for `referrer` see [`explain`].
pub fn explain_io(referrer: &str, server: String, source: io::Error) -> RegistryError {
    let source = match source.downcast::<RegistryError>() {
        // The budget has already explained the failure.
        Ok(error) => return error,
        Err(source) => source,
    };
    if let Some(InternalAddress { host, address }) = cause(&source) {
        let (host, address) = (host.clone(), *address);
        return RegistryError::InternalAddress { server: referrer.to_owned(), host, address };
    }
    match cause::<rustls::Error>(&source) {
        // The first bytes are not a TLS record.
        Some(rustls::Error::InvalidMessage(_)) => return RegistryError::PlainHttp { server },
        Some(_) => return RegistryError::Tls { server, source },
        None => {}
    }
    match cause::<ureq::Error>(&source) {
        Some(ureq::Error::Timeout(_)) => RegistryError::Timeout { server },
        Some(ureq::Error::Protocol(_)) => RegistryError::Protocol { server, source },
        _ if source.kind() == io::ErrorKind::TimedOut => RegistryError::Timeout { server },
        _ => RegistryError::Unreachable { server, source },
    }
}

/// Returns the seconds of `Retry-After`; the other form, a date, is rare.
pub fn retry_after(response: &Response<Body>) -> Option<Duration> {
    let value = response.headers().get("retry-after")?.to_str().ok()?;
    Some(Duration::from_secs(value.trim().parse().ok()?))
}

/// Returns the error message in a server's response.
pub fn message(answer: RegistryResponse, budget: &Arc<Budget>) -> String {
    #[derive(Deserialize)]
    struct ErrorList {
        #[serde(default)]
        errors: Vec<ErrorItem>,
        #[serde(default)]
        details: String,
    }
    #[derive(Deserialize)]
    struct ErrorItem {
        #[serde(default)]
        code: String,
        #[serde(default)]
        message: String,
    }
    let mut bytes = Vec::new();
    let body = budget.watch(answer.origin.server(), answer.response.into_body().into_reader());
    if body.take(MAX_MESSAGE_BYTES).read_to_end(&mut bytes).is_err() {
        return String::new();
    }
    let text = match serde_json::from_slice::<ErrorList>(&bytes) {
        Ok(ErrorList { errors, details }) => {
            let first = errors.into_iter().next();
            first.map_or(details, |one| if one.message.is_empty() { one.code } else { one.message })
        }
        // An HTML page is no useful message.
        Err(_) if bytes.trim_ascii_start().starts_with(b"<") => String::new(),
        Err(_) => String::from_utf8_lossy(&bytes).into_owned(),
    };
    let line = text.trim().lines().next().unwrap_or("");
    line.chars().filter(|c| !c.is_control()).take(MAX_MESSAGE_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_a_registry_are_found_by_port_and_in_any_case() {
        let names =
            [("H.example:443", true), ("both", true), ("both:443", false), ("port:5000", true)];
        let registries = names.map(|(name, insecure)| {
            (name.to_owned(), RegistryOptions { insecure, ..RegistryOptions::default() })
        });
        let options = ClientOptions { registries: registries.into(), ..ClientOptions::default() };
        let settings = ClientSettings::new(options).unwrap();
        for (name, expected) in [
            ("h.example", true),
            ("H.EXAMPLE:443", true),
            ("h.example:80", false),
            ("both", true),
            ("port:5000", true),
            ("port", false),
        ] {
            let origin = HttpOrigin::of_registry(name, true).unwrap();
            assert_eq!(settings.is_insecure(&origin), expected, "{name}");
            assert_eq!(settings.registry_named(name).is_some(), expected, "{name}");
        }
    }
}
