//! Registries of the settings: certificates that are not there, and mirrors that nobody knows.

use std::collections::BTreeMap;
use std::io;
use std::net::{TcpStream, ToSocketAddrs as _};
use std::path::Path;
use std::time::Duration;

use super::super::sections::Registry;
use super::Check;
use crate::http::certificates;
use crate::sys::error::chain;
use crate::sys::fs::read_bounded;

/// More than any file of certificates has.
const MAX_BYTES: u64 = 16 << 20;

/// How long a mirror may take to take a connection.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Something that the settings name and that is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    is_mirror: bool,
    found: String,
    hint: String,
}

impl Missing {
    /// Returns what is missing and what to do, on a line.
    pub fn line(&self) -> String {
        format!("{}: {}", self.found, self.hint)
    }
}

/// Looks for what the settings name, and asks each mirror for a connection.
pub fn checks(registries: &BTreeMap<String, Registry>) -> Vec<Check> {
    let missing =
        missing(registries).into_iter().map(|Missing { is_mirror, found, hint }| match is_mirror {
            true => Check::warn("registry mirror", found, hint),
            false => Check::fail_with(
                "images of that registry cannot be pulled",
                "registry CA",
                found,
                hint,
            ),
        });
    let deaf = registries.iter().flat_map(|(registry, options)| {
        options.mirrors.iter().filter_map(|mirror| deaf(registry, mirror, options.insecure))
    });
    missing.chain(deaf).collect()
}

/// Returns what the settings name and that is not there.
pub fn missing(registries: &BTreeMap<String, Registry>) -> Vec<Missing> {
    let all = registries.iter().flat_map(|(registry, options)| {
        let ca = options.ca.iter().filter_map(|path| no_ca(registry, path));
        let mirrors = options.mirrors.iter().filter_map(|mirror| no_mirror(registry, mirror));
        ca.chain(mirrors)
    });
    all.collect()
}

fn no_ca(registry: &str, path: &Path) -> Option<Missing> {
    let problem = match read_bounded(path, MAX_BYTES).map(|bytes| certificates(&bytes)) {
        Err(error) => chain(&error),
        Ok(Ok(found)) if !found.is_empty() => return None,
        Ok(_) => format!("{} has no certificate in PEM", path.display()),
    };
    let found = format!("ca of [registry.{registry:?}]: {problem}");
    let hint = "name a PEM file that is there, or leave `ca` out".to_owned();
    Some(Missing { is_mirror: false, found, hint })
}

fn no_mirror(registry: &str, mirror: &str) -> Option<Missing> {
    let error = address(mirror, "443").to_socket_addrs().err()?;
    let found = format!("mirror {mirror:?} of [registry.{registry:?}] has no address: {error}");
    let hint = "correct its name in `mirrors`, or leave it out".to_owned();
    Some(Missing { is_mirror: true, found, hint })
}

/// Looks whether a mirror takes a connection; one without an address is told already.
fn deaf(registry: &str, mirror: &str, insecure: bool) -> Option<Check> {
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
    let hint = "start it, or leave it out of `mirrors`: each pull asks it first";
    Some(Check::warn("registry mirror", found, hint))
}

/// Returns `HOST:PORT` of a mirror, which may have a path and has this port if it says none.
fn address(mirror: &str, port: &str) -> String {
    let host = mirror.split('/').next().unwrap_or_default();
    let has_port = host.rsplit_once(':').is_some_and(|(_, end)| !end.contains(']'));
    if has_port { host.to_owned() } else { format!("{host}:{port}") }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn registry(mirrors: &[&str], ca: Option<&Path>) -> BTreeMap<String, Registry> {
        let registry = Registry {
            insecure: false,
            mirrors: mirrors.iter().map(|mirror| (*mirror).to_owned()).collect(),
            ca: ca.map(Path::to_owned),
        };
        BTreeMap::from([("docker.io".to_owned(), registry)])
    }

    #[test]
    fn certificates_that_are_not_there_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ca.pem");
        let line = |path: &Path| missing(&registry(&[], Some(path)))[0].line();
        let found = line(&path);
        assert!(found.starts_with("ca of [registry.\"docker.io\"]: "), "{found}");
        assert!(found.contains("ca.pem: No such file"), "{found}");
        std::fs::write(&path, "no certificate\n").unwrap();
        assert!(line(&path).contains("ca.pem has no certificate in PEM"), "{}", line(&path));
        let certificate = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tls/ca.pem");
        assert!(missing(&registry(&[], Some(Path::new(certificate)))).is_empty());
    }

    #[test]
    fn mirrors_that_are_not_there_are_named() {
        let found = missing(&registry(&["no-such-mirror.invalid/x"], None));
        assert!(found[0].line().contains("\"no-such-mirror.invalid/x\" of"), "{found:?}");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mirror = listener.local_addr().unwrap().to_string();
        assert!(checks(&registry(&[&mirror, &format!("{mirror}/proxy")], None)).is_empty());
        drop(listener);
        assert_eq!(checks(&registry(&[&mirror], None)).len(), 1);
    }

    #[test]
    fn ports_are_those_that_are_said() {
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
