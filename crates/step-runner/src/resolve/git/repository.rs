//! URLs of git repositories, and revisions in them.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

use super::error::GitError;
use super::options::GitCredential;

/// Maximum number of characters of a URL in the name of its cache directory.
const MAX_READABLE: usize = 80;

/// A validated repository URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GitRepository {
    /// The URL without a password; an HTTP URL is also without a user name.
    pub url: String,
    /// Scheme, host and port of an HTTP URL, in lower case and without a default port; `None` for
    /// SSH and local repositories.
    pub origin: Option<String>,
    /// User name and password in an HTTP URL; `None` if it has none.
    pub credential: Option<GitCredential>,
}

impl GitRepository {
    /// Parses a URL. If `files` is set, local repositories (`file://…`) are allowed.
    pub(super) fn parse(text: &str, files: bool) -> Result<Self, GitError> {
        let shown = match text.split_once("://").map(|(scheme, rest)| (scheme, authority(rest).1)) {
            Some((scheme, rest)) => format!("{scheme}://{rest}"),
            None => text.to_owned(),
        };
        let wrong = |reason| Err(GitError::Url { url: shown.clone(), reason });
        if text.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return wrong("it contains blanks or control characters");
        }
        let Some((scheme, rest)) = text.split_once("://") else {
            let (host, path) = text.split_once(':').unwrap_or_default();
            let (user, name) = host.split_once('@').unwrap_or_default();
            if [user, name].iter().any(|part| part.is_empty() || part.starts_with('-'))
                || host.contains('/')
                || path.is_empty()
            {
                return wrong("expected a URL or `git@host:path`");
            }
            let url = text.to_owned();
            return Ok(GitRepository { url, origin: None, credential: None });
        };
        let scheme = scheme.to_ascii_lowercase();
        if scheme == "file" && files {
            return Ok(GitRepository { url: text.to_owned(), origin: None, credential: None });
        }
        if !["https", "http", "ssh"].contains(&scheme.as_str()) {
            return wrong("expected the scheme https, http or ssh");
        }
        let (user, rest) = authority(rest);
        let host = rest.split('/').next().unwrap_or_default();
        if host.is_empty() || host.starts_with('-') {
            return wrong("missing host");
        }
        let (username, password) = user.split_once(':').unwrap_or((user, ""));
        if scheme == "ssh" {
            if username.starts_with('-') {
                return wrong("invalid user name");
            }
            let at = if username.is_empty() { "" } else { "@" };
            let url = format!("ssh://{username}{at}{rest}");
            return Ok(GitRepository { url, origin: None, credential: None });
        }
        let path = &rest[host.len()..];
        let default_port = if scheme == "https" { ":443" } else { ":80" };
        let host = host.to_ascii_lowercase();
        let origin = format!("{scheme}://{}", host.strip_suffix(default_port).unwrap_or(&host));
        let credential = if user.is_empty() {
            None
        } else {
            let (Some(username), Some(password)) =
                (percent_decode(username), percent_decode(password))
            else {
                return wrong("expected user name and password as percent-encoded text");
            };
            Some(GitCredential { origin: origin.clone(), username, password })
        };
        Ok(GitRepository { url: format!("{origin}{path}"), origin: Some(origin), credential })
    }

    /// Returns whether scheme, host and port of the repository are those of `origin`.
    pub(super) fn is_at(&self, origin: &str) -> bool {
        let origin = GitRepository::parse(origin, false).ok().and_then(|other| other.origin);
        origin.is_some() && self.origin == origin
    }

    /// Returns the host of an HTTP URL, without the port.
    pub(super) fn host(&self) -> Option<String> {
        let (_, host) = self.origin.as_deref()?.split_once("://")?;
        let end = host.rfind(']').map_or(0, |bracket| bracket + 1);
        let end = host[end..].find(':').map_or(host.len(), |colon| end + colon);
        Some(host[..end].to_owned())
    }

    /// Returns the name of the repository's cache directory, unique by URL and safe as a file name.
    pub(super) fn directory(&self) -> String {
        let url = self.url.trim_end_matches('/');
        let readable = url.split_once("://").map_or(url, |(_, rest)| rest);
        let readable = readable.chars().take(MAX_READABLE);
        let mut name: String = readable
            .map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' })
            .collect();
        name.push('-');
        for byte in &Sha256::digest(url)[..16] {
            write!(name, "{byte:02x}").expect("a string takes everything");
        }
        name
    }
}

/// Splits the part of a URL after `://` into user info and the rest.
fn authority(rest: &str) -> (&str, &str) {
    let host_end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    match rest[..host_end].rfind('@') {
        Some(at) => (&rest[..at], &rest[at + 1..]),
        None => ("", rest),
    }
}

/// Percent-decodes a text. Returns `None` if it is malformed or contains control characters: a line
/// break would end git's input.
fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
        if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = &rest[2..];
    }
    String::from_utf8(bytes).ok().filter(|text| !text.contains(char::is_control))
}

/// Minimum number of digits of an abbreviated commit id.
const MIN_DIGITS: usize = 8;

/// Number of hexadecimal digits of SHA-1 and SHA-256 commit ids.
const DIGITS: [usize; 2] = [40, 64];

/// Returns whether a text is a full commit id in lower case.
pub fn is_commit(text: &str) -> bool {
    DIGITS.contains(&text.len())
        && text.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
}

/// Returns whether a text is a valid name of a branch or tag. Git could give another meaning to an
/// invalid name.
pub fn is_ref_name(text: &str) -> bool {
    let is_bad = |c: char| c.is_control() || c.is_whitespace() || "~^:?*[\\".contains(c);
    !text.is_empty()
        && !text.contains(is_bad)
        && !text.contains("..")
        && !text.contains("@{")
        && !text.contains("//")
        && !text.starts_with(['-', '/', '.'])
        && !text.ends_with(['/', '.'])
}

/// Returns whether a text can be an abbreviated commit id: 8 to 63 hexadecimal digits.
pub fn is_abbreviation(text: &str) -> bool {
    text.len() >= MIN_DIGITS
        && text.len() < DIGITS[1]
        && text.bytes().all(|digit| digit.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<GitRepository, String> {
        GitRepository::parse(text, false).map_err(|error| error.to_string())
    }

    #[test]
    fn user_and_password_are_removed_from_urls() {
        for (text, url, login) in [
            ("https://host/g/p", "https://host/g/p", None),
            ("https://a:b%40c@host:8443/g/p", "https://host:8443/g/p", Some(("a", "b@c"))),
            ("HTTP://token@HOST:80/p@x", "http://host/p@x", Some(("token", ""))),
            ("https://a:b@c@host/p", "https://host/p", Some(("a", "b@c"))),
            ("ssh://git:secret@host:22/p", "ssh://git@host:22/p", None),
            ("git@host:g/p", "git@host:g/p", None),
        ] {
            let repository = parse(text).unwrap();
            assert_eq!(repository.url, url);
            let found = repository.credential.as_ref().map(|c| (&*c.username, &*c.password));
            assert_eq!(found, login, "{text}");
        }
    }

    #[test]
    fn urls_that_git_may_misinterpret_are_rejected() {
        for text in [
            "",
            "p",
            "/tmp/p",
            "--upload-pack=touch x",
            "-oProxyCommand=x:p",
            "git@-oProxyCommand=x:p",
            "-o@host:p",
            "ssh://-oProxyCommand=x/p",
            "ssh://-o@host/p",
            "ssh://git@-host/p",
            "ext::sh -c x",
            "ext::sh",
            "file:///p",
            "git://host/p",
            "https://",
            "https:///p",
            "https://a:b%0a@host/p",
            "https://a:b%zz@host/p",
            "https://ho\nst/p",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(GitRepository::parse("file:///p", true).is_ok());
        let error = parse("git://user:secret@host/p").unwrap_err();
        assert!(!error.contains("secret") && error.contains("git://host/p"), "{error}");
    }

    #[test]
    fn host_excludes_the_port() {
        for (url, host) in [
            ("https://Host/p", Some("host")),
            ("http://u:p@host:80/p", Some("host")),
            ("https://[::1]:8443/p", Some("[::1]")),
            ("https://[::1]/p", Some("[::1]")),
            ("ssh://host/p", None),
        ] {
            assert_eq!(parse(url).unwrap().host().as_deref(), host, "{url}");
        }
    }

    #[test]
    fn origins_are_the_same_with_the_default_port_and_in_upper_case() {
        let is_at = |url: &str, origin: &str| parse(url).unwrap().is_at(origin);
        for url in ["https://h/p", "https://H:443/p", "HTTPS://u:p@h/p"] {
            assert!(is_at(url, "https://h") && is_at(url, "https://H:443"), "{url}");
            assert!(!is_at(url, "http://h") && !is_at(url, "https://h:80"), "{url}");
        }
        assert!(is_at("http://h:80/p", "http://h"));
        for url in
            ["https://h:8443/p", "https://h.example/p", "http://h:443/p", "ssh://h/p", "git@h:p"]
        {
            assert!(!is_at(url, "https://h"), "{url}");
        }
        assert!(is_at("https://[::443]/p", "https://[::443]"));
    }

    #[test]
    fn cache_directories_differ_by_repository() {
        let long = format!("https://host/{}", "a/".repeat(200));
        let urls =
            ["https://h/a/b", "http://h/a/b", "https://h/a_b", "https://h:1/a/b", "git@h:a/b"];
        let mut names: Vec<_> = urls.map(|url| parse(url).unwrap().directory()).to_vec();
        names.push(parse("https://h/../../b").unwrap().directory());
        names.push(parse(&long).unwrap().directory());
        for name in &names {
            assert!(name.len() < 200 && !name.contains('/') && !name.starts_with('.'), "{name}");
        }
        names.sort();
        names.dedup();
        assert_eq!(names.len(), urls.len() + 2);
        let same =
            ["https://u:p@h/a/b/", "https://h/a/b"].map(|url| parse(url).unwrap().directory());
        assert_eq!(same[0], same[1]);
    }

    #[test]
    fn revisions_with_git_syntax_are_no_ref_names() {
        for name in ["v1", "feature/x", "1.2.3", "a-b_c", "é", "@"] {
            assert!(is_ref_name(name), "{name}");
        }
        for name in [
            "", "-v1", "--all", "a b", "a\n", "a..b", "a^{}", "a:b", "*", "v?", "[a]", "/a", "a/",
            "x@{1}",
        ] {
            assert!(!is_ref_name(name), "{name}");
        }
        assert!(is_commit(&"0a".repeat(20)) && is_commit(&"0a".repeat(32)));
        assert!(!is_commit(&"0A".repeat(20)) && !is_commit(&"0a".repeat(19)));
    }
}
