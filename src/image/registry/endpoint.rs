//! One server of a registry: connections to it, wherever it redirects, and what its failures mean to a person.

use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::fs;
use std::io::{self, Read};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde::Deserialize;
use tracing::debug;
use ureq::http::{Response, Uri};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::unversioned::transport::DefaultConnector;
use ureq::{Agent, Body, Proxy, SendBody};

use super::budget::Budget;
use super::error::RegistryError;
use super::guard::{Guard, InternalAddress};
use super::options::{ClientOptions, RegistryOptions};
use crate::http::{
    AgentOptions, MAX_CERTIFICATES_BYTES, MAX_REDIRECTS, Origin, TOO_MANY_REDIRECTS, config,
    host_roots, is_direct, proxy_at, redacted, redirect, tls,
};
use crate::sys::fs::{PathContext as _, PathError, read_bounded};

/// How long a registry may take to store what it received.
const STORE_TIMEOUT: Duration = Duration::from_secs(300);

/// Options and what was made of them once for all servers.
#[derive(Debug)]
pub struct Settings {
    pub options: ClientOptions,
    proxy: Option<Proxy>,
    roots: BTreeMap<String, RootCerts>,
    /// For all other servers; read when the first of them is asked.
    host_roots: OnceLock<RootCerts>,
}

/// One server of a registry, the registry's own or a mirror.
#[derive(Debug)]
pub struct Endpoint {
    settings: Arc<Settings>,
    /// `HOST` or `HOST:PORT`, as people call it.
    pub name: String,
    /// The same, as it is reached.
    host: String,
    agent: Agent,
    origin: OnceLock<Origin>,
}

/// What is asked for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Request<'a> {
    /// Whether nothing but the headers is wanted.
    pub head: bool,
    /// The types of documents that will do.
    pub accept: Option<&'a str>,
    /// The offset of the first byte that is wanted.
    pub start: u64,
    /// The value of `Authorization`, for the origin of the address alone.
    pub authorization: Option<&'a str>,
}

/// What is sent to a server to keep.
pub struct Content<'a> {
    pub media_type: &'a str,
    pub size: u64,
    pub reader: &'a mut dyn Read,
}

/// How content is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Post,
    Put,
}

/// What was answered, and where: not where the request went if there were redirects.
pub struct Answer {
    pub response: Response<Body>,
    pub origin: Origin,
}

impl Settings {
    pub(super) fn new(options: ClientOptions) -> Result<Self, RegistryError> {
        let proxy = options.proxy.as_deref().map(|address| {
            proxy_at(address).ok_or_else(|| RegistryError::Proxy { proxy: redacted(address) })
        });
        let mut roots = BTreeMap::new();
        for (name, registry) in &options.registries {
            if !registry.ca_files.is_empty() {
                roots.insert(name.clone(), root_certificates(registry)?);
            }
        }
        let host_roots = OnceLock::new();
        Ok(Settings { proxy: proxy.transpose()?, roots, host_roots, options })
    }

    /// Returns what is configured for a server.
    fn registry(&self, server: &str) -> Option<&RegistryOptions> {
        self.options.registries.get(configured_name(server))
    }

    /// Returns whether a server's certificate counts for nothing.
    pub(super) fn is_insecure(&self, origin: &Origin) -> bool {
        origin.is_loopback() && !self.roots.contains_key(&origin.server())
            || self.registry(&origin.server()).is_some_and(|registry| registry.insecure)
    }

    /// Returns the proxy to reach a server by.
    fn proxy(&self, origin: &Origin) -> Option<Proxy> {
        self.proxy.clone().filter(|_| !is_direct(origin, &self.options.no_proxy))
    }

    fn tls(&self, origin: &Origin) -> TlsConfig {
        let own = self.roots.get(configured_name(&origin.server()));
        let roots = own.unwrap_or_else(|| {
            let file = self.options.fallback_ca_file.as_deref();
            let pem = || read_bounded(file?, MAX_CERTIFICATES_BYTES).ok();
            self.host_roots.get_or_init(|| host_roots(pem))
        });
        tls(roots.clone(), self.is_insecure(origin))
    }
}

impl Endpoint {
    /// Returns the server of a registry that is called so; none if no server can be.
    pub(super) fn new(settings: &Arc<Settings>, name: &str) -> Option<Self> {
        // Docker Hub's registry is on another host than its website.
        let host = if name == "docker.io" { "registry-1.docker.io" } else { name };
        let origin = Origin::of_registry(host, true)?;
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
        let agent =
            Agent::with_parts(config, DefaultConnector::default(), Guard::new(uri, proxy_host));
        Some(Endpoint {
            settings: Arc::clone(settings),
            name: name.to_owned(),
            host: host.to_owned(),
            agent,
            origin: OnceLock::new(),
        })
    }

    /// Returns where the server is: by plain HTTP only if that is allowed and HTTPS does not work.
    pub(super) fn origin(&self) -> Result<&Origin, RegistryError> {
        if let Some(origin) = self.origin.get() {
            return Ok(origin);
        }
        let at = |is_https| {
            Origin::of_registry(&self.host, is_https).expect("this was checked when it was made")
        };
        let is_https = if self.settings.is_insecure(&at(true)) {
            let uri = self.uri(&at(true), "/v2/")?;
            match self.send(&uri, Request { head: true, ..Request::default() }) {
                Ok(_) => true,
                Err(timeout @ RegistryError::Timeout { .. }) => return Err(timeout),
                Err(_) => false,
            }
        } else {
            true
        };
        Ok(self.origin.get_or_init(|| at(is_https)))
    }

    /// Returns the address of a path on the server.
    pub(super) fn uri(&self, origin: &Origin, path: &str) -> Result<Uri, RegistryError> {
        format!("{origin}{path}").parse().map_err(|error| RegistryError::Protocol {
            server: self.name.clone(),
            source: io::Error::other(error),
        })
    }

    /// Asks, and follows redirects.
    pub(super) fn send(&self, uri: &Uri, request: Request<'_>) -> Result<Answer, RegistryError> {
        let mut uri = uri.clone();
        let mut origin = self.origin_of(&uri, "not an address of a web server")?;
        let mut authorization = request.authorization;
        for _ in 0..=MAX_REDIRECTS {
            debug!(address = shown(&uri.to_string()), "send a request");
            let response = self.send_once(&uri, &origin, Request { authorization, ..request })?;
            let is_redirect = matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308);
            let location = response.headers().get("location").filter(|_| is_redirect);
            let Some(location) = location else { return Ok(Answer { response, origin }) };
            let next = redirect(&uri, &origin, location, |next| self.settings.is_insecure(next));
            let (target, next) = next.map_err(|reason| RegistryError::Redirect {
                server: origin.server(),
                target: shown(&String::from_utf8_lossy(location.as_bytes())),
                reason,
            })?;
            // Once gone they stay away: who comes back was sent by somebody else.
            if next != origin {
                authorization = None;
            }
            (uri, origin) = (target, next);
        }
        Err(RegistryError::Redirect {
            server: self.name.clone(),
            target: shown(&uri.to_string()),
            reason: TOO_MANY_REDIRECTS,
        })
    }

    /// Posts a form, and follows nothing.
    pub(super) fn post(&self, uri: &Uri, form: &str) -> Result<Answer, RegistryError> {
        let origin = self.origin_of(uri, "not an address of a web server")?;
        let builder = self.agent.post(uri.clone()).config().proxy(self.settings.proxy(&origin));
        let builder = builder.tls_config(self.settings.tls(&origin));
        let builder = builder.build().content_type("application/x-www-form-urlencoded");
        let response = builder.send(form);
        let response = response.map_err(|error| explain(&self.name, origin.server(), error))?;
        Ok(Answer { response, origin })
    }

    /// Sends content, and follows nothing: where it goes to is known before.
    ///
    /// `authorization` is for the origin of the address.
    pub(super) fn transmit(
        &self,
        method: Method,
        uri: &Uri,
        content: Content<'_>,
        authorization: Option<&str>,
    ) -> Result<Answer, RegistryError> {
        let origin = self.origin_of(uri, "not an address of a web server")?;
        debug!(address = shown(&uri.to_string()), bytes = content.size, "send content");
        let builder = match method {
            Method::Post => self.agent.post(uri.clone()),
            Method::Put => self.agent.put(uri.clone()),
        };
        let options = &self.settings.options;
        let builder = builder.config().proxy(self.settings.proxy(&origin));
        let builder = builder.tls_config(self.settings.tls(&origin));
        let builder = builder.timeout_per_write(Some(options.idle_timeout));
        // Large blobs are hashed once more, or copied, before the answer.
        let builder = builder.timeout_recv_response(Some(options.idle_timeout.max(STORE_TIMEOUT)));
        let mut builder = builder.build().content_type(content.media_type);
        builder = builder.header("content-length", content.size);
        if let Some(authorization) = authorization {
            builder = builder.header("authorization", authorization);
        }
        let response = builder.send(SendBody::from_reader(content.reader));
        let response = response.map_err(|error| explain(&self.name, origin.server(), error))?;
        Ok(Answer { response, origin })
    }

    /// Returns where a `Location` of an answer leads.
    pub(super) fn location(&self, uri: &Uri, answer: &Answer) -> Result<Uri, RegistryError> {
        let location = answer.response.headers().get("location");
        let location = location.ok_or_else(|| RegistryError::NoLocation {
            registry: self.name.clone(),
            repository: uri.path().trim_start_matches("/v2/").to_owned(),
        })?;
        let is_insecure = |next: &Origin| self.settings.is_insecure(next);
        let next = redirect(uri, &answer.origin, location, is_insecure);
        next.map(|(target, _)| target).map_err(|reason| RegistryError::Redirect {
            server: answer.origin.server(),
            target: shown(&String::from_utf8_lossy(location.as_bytes())),
            reason,
        })
    }

    fn send_once(
        &self,
        uri: &Uri,
        origin: &Origin,
        request: Request<'_>,
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

    fn origin_of(&self, uri: &Uri, reason: &'static str) -> Result<Origin, RegistryError> {
        Origin::of(uri).ok_or_else(|| RegistryError::Redirect {
            server: self.name.clone(),
            target: shown(&uri.to_string()),
            reason,
        })
    }
}

/// Returns the name by which a server is configured.
fn configured_name(server: &str) -> &str {
    if server == "registry-1.docker.io" { "docker.io" } else { server }
}

fn root_certificates(registry: &RegistryOptions) -> Result<RootCerts, PathError> {
    let mut certificates = Vec::new();
    for path in &registry.ca_files {
        let text = fs::read(path).at("read", path)?;
        let found = crate::http::certificates(&text).map_err(ureq::Error::into_io);
        certificates.extend(found.at("find certificates in", path)?);
    }
    Ok(RootCerts::new_with_certs(&certificates))
}

/// Returns an address without the parameters, which may be a permission to read.
fn shown(address: &str) -> String {
    address.split(['?', '#']).next().unwrap_or("").chars().take(200).collect()
}

/// How much of an answer is read to learn what was wrong.
const MAX_MESSAGE_BYTES: u64 = 16 << 10;

/// How much of what a server said is passed on.
const MAX_MESSAGE_CHARS: usize = 200;

/// Explains why there was no answer from a server that `asker` had us talk to.
pub fn explain(asker: &str, server: String, error: ureq::Error) -> RegistryError {
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
    explain_io(asker, server, source)
}

/// Explains why no more came from a server.
pub fn explain_io(asker: &str, server: String, source: io::Error) -> RegistryError {
    let source = match source.downcast::<RegistryError>() {
        // What watches over the transfer has said it all.
        Ok(error) => return error,
        Err(source) => source,
    };
    if let Some(InternalAddress { host, address }) = find(&source) {
        let (host, address) = (host.clone(), *address);
        return RegistryError::InternalAddress { server: asker.to_owned(), host, address };
    }
    match find::<rustls::Error>(&source) {
        // The first bytes are not a TLS record.
        Some(rustls::Error::InvalidMessage(_)) => return RegistryError::PlainHttp { server },
        Some(_) => return RegistryError::Tls { server, source },
        None => {}
    }
    match find::<ureq::Error>(&source) {
        Some(ureq::Error::Timeout(_)) => RegistryError::Timeout { server },
        Some(ureq::Error::Protocol(_)) => RegistryError::Protocol { server, source },
        _ if source.kind() == io::ErrorKind::TimedOut => RegistryError::Timeout { server },
        _ => RegistryError::Unreachable { server, source },
    }
}

/// Finds an error of a kind among the causes of another.
fn find<T: StdError + 'static>(error: &io::Error) -> Option<&T> {
    let mut cause = error.get_ref().map(|inner| inner as &(dyn StdError + 'static));
    while let Some(error) = cause {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        // `io::Error` gives out what it holds only so; its `source` is one further.
        cause = match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    None
}

/// Returns the seconds of `Retry-After`; the other form, a date, is rare.
pub fn retry_after(response: &Response<Body>) -> Option<Duration> {
    let value = response.headers().get("retry-after")?.to_str().ok()?;
    Some(Duration::from_secs(value.trim().parse().ok()?))
}

/// Returns what a server said about an error.
pub fn message(answer: Answer, budget: &Arc<Budget>) -> String {
    #[derive(Deserialize)]
    struct Errors {
        #[serde(default)]
        errors: Vec<One>,
        #[serde(default)]
        details: String,
    }
    #[derive(Deserialize)]
    struct One {
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
    let text = match serde_json::from_slice::<Errors>(&bytes) {
        Ok(Errors { errors, details }) => {
            let first = errors.into_iter().next();
            first.map_or(details, |one| if one.message.is_empty() { one.code } else { one.message })
        }
        // A page in HTML helps nobody.
        Err(_) if bytes.trim_ascii_start().starts_with(b"<") => String::new(),
        Err(_) => String::from_utf8_lossy(&bytes).into_owned(),
    };
    let line = text.trim().lines().next().unwrap_or("");
    line.chars().filter(|c| !c.is_control()).take(MAX_MESSAGE_CHARS).collect()
}
