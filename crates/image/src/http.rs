//! HTTP settings that all clients of this project share: origins, redirects, proxies, certificates
//! and timeouts.
//!
//! Each client decides which addresses are blocked, whether plain HTTP is allowed, and what is
//! retried.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use ureq::config::Config;
use ureq::http::{HeaderValue, Uri};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Error, Proxy};

/// Size limit of a file with CA certificates.
pub const MAX_CERTIFICATES_BYTES: u64 = 16 << 20;

/// Settings that differ between clients.
pub struct AgentOptions<'a> {
    pub user_agent: &'a str,
    pub proxy: Option<Proxy>,
    pub tls: TlsConfig,
    /// Timeout of name resolution, and of connecting.
    pub connect_timeout: Duration,
    /// Timeout of the response, and of each read.
    pub idle_timeout: Duration,
}

/// Returns the configuration of an agent that returns every status as a response. It follows no
/// redirects: the client decides where credentials go.
pub fn config(options: AgentOptions<'_>) -> Config {
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

/// Returns the TLS configuration; `is_insecure` disables the verification of certificates.
pub fn tls(roots: RootCerts, is_insecure: bool) -> TlsConfig {
    TlsConfig::builder().root_certs(roots).disable_verification(is_insecure).build()
}

/// Returns the CA certificates that this host trusts: its own, or those of `SSL_CERT_FILE` and
/// `SSL_CERT_DIR`. On a host without any, such as a minimal container, returns the PEM certificates
/// of `fallback`, or else Mozilla's, which are compiled in.
pub(crate) fn host_roots(fallback: impl FnOnce() -> Option<Vec<u8>>) -> RootCerts {
    if has_host_roots() {
        return RootCerts::PlatformVerifier;
    }
    let found = fallback().and_then(|pem| certificates(&pem).ok());
    match found.filter(|found| !found.is_empty()) {
        Some(found) => RootCerts::new_with_certs(&found),
        None => RootCerts::WebPki,
    }
}

/// Returns whether this host has CA certificates. Unreadable ones count: they are not replaced, so
/// that connections fail.
pub fn has_host_roots() -> bool {
    let host = rustls_native_certs::load_native_certs();
    !host.certs.is_empty() || !host.errors.is_empty()
}

/// Returns the certificates in a PEM file.
pub fn certificates(pem: &[u8]) -> Result<Vec<Certificate<'static>>, Error> {
    let items = parse_pem(pem).filter_map(|item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(Ok(certificate)),
        Ok(_) => None,
        Err(error) => Some(Err(error)),
    });
    items.collect()
}

/// Scheme, host and port. Credentials of one origin are not sent to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpOrigin {
    pub is_https: bool,
    /// Lower case; an IPv6 address is in brackets.
    pub host: String,
    pub port: u16,
}

impl HttpOrigin {
    /// Returns the origin of an absolute URL, or `None` if it is not HTTP or HTTPS, or contains a
    /// user name.
    pub fn of(uri: &Uri) -> Option<Self> {
        let is_https = match uri.scheme_str()? {
            "https" => true,
            "http" => false,
            _ => return None,
        };
        let authority = uri.authority().filter(|authority| !authority.as_str().contains('@'))?;
        let host = authority.host().to_ascii_lowercase();
        let port = match authority.as_str().len() - host.len() {
            0 => {
                if is_https {
                    443
                } else {
                    80
                }
            }
            _ => authority.port_u16()?,
        };
        Some(HttpOrigin { is_https, host, port })
    }

    /// Returns the origin of a registry that is named `HOST` or `HOST:PORT`.
    pub(crate) fn of_registry(name: &str, is_https: bool) -> Option<Self> {
        let scheme = if is_https { "https" } else { "http" };
        let uri: Uri = format!("{scheme}://{name}/").parse().ok()?;
        HttpOrigin::of(&uri).filter(|_| uri.path() == "/")
    }

    /// Returns the host, with the port unless it is the default.
    pub(crate) fn server(&self) -> String {
        let usual = if self.is_https { 443 } else { 80 };
        if self.port == usual { self.host.clone() } else { format!("{}:{}", self.host, self.port) }
    }

    /// Returns whether the host is `localhost` or a loopback address.
    pub(crate) fn is_loopback(&self) -> bool {
        self.host == "localhost"
            || address(&self.host).is_some_and(|ip| canonical_address(ip).is_loopback())
    }
}

impl fmt::Display for HttpOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}:{}", if self.is_https { "https" } else { "http" }, self.host, self.port)
    }
}

/// Resolves a `Location` against a URL.
pub fn resolve(base: &Uri, location: &str) -> Option<Uri> {
    let location = location.split('#').next().unwrap_or("");
    let scheme = base.scheme_str()?;
    let authority = base.authority()?;
    let is_scheme = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let absolute = if location.split_once("://").is_some_and(|(start, _)| is_scheme(start)) {
        location.to_owned()
    } else if location.starts_with("//") {
        format!("{scheme}:{location}")
    } else if location.starts_with('/') {
        format!("{scheme}://{authority}{location}")
    } else if location.starts_with('?') {
        format!("{scheme}://{authority}{}{location}", base.path())
    } else {
        let directory = base.path().rsplit_once('/').map_or("", |(directory, _)| directory);
        format!("{scheme}://{authority}{directory}/{location}")
    };
    absolute.parse().ok()
}

/// Returns the IPv4 address embedded in an IPv6 address, or else the address itself.
pub fn canonical_address(address: IpAddr) -> IpAddr {
    match address {
        // NAT64 addresses embed an IPv4 address too.
        IpAddr::V6(v6) => match v6.segments() {
            [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
                let [a, b] = high.to_be_bytes();
                let [c, d] = low.to_be_bytes();
                IpAddr::from([a, b, c, d])
            }
            _ => v6.to_canonical(),
        },
        v4 @ IpAddr::V4(_) => v4,
    }
}

/// Parses a host that is an IP address.
fn address(host: &str) -> Option<IpAddr> {
    host.trim_start_matches('[').trim_end_matches(']').parse().ok()
}

/// Limit of redirects in a row.
pub const MAX_REDIRECTS: usize = 10;

/// Reason for not following more redirects.
pub const TOO_MANY_REDIRECTS: &str = "too many redirects";

/// Resolves the `Location` of a redirect. Fails with the reason if it is not an HTTP URL, or leads
/// from HTTPS to plain HTTP and `is_insecure` does not allow that.
pub fn redirect(
    uri: &Uri,
    origin: &HttpOrigin,
    location: &HeaderValue,
    is_insecure: impl FnOnce(&HttpOrigin) -> bool,
) -> Result<(Uri, HttpOrigin), &'static str> {
    let location = String::from_utf8_lossy(location.as_bytes());
    let target = resolve(uri, &location)
        .ok_or("expected an http or https URL without a user name or password")?;
    let next = HttpOrigin::of(&target)
        .ok_or("expected an http or https URL without a user name or password")?;
    if origin.is_https && !next.is_https && !is_insecure(&next) {
        return Err("it is not encrypted, but the server that redirects is");
    }
    Ok((target, next))
}

/// Returns the proxy at a URL, or `None` if the URL is not valid for a proxy.
pub fn proxy_at(address: &str) -> Option<Proxy> {
    // Rebuilt without a path, and without a user name that has no password.
    let parsed = Proxy::new(address).ok()?;
    let mut builder = Proxy::builder(parsed.protocol()).host(parsed.host()).port(parsed.port());
    if let (Some(user), Some(password)) = (parsed.username(), parsed.password()) {
        builder = builder.username(user).password(password);
    }
    builder.build().ok()
}

/// Returns a URL with its login redacted.
pub fn redact_url(address: &str) -> String {
    match (address.split_once("://"), address.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://***@{host}"),
        (None, Some((_, host))) => format!("***@{host}"),
        _ => address.to_owned(),
    }
}

/// Returns whether a server is reached without a proxy: it is this machine, or matches an entry of
/// `list`, which has the syntax of `NO_PROXY`.
pub fn is_direct(origin: &HttpOrigin, list: &[String]) -> bool {
    origin.is_loopback()
        || list.iter().any(|entry| entry_matches(&entry.trim().to_ascii_lowercase(), origin))
}

fn entry_matches(entry: &str, origin: &HttpOrigin) -> bool {
    let host = origin.host.trim_matches(['[', ']']);
    if entry == "*" {
        return true;
    }
    if let Ok(network) = entry.parse::<IpNet>() {
        return host.parse::<IpAddr>().is_ok_and(|host| network.contains(&host));
    }
    // The colons of an IPv6 address do not begin a port.
    let (name, port) = match entry.parse::<IpAddr>() {
        Ok(_) => (entry, None),
        Err(_) => entry.rsplit_once(':').map_or((entry, None), |(name, port)| (name, Some(port))),
    };
    if port.is_some_and(|port| port.parse() != Ok(origin.port)) {
        return false;
    }
    let name = name.trim_matches(['[', ']']);
    let name = name.strip_prefix('*').unwrap_or(name);
    let (domain, is_below_only) = name.strip_prefix('.').map_or((name, false), |name| (name, true));
    if domain.is_empty() {
        return false;
    }
    let is_below = host.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.'));
    is_below || (!is_below_only && host == domain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(text: &str) -> Option<HttpOrigin> {
        HttpOrigin::of(&text.parse().unwrap())
    }

    #[test]
    fn scheme_host_and_port_form_an_origin() {
        let base = origin("https://a.example/v2/x").unwrap();
        for same in ["https://a.example", "https://A.example:443/y?z"] {
            assert_eq!(origin(same), Some(base.clone()), "{same}");
        }
        for other in [
            "http://a.example/",
            "https://a.example:444/",
            "https://b.example/",
            "https://a.example.evil/",
            "https://xa.example/",
        ] {
            assert_ne!(origin(other), Some(base.clone()), "{other}");
        }
        assert_eq!(origin("https://user:pw@a.example/"), None);
        assert_eq!(origin("ftp://a.example/"), None);
        assert_eq!(origin("http://[::1]:5000/").unwrap().server(), "[::1]:5000");
    }

    #[test]
    fn locations_are_resolved() {
        let base = "https://a.example:5000/v2/x/blobs/1?q".parse().unwrap();
        for (location, expected) in [
            ("https://b.example/y?z", "https://b.example/y?z"),
            ("//b.example/y", "https://b.example/y"),
            ("/y", "https://a.example:5000/y"),
            ("2", "https://a.example:5000/v2/x/blobs/2"),
            ("/y?u=http://c.example/", "https://a.example:5000/y?u=http://c.example/"),
            ("/y#f", "https://a.example:5000/y"),
            ("?x=1", "https://a.example:5000/v2/x/blobs/1?x=1"),
            ("y?u=http://c.example/", "https://a.example:5000/v2/x/blobs/y?u=http://c.example/"),
        ] {
            assert_eq!(resolve(&base, location).unwrap().to_string(), expected);
        }
    }

    #[test]
    fn only_http_redirects_without_downgrade_are_followed() {
        let uri: Uri = "https://a.example/v2/x".parse().unwrap();
        let origin = HttpOrigin::of(&uri).unwrap();
        let follow = |location: &'static str, is_insecure| {
            let location = HeaderValue::from_static(location);
            redirect(&uri, &origin, &location, |_| is_insecure).map(|(uri, _)| uri.to_string())
        };
        assert_eq!(follow("/y", false).unwrap(), "https://a.example/y");
        assert_eq!(follow("https://b.example/", false).unwrap(), "https://b.example/");
        assert!(follow("http://a.example/", false).unwrap_err().contains("not encrypted"));
        assert!(follow("http://a.example/", true).is_ok());
        for location in ["ftp://a.example/", "https://u:p@a.example/"] {
            assert!(
                follow(location, true).unwrap_err().contains("an http or https URL"),
                "{location}"
            );
        }
    }

    #[test]
    fn proxy_exclusions_match_like_in_go() {
        for (entry, server, expected) in [
            ("example.com", "example.com", true),
            ("example.com", "a.example.com:5000", true),
            ("example.com", "badexample.com", false),
            (".example.com", "example.com", false),
            (" .Example.com", "a.example.com", true),
            ("*.example.com", "a.example.com", true),
            ("example.com:5000", "example.com:5000", true),
            ("example.com:5000", "example.com", false),
            ("10.0.0.0/8", "10.1.2.3:5000", true),
            ("10.0.0.0/8", "11.1.2.3", false),
            ("0.0.0.0/0", "11.1.2.3", true),
            ("fd00::/8", "[fd12::1]:5000", true),
            ("fd12::1", "[fd12::1]", true),
            ("10.1.2.3", "10.1.2.3", true),
            ("*", "ghcr.io", true),
            ("", "ghcr.io", false),
            ("x/y", "ghcr.io", false),
            ("10.0.0.0/99", "10.1.2.3", false),
        ] {
            let origin = HttpOrigin::of_registry(server, true).unwrap();
            assert_eq!(is_direct(&origin, &[entry.to_owned()]), expected, "{entry} {server}");
        }
    }

    #[test]
    fn local_addresses_need_no_proxy() {
        for server in ["localhost:5000", "127.0.0.2", "[::1]:5000"] {
            assert!(is_direct(&HttpOrigin::of_registry(server, false).unwrap(), &[]), "{server}");
        }
    }
}
