//! How connections are made.

use std::time::Duration;

use ureq::config::Config;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Error, Proxy};

/// More than a file with certificates of authorities has.
pub(crate) const MAX_CERTIFICATES_BYTES: u64 = 16 << 20;

/// What differs between clients.
pub(crate) struct AgentOptions<'a> {
    pub(crate) user_agent: &'a str,
    pub(crate) proxy: Option<Proxy>,
    pub(crate) tls: TlsConfig,
    /// How long a name may take to be resolved, and a server to accept a connection.
    pub(crate) connect_timeout: Duration,
    /// How long a server may then be silent.
    pub(crate) idle_timeout: Duration,
}

/// Returns the configuration of an agent. It follows no redirects by itself, since these decide who gets credentials,
/// and takes every status for an answer.
pub(crate) fn config(options: AgentOptions<'_>) -> Config {
    Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .max_idle_connections_per_host(8)
        .user_agent(options.user_agent)
        .proxy(options.proxy)
        .timeout_connect(Some(options.connect_timeout))
        .timeout_resolve(Some(options.connect_timeout))
        .timeout_recv_response(Some(options.idle_timeout))
        .timeout_per_read(Some(options.idle_timeout))
        .tls_config(options.tls)
        .build()
}

/// Returns how servers prove who they are; if `is_insecure`, they need not.
pub(crate) fn tls(roots: RootCerts, is_insecure: bool) -> TlsConfig {
    TlsConfig::builder().root_certs(roots).disable_verification(is_insecure).build()
}

/// Returns the authorities that this host trusts: those of its own list, or of the files in `SSL_CERT_FILE`
/// and `SSL_CERT_DIR`; where it has none, as in an image with one program, those that a function returns as
/// PEM, or else those of Mozilla that are compiled in.
pub(crate) fn host_roots(fallback: impl FnOnce() -> Option<Vec<u8>>) -> RootCerts {
    let host = rustls_native_certs::load_native_certs();
    // A list that was named and cannot be read is an error of every connection: nothing takes its place.
    if !host.certs.is_empty() || !host.errors.is_empty() {
        return RootCerts::PlatformVerifier;
    }
    let found = fallback().and_then(|pem| certificates(&pem).ok());
    match found.filter(|found| !found.is_empty()) {
        Some(found) => RootCerts::new_with_certs(&found),
        None => RootCerts::WebPki,
    }
}

/// Returns the certificates in a PEM file.
pub(crate) fn certificates(pem: &[u8]) -> Result<Vec<Certificate<'static>>, Error> {
    let items = parse_pem(pem).filter_map(|item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(Ok(certificate)),
        Ok(_) => None,
        Err(error) => Some(Err(error)),
    });
    items.collect()
}
