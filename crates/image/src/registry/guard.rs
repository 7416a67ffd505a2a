//! Rejects redirects and token servers with internal addresses of this machine or its network.

use std::net::IpAddr;
use std::sync::OnceLock;

use oci_hooks_host::metadata::METADATA;
use ureq::Error;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;

use crate::http::canonical_address;

/// Internal address of this machine or its network, which no server may make the client connect to.
#[derive(Debug, thiserror::Error)]
#[error("{host} is {address}")]
pub struct InternalAddress {
    pub host: String,
    pub address: IpAddr,
}

/// Resolver that rejects internal addresses unless the registry itself has them.
///
/// It checks the resolved address that is then connected to, so that neither names nor other
/// notations of an address bypass it. Behind a proxy, only the proxy is resolved here.
#[derive(Debug)]
pub struct AddressGuard {
    registry: Uri,
    proxy_host: Option<String>,
    own: OnceLock<Vec<IpAddr>>,
    inner: DefaultResolver,
}

impl AddressGuard {
    /// Returns a resolver for requests on behalf of a registry.
    pub fn new(registry: Uri, proxy_host: Option<String>) -> Self {
        AddressGuard {
            registry,
            proxy_host,
            own: OnceLock::new(),
            inner: DefaultResolver::default(),
        }
    }
}

impl Resolver for AddressGuard {
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
        for address in found.iter().map(|address| canonical_address(address.ip())) {
            if !is_internal(address) {
                continue;
            }
            let own = match self.own.get() {
                Some(own) => own,
                None => {
                    let own = self.inner.resolve(&self.registry, config, timeout)?;
                    let own = own.iter().map(|address| canonical_address(address.ip())).collect();
                    self.own.get_or_init(|| own)
                }
            };
            let is_ours = own.contains(&address)
                || address.is_loopback() && own.iter().any(IpAddr::is_loopback);
            if !is_ours {
                let rejected = InternalAddress { host: host.to_owned(), address };
                return Err(Error::Io(std::io::Error::other(rejected)));
            }
        }
        Ok(found)
    }
}

/// Returns whether an address is a loopback, link-local, unspecified, broadcast or multicast one,
/// or that of a cloud's metadata server.
fn is_internal(address: IpAddr) -> bool {
    let is_local = match address {
        IpAddr::V4(v4) => {
            v4.is_loopback()
                || v4.is_link_local()
                || v4.is_unspecified()
                || v4.is_broadcast()
                || v4.is_multicast()
                || v4.octets()[0] == 0
        }
        IpAddr::V6(v6) => {
            v6.is_loopback()
                || v6.is_unspecified()
                || v6.is_multicast()
                || v6.is_unicast_link_local()
        }
    };
    is_local || METADATA.iter().any(|metadata| metadata.address == address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_loopback_registry_may_redirect_to_loopback() {
        let lookup = |registry: &str, target: &str| {
            let guard = AddressGuard::new(registry.parse().unwrap(), None);
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
    fn internal_addresses_are_recognized_in_every_form() {
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
            "168.63.129.16",
            "fd00:42::42",
            "224.0.0.1",
        ] {
            assert!(is_internal(canonical_address(internal.parse().unwrap())), "{internal}");
        }
        for public in
            ["10.0.0.1", "8.8.8.8", "192.168.1.1", "168.63.129.17", "2001:db8::1", "fd12::1"]
        {
            assert!(!is_internal(canonical_address(public.parse().unwrap())), "{public}");
        }
    }
}
