//! Registries in the settings: missing certificates, and unknown or unreachable mirrors.

use std::collections::BTreeMap;
use std::io;
use std::net::{TcpStream, ToSocketAddrs as _};
use std::path::Path;
use std::time::Duration;

use oci_hooks_files::error::chain;
use oci_hooks_files::fs::read_bounded;
use oci_hooks_image::http::certificates;

use super::super::sections::RegistrySection;
use super::HostCheck;

/// Size limit of a certificate file, larger than any real one.
const MAX_BYTES: u64 = 16 << 20;

/// Timeout for connecting to a mirror.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Checks the CA files and mirrors in the settings, and connects to each mirror.
pub fn checks(registries: &BTreeMap<String, RegistrySection>) -> Vec<HostCheck> {
    let mut checks = missing(registries);
    for (registry, RegistrySection { mirrors, insecure, .. }) in registries {
        let deaf = |mirror: &String| check_mirror_connection(registry, mirror, *insecure);
        checks.extend(mirrors.iter().filter_map(deaf));
    }
    checks
}

/// Reports the CA files and mirrors in the settings that do not exist.
pub fn missing(registries: &BTreeMap<String, RegistrySection>) -> Vec<HostCheck> {
    let all = registries.iter().flat_map(|(registry, options)| {
        let ca = options.ca.iter().filter_map(|path| find_missing_ca(registry, path));
        let mirrors =
            options.mirrors.iter().filter_map(|mirror| find_unresolved_mirror(registry, mirror));
        ca.chain(mirrors)
    });
    all.collect()
}

fn find_missing_ca(registry: &str, path: &Path) -> Option<HostCheck> {
    let problem = match read_bounded(path, MAX_BYTES).map(|bytes| certificates(&bytes)) {
        Err(error) => chain(&error),
        Ok(Ok(found)) if !found.is_empty() => return None,
        Ok(_) => format!("{} has no certificate in PEM", path.display()),
    };
    let found = format!("ca of [registry.{registry:?}]: {problem}");
    let consequence = "images of that registry cannot be pulled";
    let hint = "name an existing PEM file, or remove `ca`";
    Some(HostCheck::fail_with(consequence, "registry CA", found, hint))
}

fn find_unresolved_mirror(registry: &str, mirror: &str) -> Option<HostCheck> {
    let error = address(mirror, "443").to_socket_addrs().err()?;
    let found = format!("mirror {mirror:?} of [registry.{registry:?}] has no address: {error}");
    let hint = "correct its name in `mirrors`, or remove it";
    Some(HostCheck::warn("registry mirror", found, hint))
}

/// Checks that a mirror accepts a connection. Mirrors whose name does not resolve are reported by [`find_unresolved_mirror`].
fn check_mirror_connection(registry: &str, mirror: &str, insecure: bool) -> Option<HostCheck> {
    let ports: &[&str] = if insecure { &["443", "80"] } else { &["443"] };
    let addresses: Vec<_> = ports
        .iter()
        .filter_map(|port| address(mirror, port).to_socket_addrs().ok())
        .flatten()
        .collect();
    let mut last: Option<io::Error> = None;
    for address in addresses {
        match TcpStream::connect_timeout(&address, TIMEOUT) {
            Ok(_) => return None,
            Err(error) => last = Some(error),
        }
    }
    let found = format!("mirror {mirror:?} of [registry.{registry:?}] does not answer: {}", last?);
    let hint = "start it, or remove it from `mirrors`: each pull tries it first";
    Some(HostCheck::warn("registry mirror", found, hint))
}

/// Returns `HOST:PORT` of a mirror, which may have a path and no port.
fn address(mirror: &str, port: &str) -> String {
    let host = mirror.split('/').next().unwrap_or_default();
    let has_port = host.rsplit_once(':').is_some_and(|(_, end)| !end.contains(']'));
    if has_port { host.to_owned() } else { format!("{host}:{port}") }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn registry(mirrors: &[&str], ca: Option<&Path>) -> BTreeMap<String, RegistrySection> {
        let registry = RegistrySection {
            insecure: false,
            mirrors: mirrors.iter().map(|mirror| (*mirror).to_owned()).collect(),
            ca: ca.map(Path::to_owned),
        };
        BTreeMap::from([("docker.io".to_owned(), registry)])
    }

    #[test]
    fn missing_certificates_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ca.pem");
        let line = |path: &Path| missing(&registry(&[], Some(path)))[0].finding().to_owned();
        let found = line(&path);
        assert!(found.starts_with("ca of [registry.\"docker.io\"]: "), "{found}");
        assert!(found.contains("ca.pem: No such file"), "{found}");
        std::fs::write(&path, "no certificate\n").unwrap();
        assert!(line(&path).contains("ca.pem has no certificate in PEM"), "{}", line(&path));
        let certificate = concat!(env!("CARGO_MANIFEST_DIR"), "/../testsupport/data/tls/ca.pem");
        assert!(missing(&registry(&[], Some(Path::new(certificate)))).is_empty());
    }

    #[test]
    fn missing_mirrors_are_named() {
        let found = missing(&registry(&["no-such-mirror.invalid/x"], None));
        assert!(found[0].finding().contains("\"no-such-mirror.invalid/x\" of"), "{found:?}");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mirror = listener.local_addr().unwrap().to_string();
        assert!(checks(&registry(&[&mirror, &format!("{mirror}/proxy")], None)).is_empty());
        // Another process could get the port of a closed listener.
        assert_eq!(checks(&registry(&["127.0.0.1:1"], None)).len(), 1);
    }

    #[test]
    fn ports_are_parsed_from_addresses() {
        for (mirror, expected) in [
            ("a.example", "a.example:443"),
            ("a.example/path:x", "a.example:443"),
            ("a.example:5000/path", "a.example:5000"),
            ("[::1]", "[::1]:443"),
            ("[::1]:5000", "[::1]:5000"),
        ] {
            assert_eq!(address(mirror, "443"), expected);
        }
    }
}
