//! Proxies, and which servers are reached without: by the rules of Go, which everybody's `NO_PROXY`
//! was written for.

use std::net::IpAddr;

use ipnet::IpNet;
use ureq::Proxy;

use super::origin::Origin;

/// Returns the proxy at an address; none if it cannot be one.
pub(crate) fn proxy_at(address: &str) -> Option<Proxy> {
    // Made anew of what counts: a path, or a name without a password, would only be in the way.
    let parsed = Proxy::new(address).ok()?;
    let mut builder = Proxy::builder(parsed.protocol()).host(parsed.host()).port(parsed.port());
    if let (Some(user), Some(password)) = (parsed.username(), parsed.password()) {
        builder = builder.username(user).password(password);
    }
    builder.build().ok()
}

/// Returns an address without the login in it.
pub(crate) fn redacted(address: &str) -> String {
    match (address.split_once("://"), address.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://***@{host}"),
        (None, Some((_, host))) => format!("***@{host}"),
        _ => address.to_owned(),
    }
}

/// Returns whether a server is reached directly: it is this machine, or on the list.
pub(crate) fn is_direct(origin: &Origin, list: &[String]) -> bool {
    origin.is_loopback()
        || list.iter().any(|entry| fits(&entry.trim().to_ascii_lowercase(), origin))
}

fn fits(entry: &str, origin: &Origin) -> bool {
    let host = origin.host.trim_matches(['[', ']']);
    if entry == "*" {
        return true;
    }
    if let Ok(network) = entry.parse::<IpNet>() {
        return host.parse::<IpAddr>().is_ok_and(|host| network.contains(&host));
    }
    // An IPv6 address has colons of its own.
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

    #[test]
    fn servers_are_on_the_list_as_in_go() {
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
            let origin = Origin::of_registry(server, true).unwrap();
            assert_eq!(is_direct(&origin, &[entry.to_owned()]), expected, "{entry} {server}");
        }
    }

    #[test]
    fn this_machine_needs_no_proxy() {
        for server in ["localhost:5000", "127.0.0.2", "[::1]:5000"] {
            assert!(is_direct(&Origin::of_registry(server, false).unwrap(), &[]), "{server}");
        }
    }
}
