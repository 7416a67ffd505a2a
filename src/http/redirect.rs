//! Where a redirect may lead.

use ureq::http::{HeaderValue, Uri};

use super::origin::{Origin, resolve};

/// As many as browsers follow at most.
pub(crate) const MAX_REDIRECTS: usize = 10;

/// Why no more of them are followed.
pub(crate) const TOO_MANY_REDIRECTS: &str = "too many redirects";

/// Returns where a `Location` leads from an address, or why it is not followed: it is not the address of a web server,
/// or is not encrypted although the server is, unless `is_insecure` accepts it.
pub(crate) fn redirect(
    uri: &Uri,
    origin: &Origin,
    location: &HeaderValue,
    is_insecure: impl FnOnce(&Origin) -> bool,
) -> Result<(Uri, Origin), &'static str> {
    let location = String::from_utf8_lossy(location.as_bytes());
    let target = resolve(uri, &location).ok_or("not an address")?;
    let next = Origin::of(&target).ok_or("not an address of a web server without a login in it")?;
    if origin.is_https && !next.is_https && !is_insecure(&next) {
        return Err("not encrypted, unlike the server itself");
    }
    Ok((target, next))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_web_servers_are_followed_and_nothing_is_decrypted_on_the_way() {
        let uri: Uri = "https://a.example/v2/x".parse().unwrap();
        let origin = Origin::of(&uri).unwrap();
        let follow = |location: &'static str, is_insecure| {
            let location = HeaderValue::from_static(location);
            redirect(&uri, &origin, &location, |_| is_insecure).map(|(uri, _)| uri.to_string())
        };
        assert_eq!(follow("/y", false).unwrap(), "https://a.example/y");
        assert_eq!(follow("https://b.example/", false).unwrap(), "https://b.example/");
        assert!(follow("http://a.example/", false).unwrap_err().starts_with("not encrypted"));
        assert!(follow("http://a.example/", true).is_ok());
        for location in ["ftp://a.example/", "https://u:p@a.example/"] {
            assert!(follow(location, true).unwrap_err().contains("web server"), "{location}");
        }
    }
}
