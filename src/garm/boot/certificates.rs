//! Certificates that an instance is to trust.

use std::path::Path;

use super::guest::{Guest, GuestError, Owner};

/// More than any distribution trusts.
const MAX_BUNDLE_BYTES: u64 = 16 << 20;

/// Where our certificates are, and no others.
const OWN: &str = "/etc/ssl/garm-ca.pem";

/// The file that all programs of a distribution trust, and the directory that it is made of when
/// packages change.
const BUNDLES: [(&str, &str); 3] = [
    // Debian, Ubuntu, Alpine, Arch.
    ("/etc/ssl/certs/ca-certificates.crt", "/usr/local/share/ca-certificates"),
    // Red Hat, Fedora; a link.
    ("/etc/pki/tls/certs/ca-bundle.crt", "/etc/pki/ca-trust/source/anchors"),
    // SUSE; a link.
    ("/etc/ssl/ca-bundle.pem", "/etc/pki/trust/anchors"),
];

/// Has an instance trust certificates, and returns the variables that say so to programs with a list
/// of their own. It may be done again, as a package may bring the distribution's list.
pub fn install(guest: &impl Guest, pem: &str) -> Result<Vec<(String, String)>, GuestError> {
    let pem = pem.trim();
    if pem.is_empty() {
        return Ok(Vec::new());
    }
    let own = format!("{pem}\n");
    guest.write(Path::new(OWN), own.as_bytes(), 0o644, Owner::ROOT)?;
    let mut trusted = None;
    for (bundle, anchors) in BUNDLES {
        let path = Path::new(bundle);
        let Some(mut content) = guest.read(path, MAX_BUNDLE_BYTES)? else { continue };
        trusted = trusted.or(Some(bundle));
        let anchor = Path::new(anchors).join("garm-ca.crt");
        guest.write(&anchor, own.as_bytes(), 0o644, Owner::ROOT)?;
        // One may be a link to another.
        if !content.windows(pem.len()).any(|part| part == pem.as_bytes()) {
            if !content.is_empty() && !content.ends_with(b"\n") {
                content.push(b'\n');
            }
            content.extend_from_slice(own.as_bytes());
            guest.write(path, &content, 0o644, Owner::ROOT)?;
        }
    }
    // OpenSSL trusts this file alone, Node.js these besides its own.
    Ok(vec![
        ("SSL_CERT_FILE".to_owned(), trusted.unwrap_or(OWN).to_owned()),
        ("NODE_EXTRA_CA_CERTS".to_owned(), OWN.to_owned()),
    ])
}
