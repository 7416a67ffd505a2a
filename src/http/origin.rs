//! Where requests go.

use std::fmt;
use std::net::IpAddr;

use ureq::http::Uri;

/// Scheme, host and port: credentials for one are not for another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) is_https: bool,
    /// In lower case; an IPv6 address has its brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl Origin {
    /// Returns the origin of an absolute address; none if it is not plain HTTP or HTTPS, or has a
    /// user's name in it.
    pub(crate) fn of(uri: &Uri) -> Option<Self> {
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
    pub(crate) fn of_registry(name: &str, is_https: bool) -> Option<Self> {
        let scheme = if is_https { "https" } else { "http" };
        let uri: Uri = format!("{scheme}://{name}/").parse().ok()?;
        Origin::of(&uri).filter(|_| uri.path() == "/")
    }

    /// Returns the host with the port, if it is not the usual one.
    pub(crate) fn server(&self) -> String {
        let usual = if self.is_https { 443 } else { 80 };
        if self.port == usual { self.host.clone() } else { format!("{}:{}", self.host, self.port) }
    }

    /// Returns whether the host is this machine, by its name or address.
    pub(crate) fn is_loopback(&self) -> bool {
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
pub(crate) fn resolve(base: &Uri, location: &str) -> Option<Uri> {
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

/// Returns the IPv4 address that an IPv6 address stands for, if it does.
pub(crate) fn canonical(address: IpAddr) -> IpAddr {
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
    fn host_scheme_and_port_make_an_origin() {
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
}
