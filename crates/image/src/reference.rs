//! Image references, parsed and normalized as by Docker.

use std::fmt;
use std::str::FromStr;

use super::digest::{Digest, DigestError};

/// Default registry.
const DOCKER_HUB: &str = "docker.io";

/// Longest repository path in Docker's reference grammar.
const MAX_REPOSITORY_BYTES: usize = 255;

/// Normalized image name: with a registry, and with a tag or a digest.
///
/// Names are normalized as by `docker pull`: the default registry is Docker Hub, a single word
/// there means `library/WORD`, and without tag and digest the tag is `latest`.
///
/// ```
/// use oci_hooks_image::ImageReference;
///
/// let redis: ImageReference = "redis".parse()?;
/// assert_eq!(redis.to_string(), "docker.io/library/redis:latest");
/// assert_eq!(redis.familiar_name(), "redis:latest");
/// let tool: ImageReference = "localhost:5000/team/tool:1.2".parse()?;
/// assert_eq!((tool.registry(), tool.repository()), ("localhost:5000", "team/tool"));
/// # Ok::<(), oci_hooks_image::ReferenceError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ImageReference {
    registry: String,
    repository: String,
    tag: Option<String>,
    digest: Option<Digest>,
}

/// Errors of parsing an image name.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    #[error("empty image name")]
    Empty,
    /// The name would be taken for an option by programs it is passed to.
    #[error("invalid image name {0:?}: it begins with \"-\"")]
    Option(String),
    #[error("invalid image name {0:?}: leave out the part up to \"://\"")]
    Scheme(String),
    /// Image ID, which cannot be looked up in a registry.
    #[error("invalid image name {0:?}: it is an image ID, expected NAME or NAME@sha256:DIGEST")]
    Identifier(String),
    /// The registry is not a host with an optional port.
    #[error("{name:?}: invalid registry {registry:?}: expected HOST or HOST:PORT")]
    Registry { name: String, registry: String },
    /// The repository has capital letters.
    #[error("{name:?}: the repository must be lower case: {}", name.to_lowercase())]
    UpperCase { name: String },
    /// The repository is not well-formed.
    #[error(
        "{name:?}: invalid repository {repository:?}: expected lower-case letters and digits, \
         separated by \".\", \"_\", \"__\", \"-\" or \"/\""
    )]
    Repository { name: String, repository: String },
    #[error("the repository name is too long (limit {MAX_REPOSITORY_BYTES} characters)")]
    TooLong,
    /// The tag is not well-formed.
    #[error(
        "{name:?}: invalid tag {tag:?}: expected up to 128 letters, digits, \"_\", \".\" and \"-\""
    )]
    Tag { name: String, tag: String },
    /// The digest is not well-formed.
    #[error(transparent)]
    Digest(#[from] DigestError),
}

impl ImageReference {
    /// Returns the registry: `HOST` or `HOST:PORT`, `docker.io` for Docker Hub.
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// Returns the path of the repository in the registry.
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// Returns the tag, which is `None` only if there is a digest.
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// Returns the digest that the image must have.
    pub fn digest(&self) -> Option<&Digest> {
        self.digest.as_ref()
    }

    /// Returns the digest, or else the tag, for requests to a registry.
    pub fn target(&self) -> &str {
        match (&self.digest, &self.tag) {
            (Some(digest), _) => digest.as_str(),
            (None, tag) => tag.as_deref().unwrap_or("latest"),
        }
    }

    /// Returns the same repository with this digest and no tag.
    pub fn with_digest(&self, digest: Digest) -> Self {
        ImageReference { tag: None, digest: Some(digest), ..self.clone() }
    }

    /// Returns the last part of the repository: `postgres` of `ghcr.io/team/postgres:17`.
    pub fn base_name(&self) -> &str {
        self.repository.rsplit('/').next().unwrap_or(&self.repository)
    }

    /// Returns Docker's familiar name: without the default registry and `library/`, but with the
    /// tag.
    pub fn familiar_name(&self) -> String {
        let full = self.to_string();
        let Some(path) = full.strip_prefix("docker.io/") else { return full };
        // Without the prefix, `docker.io/ghcr.io/team/x` would be an image of another registry.
        if split_registry(path) != (DOCKER_HUB, path) {
            return full;
        }
        let short = path.strip_prefix("library/").filter(|name| !name.contains('/'));
        short.unwrap_or(path).to_owned()
    }
}

impl FromStr for ImageReference {
    type Err = ReferenceError;

    fn from_str(name: &str) -> Result<Self, ReferenceError> {
        if name.is_empty() {
            return Err(ReferenceError::Empty);
        }
        if name.starts_with('-') {
            return Err(ReferenceError::Option(name.to_owned()));
        }
        if name.contains("://") {
            return Err(ReferenceError::Scheme(name.to_owned()));
        }
        let hex = name.strip_prefix("sha256:").unwrap_or(name);
        if hex.len() == 64 && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(ReferenceError::Identifier(name.to_owned()));
        }
        let (rest, digest) = match name.split_once('@') {
            Some((rest, digest)) => (rest, Some(digest.parse()?)),
            None => (name, None),
        };
        let (registry, rest) = split_registry(rest);
        // A tag has no slash: a colon before a slash belongs to the path.
        let (path, tag) = match rest.rsplit_once(':') {
            Some((path, tag)) if !tag.contains('/') => (path, Some(tag)),
            _ => (rest, None),
        };
        if !is_registry(registry) {
            return Err(ReferenceError::Registry {
                name: name.to_owned(),
                registry: registry.to_owned(),
            });
        }
        if path.bytes().any(|b| b.is_ascii_uppercase()) && is_repository(&path.to_lowercase()) {
            return Err(ReferenceError::UpperCase { name: name.to_owned() });
        }
        if !is_repository(path) {
            return Err(ReferenceError::Repository {
                name: name.to_owned(),
                repository: path.to_owned(),
            });
        }
        if path.len() > MAX_REPOSITORY_BYTES {
            return Err(ReferenceError::TooLong);
        }
        if let Some(tag) = tag.filter(|tag| !is_tag(tag)) {
            return Err(ReferenceError::Tag { name: name.to_owned(), tag: tag.to_owned() });
        }
        let repository = if registry == DOCKER_HUB && !path.contains('/') {
            format!("library/{path}")
        } else {
            path.to_owned()
        };
        let tag = tag.or(if digest.is_none() { Some("latest") } else { None });
        Ok(ImageReference {
            registry: registry.to_owned(),
            repository,
            tag: tag.map(str::to_owned),
            digest,
        })
    }
}

impl fmt::Display for ImageReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.repository)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

/// Splits off the registry: the first part, if it cannot be part of a repository on Docker Hub.
fn split_registry(name: &str) -> (&str, &str) {
    match name.split_once('/') {
        Some(("index.docker.io", rest)) => (DOCKER_HUB, rest),
        Some((first, rest))
            if first == "localhost"
                || first.contains(['.', ':'])
                || first.bytes().any(|b| b.is_ascii_uppercase()) =>
        {
            (first, rest)
        }
        _ => (DOCKER_HUB, name),
    }
}

fn is_registry(text: &str) -> bool {
    let (host, port) = if let Some(address) = text.strip_prefix('[') {
        let Some((address, port)) = address.split_once(']') else { return false };
        if address.parse::<std::net::Ipv6Addr>().is_err() {
            return false;
        }
        match port.strip_prefix(':') {
            None => return port.is_empty(),
            port => ("ipv6", port),
        }
    } else {
        text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)))
    };
    let is_label = |label: &str| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    // A port above 65535 would fail later with a less clear error.
    host.split('.').all(is_label)
        && port.is_none_or(|port| {
            port.bytes().all(|b| b.is_ascii_digit()) && port.parse::<u16>().is_ok()
        })
}

fn is_repository(path: &str) -> bool {
    path.split('/').all(is_component)
}

/// Returns whether a path component is lower-case words, separated by `.`, `_`, `__` or hyphens.
fn is_component(text: &str) -> bool {
    let is_word = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let mut separators = text.split(|c: char| c.is_ascii() && is_word(c as u8));
    let starts_and_ends = [text.bytes().next(), text.bytes().next_back()];
    starts_and_ends.into_iter().all(|b| b.is_some_and(is_word))
        && separators.all(|separator| {
            matches!(separator, "" | "." | "_" | "__") || separator.bytes().all(|b| b == b'-')
        })
}

fn is_tag(text: &str) -> bool {
    text.len() <= 128
        && !text.is_empty()
        && !text.starts_with(['.', '-'])
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEX: &str = "6c3c624b58dbbcd3c0dd82b4c53f04194d1247c6eebdaab7c610cf7d66709b3b";

    #[test]
    fn names_are_completed_as_docker_does() {
        let digest = format!("sha256:{HEX}");
        for (name, full, familiar) in [
            ("redis", "docker.io/library/redis:latest", "redis:latest"),
            ("redis:7", "docker.io/library/redis:7", "redis:7"),
            ("team/redis", "docker.io/team/redis:latest", "team/redis:latest"),
            ("library/redis", "docker.io/library/redis:latest", "redis:latest"),
            ("docker.io/redis", "docker.io/library/redis:latest", "redis:latest"),
            ("index.docker.io/redis", "docker.io/library/redis:latest", "redis:latest"),
            ("docker.io/library/a/b", "docker.io/library/a/b:latest", "library/a/b:latest"),
            ("localhost/redis", "localhost/redis:latest", "localhost/redis:latest"),
            ("localhost:5000/a", "localhost:5000/a:latest", "localhost:5000/a:latest"),
            ("host:5000/a:5000", "host:5000/a:5000", "host:5000/a:5000"),
            ("[::1]:5000/a", "[::1]:5000/a:latest", "[::1]:5000/a:latest"),
            ("HOST/a", "HOST/a:latest", "HOST/a:latest"),
            ("ghcr.io/a/b/c:1.2_3-x", "ghcr.io/a/b/c:1.2_3-x", "ghcr.io/a/b/c:1.2_3-x"),
            ("a__b/c--d/e.f", "docker.io/a__b/c--d/e.f:latest", "a__b/c--d/e.f:latest"),
            (
                &format!("redis@{digest}"),
                &format!("docker.io/library/redis@{digest}"),
                &format!("redis@{digest}"),
            ),
            (
                &format!("redis:7@{digest}"),
                &format!("docker.io/library/redis:7@{digest}"),
                &format!("redis:7@{digest}"),
            ),
        ] {
            let reference: ImageReference = name.parse().unwrap();
            assert_eq!(reference.to_string(), full);
            assert_eq!(reference.familiar_name(), familiar);
            assert_eq!(full.parse(), Ok(reference));
        }
    }

    #[test]
    fn familiar_name_refers_to_the_same_image() {
        for name in ["ghcr.io/a/b", "index.docker.io/a/b", "localhost/a", "docker.io/a"] {
            let full = format!("docker.io/{name}:1");
            let reference: ImageReference = full.parse().unwrap();
            assert_eq!(reference.familiar_name(), full);
            assert_eq!(reference.familiar_name().parse(), Ok(reference));
        }
    }

    #[test]
    fn digest_overrides_the_tag() {
        let reference: ImageReference = format!("ghcr.io/a/b:1@sha256:{HEX}").parse().unwrap();
        assert_eq!(reference.target(), format!("sha256:{HEX}"));
        assert_eq!(reference.base_name(), "b");
        assert_eq!("redis".parse::<ImageReference>().unwrap().target(), "latest");
    }

    #[test]
    fn invalid_names_are_rejected_with_a_reason() {
        for (name, message) in [
            ("", "empty"),
            ("-v", "begins with \"-\""),
            ("--privileged", "begins with \"-\""),
            ("docker://redis", "leave out"),
            ("https://ghcr.io/a", "leave out"),
            (HEX, "image ID"),
            ("Redis", "must be lower case: redis"),
            ("ghcr.io/Team/Tool:V1", "lower case"),
            ("a b", "invalid repository"),
            ("a//b", "invalid repository"),
            ("/a", "invalid repository"),
            ("a/", "invalid repository"),
            ("a..b", "invalid repository"),
            ("a___b", "invalid repository"),
            ("_a", "invalid repository"),
            ("a-", "invalid repository"),
            ("é", "invalid repository"),
            ("host.example/../a", "invalid repository"),
            ("a:", "invalid tag"),
            ("a:.b", "invalid tag"),
            ("a.example/c:d e", "invalid tag"),
            ("-a.example/b", "begins with"),
            ("a-.example/b", "invalid registry"),
            ("host:port/a", "invalid registry"),
            ("host:99999/a", "invalid registry"),
            ("user@host.example/a", "invalid digest"),
            ("[::g]/a", "invalid registry"),
            ("[::1/a", "invalid registry"),
            ("redis@sha256:../../x", "invalid digest"),
            ("redis@", "invalid digest"),
        ] {
            let error = name.parse::<ImageReference>().unwrap_err().to_string();
            assert!(error.contains(message), "{name:?}: {error}");
        }
        assert_eq!("a".repeat(256).parse::<ImageReference>(), Err(ReferenceError::TooLong));
        assert!(format!("a:{}", "b".repeat(129)).parse::<ImageReference>().is_err());
    }
}
