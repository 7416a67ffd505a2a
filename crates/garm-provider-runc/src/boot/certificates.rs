//! CA certificates that an instance trusts.

use std::path::Path;

use super::guest::{Guest, GuestError, GuestIds};

/// Size limit of a CA bundle, larger than any distribution's.
const MAX_BUNDLE_BYTES: u64 = 16 << 20;

/// File with only the certificates of GARM and of the settings.
const OWN: &str = "/etc/ssl/garm-ca.pem";

/// CA bundle of a distribution, and the directory from which the distribution rebuilds the bundle.
const BUNDLES: [(&str, &str); 3] = [
    // Debian, Ubuntu, Alpine, Arch.
    ("/etc/ssl/certs/ca-certificates.crt", "/usr/local/share/ca-certificates"),
    // Red Hat, Fedora; a symlink.
    ("/etc/pki/tls/certs/ca-bundle.crt", "/etc/pki/ca-trust/source/anchors"),
    // SUSE; a symlink.
    ("/etc/ssl/ca-bundle.pem", "/etc/pki/trust/anchors"),
];

/// Adds certificates to an instance, and returns the environment variables for programs with their own CA bundle. Can
/// be repeated, because a package may install the distribution's bundle later.
pub fn install(guest: &impl Guest, pem: &str) -> Result<Vec<(String, String)>, GuestError> {
    let pem = pem.trim();
    if pem.is_empty() {
        return Ok(Vec::new());
    }
    let own = format!("{pem}\n");
    guest.write(Path::new(OWN), own.as_bytes(), 0o644, GuestIds::ROOT)?;
    let mut trusted = None;
    for (bundle, anchors) in BUNDLES {
        let path = Path::new(bundle);
        let Some(mut content) = guest.read(path, MAX_BUNDLE_BYTES)? else { continue };
        trusted = trusted.or(Some(bundle));
        let anchor = Path::new(anchors).join("garm-ca.crt");
        guest.write(&anchor, own.as_bytes(), 0o644, GuestIds::ROOT)?;
        // A bundle may be a symlink to another one, which already has the certificates.
        if !content.windows(pem.len()).any(|part| part == pem.as_bytes()) {
            if !content.is_empty() && !content.ends_with(b"\n") {
                content.push(b'\n');
            }
            content.extend_from_slice(own.as_bytes());
            guest.write(path, &content, 0o644, GuestIds::ROOT)?;
        }
    }
    // OpenSSL trusts only SSL_CERT_FILE; Node.js adds NODE_EXTRA_CA_CERTS to its own list.
    Ok(vec![
        ("SSL_CERT_FILE".to_owned(), trusted.unwrap_or(OWN).to_owned()),
        ("NODE_EXTRA_CA_CERTS".to_owned(), OWN.to_owned()),
    ])
}
