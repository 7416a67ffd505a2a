//! How connections are made.

use std::time::Duration;

use ureq::config::Config;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Error, Proxy};

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

/// Returns the certificates in a PEM file.
pub(crate) fn certificates(pem: &[u8]) -> Result<Vec<Certificate<'static>>, Error> {
    let items = parse_pem(pem).filter_map(|item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(Ok(certificate)),
        Ok(_) => None,
        Err(error) => Some(Err(error)),
    });
    items.collect()
}
