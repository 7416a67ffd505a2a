//! Where requests go: origins, and the addresses that nobody may send us to.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::OnceLock;

use ureq::Error;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;

/// Scheme, host and port: credentials for one are not for another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    pub(super) is_https: bool,
    /// In lower case; an IPv6 address has its brackets.
    pub(super) host: String,
    pub(super) port: u16,
}

impl Origin {
    /// Returns the origin of an absolute address; none if it is not plain HTTP or HTTPS, or has a
    /// user's name in it.
    pub(super) fn of(uri: &Uri) -> Option<Self> {
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
        Some(Origin { is_https, host, port })
    }

    /// Returns the origin of a registry that is named `HOST` or `HOST:PORT`.
    pub(super) fn of_registry(name: &str, is_https: bool) -> Option<Self> {
        let scheme = if is_https { "https" } else { "http" };
        let uri: Uri = format!("{scheme}://{name}/").parse().ok()?;
        Origin::of(&uri).filter(|_| uri.path() == "/")
    }

    /// Returns the host with the port, if it is not the usual one.
    pub(super) fn server(&self) -> String {
        let usual = if self.is_https { 443 } else { 80 };
        if self.port == usual { self.host.clone() } else { format!("{}:{}", self.host, self.port) }
    }

    /// Returns whether the host is this machine, by its name or address.
    pub(super) fn is_loopback(&self) -> bool {
        self.host == "localhost"
            || address(&self.host).is_some_and(|ip| canonical(ip).is_loopback())
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}:{}", if self.is_https { "https" } else { "http" }, self.host, self.port)
    }
}

/// Returns where a `Location` leads from an address.
pub(super) fn resolve(base: &Uri, location: &str) -> Option<Uri> {
    let location = location.split('#').next().unwrap_or("");
    let scheme = base.scheme_str()?;
    let authority = base.authority()?;
    let absolute = if location.contains("://") && !location.starts_with(['/', '?', '.']) {
        location.to_owned()
    } else if location.starts_with("//") {
        format!("{scheme}:{location}")
    } else if location.starts_with('/') {
        format!("{scheme}://{authority}{location}")
    } else {
        let directory = base.path().rsplit_once('/').map_or("", |(directory, _)| directory);
        format!("{scheme}://{authority}{directory}/{location}")
    };
    absolute.parse().ok()
}

/// An address that only this machine or its network has, where a server could send us to do harm.
#[derive(Debug, thiserror::Error)]
#[error("{host} is {address}")]
pub(super) struct InternalAddress {
    pub(super) host: String,
    pub(super) address: IpAddr,
}

/// Looks up hosts, and refuses those in places where only the registry itself may send us.
///
/// It looks at the address that is then connected to, so that no name and no way of writing an
/// address gets around it. Behind a proxy only the proxy is looked up here.
#[derive(Debug)]
pub(super) struct Guard {
    registry: Uri,
    proxy_host: Option<String>,
    own: OnceLock<Vec<IpAddr>>,
    inner: DefaultResolver,
}

impl Guard {
    /// Returns a resolver for everything that is done on behalf of a registry.
    pub(super) fn new(registry: Uri, proxy_host: Option<String>) -> Self {
        Guard { registry, proxy_host, own: OnceLock::new(), inner: DefaultResolver::default() }
    }
}

impl Resolver for Guard {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, Error> {
        let found = self.inner.resolve(uri, config, timeout)?;
        let host = uri.host().unwrap_or("");
        if uri.host() == self.registry.host() || self.proxy_host.as_deref() == Some(host) {
            return Ok(found);
        }
        for address in found.iter().map(|address| canonical(address.ip())) {
            if !is_internal(address) {
                continue;
            }
            let own = match self.own.get() {
                Some(own) => own,
                None => {
                    let own = self.inner.resolve(&self.registry, config, timeout)?;
                    let own = own.iter().map(|address| canonical(address.ip())).collect();
                    self.own.get_or_init(|| own)
                }
            };
            let is_ours = own.contains(&address)
                || address.is_loopback() && own.iter().any(IpAddr::is_loopback);
            if !is_ours {
                let refused = InternalAddress { host: host.to_owned(), address };
                return Err(Error::Io(std::io::Error::other(refused)));
            }
        }
        Ok(found)
    }
}

/// Returns whether an address is this machine, its link or a cloud's metadata server.
pub(super) fn is_internal(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            v4.is_loopback()
                || v4.is_link_local()
                || v4.is_unspecified()
                || v4.is_broadcast()
                || v4.is_multicast()
                || v4.octets()[0] == 0
                // Metadata servers of Alibaba Cloud and Oracle Cloud, which are not link-local.
                || matches!(v4.octets(), [100, 100, 100, 200] | [192, 0, 0, 192])
        }
        IpAddr::V6(v6) => {
            v6.is_loopback()
                || v6.is_unspecified()
                || v6.is_multicast()
                || v6.is_unicast_link_local()
                // Metadata servers of Amazon and Google.
                || v6 == Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)
                || v6 == Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)
        }
    }
}

/// Returns the IPv4 address that an IPv6 address stands for, if it does.
fn canonical(address: IpAddr) -> IpAddr {
    match address {
        // NAT64 leads to IPv4 too.
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

/// Returns the address that a host is, if it is one.
fn address(host: &str) -> Option<IpAddr> {
    host.trim_start_matches('[').trim_end_matches(']').parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(text: &str) -> Option<Origin> {
        Origin::of(&text.parse().unwrap())
    }

    #[test]
    fn row_19_host_scheme_and_port_make_an_origin() {
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
        ] {
            assert_eq!(resolve(&base, location).unwrap().to_string(), expected);
        }
    }

    #[test]
    fn row_20_only_a_registry_on_the_loopback_interface_leads_there() {
        let lookup = |registry: &str, target: &str| {
            let guard = Guard::new(registry.parse().unwrap(), None);
            let timeout = NextTimeout::default();
            guard.resolve(&target.parse().unwrap(), &Config::default(), timeout).is_ok()
        };
        for target in ["http://127.0.0.1/", "http://localhost:1/", "http://[::ffff:127.0.0.1]/"] {
            assert!(!lookup("https://192.0.2.1/", target), "{target}");
            assert!(lookup("https://127.0.0.1/", target), "{target}");
        }
        for target in ["http://169.254.169.254/", "http://2852039166/", "http://0xa9fea9fe/"] {
            assert!(!lookup("https://192.0.2.1/", target), "{target}");
            assert!(!lookup("https://127.0.0.1/", target), "{target}");
            assert!(!lookup("https://169.254.0.1/", target), "{target}");
            assert!(lookup("https://169.254.169.254/", target), "{target}");
        }
        assert!(lookup("https://192.0.2.1/", "https://192.0.2.2/"));
    }

    #[test]
    fn row_20_internal_addresses_are_known_in_every_form() {
        for internal in [
            "127.0.0.1",
            "127.9.9.9",
            "0.0.0.0",
            "169.254.169.254",
            "100.100.100.200",
            "::1",
            "::",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "64:ff9b::a9fe:a9fe",
            "fe80::1",
            "fd00:ec2::254",
            "224.0.0.1",
        ] {
            assert!(is_internal(canonical(internal.parse().unwrap())), "{internal}");
        }
        for public in ["10.0.0.1", "8.8.8.8", "192.168.1.1", "2001:db8::1", "fd12::1"] {
            assert!(!is_internal(canonical(public.parse().unwrap())), "{public}");
        }
    }
}
