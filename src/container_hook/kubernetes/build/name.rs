//! What built images are called: the same content, the same name.

use std::ffi::OsStr;

use super::error::BuildError;
use crate::image::{Algorithm, Digest, Hasher, Reference};

/// Counted up when the same content would be built differently.
const VERSION: &[u8] = b"1";

/// What the image of a Dockerfile depends on.
#[derive(Clone, Copy)]
pub struct Content<'a> {
    /// The digest of the context.
    pub context: &'a Digest,
    /// The name of the Dockerfile in it.
    pub dockerfile: &'a OsStr,
    /// What runners of one namespace may read is nothing to those of others.
    pub namespace: &'a str,
    /// As Kubernetes calls it, as `amd64`.
    pub architecture: &'a str,
}

/// Returns the name of the image of a Dockerfile beneath what the names of all begin with.
pub fn reference(push: &str, content: Content<'_>) -> Result<Reference, BuildError> {
    let Content { context, dockerfile, namespace, architecture } = content;
    let mut hasher = Hasher::new(Algorithm::Sha256);
    let parts = [VERSION, namespace.as_bytes(), architecture.as_bytes(), context.hex().as_bytes()];
    for part in parts {
        hasher.update(part);
        // None of them has such a byte.
        hasher.update(b"\0");
    }
    hasher.update(dockerfile.as_encoded_bytes());
    let digest = hasher.finish();
    let name = format!("{}/dockerfile-action:{}", push.trim_end_matches('/'), &digest.hex()[..32]);
    name.parse().map_err(|source| BuildError::Push { push: push.to_owned(), source })
}

/// Returns this machine's architecture, as Kubernetes calls it.
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_content_has_the_same_name() {
        let [first, second] = ["a", "b"].map(|text| Digest::of(text.as_bytes()));
        let content = Content {
            context: &first,
            dockerfile: "Dockerfile".as_ref(),
            namespace: "runners",
            architecture: "amd64",
        };
        let name = |content| reference("registry.example/ci/", content).unwrap().to_string();
        let (prefix, tag) = ("registry.example/ci/dockerfile-action:", name(content));
        assert_eq!(tag.strip_prefix(prefix).unwrap().len(), 32, "{tag}");
        assert_eq!(tag, name(content));
        for other in [
            Content { context: &second, ..content },
            Content { dockerfile: "Dockerfile.ci".as_ref(), ..content },
            Content { namespace: "others", ..content },
            Content { architecture: "arm64", ..content },
        ] {
            assert_ne!(tag, name(other));
        }
    }

    #[test]
    fn what_no_image_can_be_called_is_rejected() {
        let digest = Digest::of(b"a");
        let content = Content {
            context: &digest,
            dockerfile: "Dockerfile".as_ref(),
            namespace: "",
            architecture: "amd64",
        };
        let good = ["localhost:5000", "octo", "ghcr.io/octo/ci"];
        for push in good {
            reference(push, content).unwrap();
        }
        for push in ["", "https://ghcr.io/octo", "ghcr.io/octo:latest", "ghcr.io/Octo", "a b", "-a"]
        {
            let error = reference(push, content).unwrap_err();
            assert!(matches!(error, BuildError::Push { .. }), "{push}: {error}");
        }
    }
}
