//! Names of built images, derived from their content.

use std::ffi::OsStr;

use oci_hooks_image::{Digest, HashAlgorithm, Hasher, ImageReference};

use super::error::BuildError;

/// Version of the build process, hashed into image names. It is incremented when the same content
/// would be built differently.
const VERSION: &[u8] = b"1";

/// Inputs that determine the image of a Dockerfile.
#[derive(Clone, Copy)]
pub struct ImageContent<'a> {
    pub context: &'a Digest,
    /// File name of the Dockerfile in the context.
    pub dockerfile: &'a OsStr,
    /// Namespace of the runner: images are not shared between namespaces.
    pub namespace: &'a str,
    /// Architecture in Kubernetes' terms, such as `amd64`.
    pub architecture: &'a str,
    /// Properties that all jobs sharing the image have, such as their repository.
    pub sharers: &'a [String],
}

/// Returns the name of a Dockerfile's image, below the prefix `push`.
pub fn reference(push: &str, content: ImageContent<'_>) -> Result<ImageReference, BuildError> {
    let ImageContent { context, dockerfile, namespace, architecture, sharers } = content;
    let mut hasher = Hasher::new(HashAlgorithm::Sha256);
    let context = context.hex();
    let parts = [VERSION, namespace.as_bytes(), architecture.as_bytes(), context.as_bytes()];
    let sharers = sharers.iter().map(String::as_bytes);
    for part in parts.into_iter().chain([dockerfile.as_encoded_bytes()]).chain(sharers) {
        hasher.update(part);
        // Separator: no part contains a NUL byte.
        hasher.update(b"\0");
    }
    let digest = hasher.finish();
    let name = format!("{}/dockerfile-action:{}", push.trim_end_matches('/'), &digest.hex()[..32]);
    name.parse().map_err(|source| BuildError::Push { push: push.to_owned(), source })
}

/// Returns this machine's architecture in Kubernetes' terms.
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
    fn same_content_has_the_same_name() {
        let [first, second] = ["a", "b"].map(|text| Digest::of(text.as_bytes()));
        let content = ImageContent {
            context: &first,
            dockerfile: "Dockerfile".as_ref(),
            namespace: "runners",
            architecture: "amd64",
            sharers: &["octo/repo".to_owned()],
        };
        let name = |content| reference("registry.example/ci/", content).unwrap().to_string();
        let (prefix, tag) = ("registry.example/ci/dockerfile-action:", name(content));
        assert_eq!(tag.strip_prefix(prefix).unwrap().len(), 32, "{tag}");
        assert_eq!(tag, name(content));
        for other in [
            ImageContent { context: &second, ..content },
            ImageContent { dockerfile: "Dockerfile.ci".as_ref(), ..content },
            ImageContent { namespace: "others", ..content },
            ImageContent { architecture: "arm64", ..content },
            ImageContent { sharers: &["octo/other".to_owned()], ..content },
        ] {
            assert_ne!(tag, name(other));
        }
    }

    #[test]
    fn invalid_image_names_are_rejected() {
        let digest = Digest::of(b"a");
        let content = ImageContent {
            context: &digest,
            dockerfile: "Dockerfile".as_ref(),
            namespace: "",
            architecture: "amd64",
            sharers: &[],
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
