//! Image manifests and indexes of registries and OCI layouts, in Docker's and OCI's formats.
//!
//! `oci-spec` parses them. The fields in use are copied into the types here, whose digests can be
//! checked.
//!
//! A document could be parsed both as a manifest and as an index. Therefore its announced media
//! type, its stated media type and its fields must agree
//! ([CVE-2021-41190](https://github.com/advisories/GHSA-mc8v-mgrf-8f4m)).

use std::collections::HashMap;

use oci_spec::image::{
    Descriptor as SpecDescriptor, ImageIndex, ImageManifest, MediaType, Os, ToDockerV2S2 as _,
};
use serde::{Deserialize, Deserializer};

use super::digest::{Digest, DigestError};
use super::platform::Platform;

/// Size limit of a manifest; most registries have one too.
pub const MAX_MANIFEST_BYTES: u64 = 4 << 20;

/// Descriptor of content: media type, digest and size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptor {
    pub media_type: MediaType,
    pub digest: Digest,
    /// Size of the content in bytes.
    pub size: u64,
    /// Other locations of the content, for foreign layers.
    pub urls: Vec<String>,
    pub annotations: HashMap<String, String>,
    /// Platform of the content, in an index.
    pub platform: Option<Platform>,
}

/// Manifest of one image: configuration and layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// Type of an artifact that is not an image.
    pub artifact_type: Option<MediaType>,
    pub config: Descriptor,
    pub layers: Vec<Descriptor>,
}

/// Index of an image: manifests for several platforms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestIndex {
    pub manifests: Vec<Descriptor>,
}

/// Document behind a tag: a manifest, or an index of several platforms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ManifestDocument {
    Manifest(Box<Manifest>),
    Index(ManifestIndex),
}

/// Errors of reading a manifest or index, and of choosing a platform.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    #[error("the manifest is too large (limit {MAX_MANIFEST_BYTES} bytes)")]
    TooLarge,
    /// The document is not JSON, or its fields are missing or have the wrong type.
    #[error("the manifest is malformed")]
    Malformed(#[source] serde_json::Error),
    /// Schema other than 2; Docker abandoned schema 1 in 2019.
    #[error(
        "unsupported manifest schema version {version}, expected 2: push the image again with a \
         current program"
    )]
    Schema { version: u64 },
    /// The stated media type differs from the announced one.
    #[error(
        "media type mismatch: expected {announced:?} as announced, got {stated:?} in the manifest"
    )]
    TypeMismatch {
        /// Media type from the registry or the descriptor.
        announced: String,
        /// Media type in the document.
        stated: String,
    },
    /// The document has fields of both manifest and index, or lacks those of its type.
    #[error("the fields of the manifest do not match its media type{}", announcement(media_type))]
    FieldMismatch {
        /// Media type, announced or else stated; empty if there is neither, or only a generic one
        /// is announced.
        media_type: String,
    },
    /// The media type is not that of an image.
    #[error("unsupported media type {media_type:?}: not an image that can be run")]
    NotAnImage { media_type: String },
    /// A digest has an unsupported algorithm.
    #[error("the manifest has an unsupported digest")]
    Digest(#[from] DigestError),
    /// The index refers to another index for the platform.
    #[error("the index names another index instead of an image: name the image by its digest")]
    NestedIndex,
    /// The index has no image for the platform.
    #[error("no image for platform {wanted}: available are {}", list(available))]
    NoPlatform { wanted: Platform, available: Vec<Platform> },
}

/// Fields that distinguish manifests from indexes.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct DocumentFields {
    #[serde(default)]
    schema_version: u64,
    #[serde(default)]
    media_type: Option<String>,
    #[serde(default)]
    config: Option<serde::de::IgnoredAny>,
    #[serde(default)]
    layers: Option<serde::de::IgnoredAny>,
    #[serde(default)]
    fs_layers: Option<serde::de::IgnoredAny>,
    #[serde(default)]
    manifests: Option<serde::de::IgnoredAny>,
}

impl ManifestDocument {
    /// Parses a manifest or an index. `announced` is its media type, from `Content-Type` or a descriptor.
    pub fn parse(bytes: &[u8], announced: Option<&str>) -> Result<Self, ManifestError> {
        if bytes.len() as u64 > MAX_MANIFEST_BYTES {
            return Err(ManifestError::TooLarge);
        }
        let probe: DocumentFields =
            serde_json::from_slice(bytes).map_err(ManifestError::Malformed)?;
        if probe.schema_version != 2 {
            return Err(ManifestError::Schema { version: probe.schema_version });
        }
        let announced = announced.map(strip_parameters).filter(|announced| !is_generic(announced));
        let stated = probe.media_type.as_deref().filter(|stated| !stated.is_empty());
        if let (Some(announced), Some(stated)) = (announced, stated)
            && announced != stated
        {
            return Err(ManifestError::TypeMismatch {
                announced: announced.to_owned(),
                stated: stated.to_owned(),
            });
        }
        let media_type = announced.or(stated);
        let mismatch =
            || ManifestError::FieldMismatch { media_type: media_type.unwrap_or("").to_owned() };
        let has_image = probe.config.is_some() || probe.layers.is_some();
        let is_index = match (has_image, probe.manifests.is_some()) {
            _ if probe.fs_layers.is_some() => return Err(mismatch()),
            (true, false) => false,
            (false, true) => true,
            _ => return Err(mismatch()),
        };
        match media_type {
            None => {}
            Some(text) => match to_oci(text) {
                MediaType::ImageIndex if is_index => {}
                MediaType::ImageManifest if !is_index => {}
                MediaType::ImageIndex | MediaType::ImageManifest => return Err(mismatch()),
                other => {
                    return Err(ManifestError::NotAnImage { media_type: other.to_string() });
                }
            },
        }
        if is_index {
            let index: ImageIndex =
                serde_json::from_slice(bytes).map_err(ManifestError::Malformed)?;
            Ok(ManifestDocument::Index(ManifestIndex::try_from(&index)?))
        } else {
            let manifest: ImageManifest =
                serde_json::from_slice(bytes).map_err(ManifestError::Malformed)?;
            Ok(ManifestDocument::Manifest(Box::new(Manifest::try_from(&manifest)?)))
        }
    }

    /// Returns the supported media types as an `Accept` header.
    pub(super) fn accepted_types() -> String {
        let types = [MediaType::ImageIndex, MediaType::ImageManifest];
        let docker = types.iter().filter_map(|known| known.to_docker_v2s2().ok());
        let all: Vec<_> = types.iter().map(AsRef::as_ref).chain(docker).collect();
        all.join(", ")
    }
}

impl Descriptor {
    /// Returns a descriptor with the mandatory fields only.
    pub fn new(media_type: MediaType, digest: Digest, size: u64) -> Self {
        let (urls, annotations) = (Vec::new(), HashMap::new());
        Descriptor { media_type, digest, size, urls, annotations, platform: None }
    }
}

impl TryFrom<&SpecDescriptor> for Descriptor {
    type Error = DigestError;

    fn try_from(descriptor: &SpecDescriptor) -> Result<Self, DigestError> {
        Ok(Descriptor {
            media_type: descriptor.media_type().clone(),
            digest: descriptor.digest().clone().try_into()?,
            size: descriptor.size(),
            urls: descriptor.urls().clone().unwrap_or_default(),
            annotations: descriptor.annotations().clone().unwrap_or_default(),
            platform: descriptor.platform().as_ref().map(Platform::from),
        })
    }
}

impl TryFrom<&ImageManifest> for Manifest {
    type Error = DigestError;

    fn try_from(manifest: &ImageManifest) -> Result<Self, DigestError> {
        Ok(Manifest {
            artifact_type: manifest.artifact_type().clone(),
            config: manifest.config().try_into()?,
            layers: manifest.layers().iter().map(Descriptor::try_from).collect::<Result<_, _>>()?,
        })
    }
}

impl TryFrom<&ImageIndex> for ManifestIndex {
    type Error = DigestError;

    fn try_from(index: &ImageIndex) -> Result<Self, DigestError> {
        let manifests = index.manifests().iter().map(Descriptor::try_from);
        Ok(ManifestIndex { manifests: manifests.collect::<Result<_, _>>()? })
    }
}

impl Manifest {
    /// Checks that the manifest is that of an image, not of another artifact.
    pub fn check_image(&self) -> Result<(), ManifestError> {
        let media_type = &self.config.media_type;
        match to_oci(media_type.as_ref()) {
            MediaType::ImageConfig => Ok(()),
            _ => Err(ManifestError::NotAnImage {
                media_type: self.artifact_type.as_ref().unwrap_or(media_type).to_string(),
            }),
        }
    }
}

impl ManifestIndex {
    /// Returns the manifest that suits a platform best; of equally suitable ones, the first.
    pub fn choose(&self, wanted: &Platform) -> Result<&Descriptor, ManifestError> {
        if let [only] = self.manifests.as_slice()
            && only.platform.is_none()
        {
            return Ok(only);
        }
        let suitable = self.manifests.iter().filter_map(|descriptor| {
            Some((wanted.suitability(descriptor.platform.as_ref()?)?, descriptor))
        });
        let best = suitable.reduce(|best, other| if other.0 > best.0 { other } else { best });
        best.map(|(_, descriptor)| descriptor).ok_or_else(|| {
            let platforms = self.manifests.iter().filter_map(|found| found.platform.clone());
            // Build tools add attestations as manifests for this platform.
            let available =
                platforms.filter(|found| found.os != Os::Other("unknown".to_owned())).collect();
            ManifestError::NoPlatform { wanted: wanted.clone(), available }
        })
    }
}

/// Returns the OCI media type that corresponds to a Docker one; other types are unchanged.
fn to_oci(media_type: &str) -> MediaType {
    let types = [MediaType::ImageIndex, MediaType::ImageManifest, MediaType::ImageConfig];
    let is_docker = |known: &MediaType| known.to_docker_v2s2() == Ok(media_type);
    types.into_iter().find(is_docker).unwrap_or_else(|| media_type.into())
}

/// Returns a media type without its parameters.
fn strip_parameters(content_type: &str) -> &str {
    content_type.split(';').next().unwrap_or(content_type).trim()
}

/// Returns whether a media type is generic, as sent by plain file servers.
fn is_generic(media_type: &str) -> bool {
    matches!(
        media_type,
        "" | "application/json" | "application/octet-stream" | "binary/octet-stream" | "text/plain"
    )
}

/// Returns the media type for messages, after a space.
fn announcement(media_type: &str) -> String {
    match media_type {
        "" => ", as neither the registry nor the manifest names a specific one".to_owned(),
        _ => format!(" {media_type:?}"),
    }
}

fn list(platforms: &[Platform]) -> String {
    match platforms {
        [] => "none".to_owned(),
        _ => platforms.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
    }
}

/// Deserializes null as the default, as Go does.
pub fn deserialize_or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
    const DOCKER_INDEX: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
    const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
    const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
    const OCI_CONFIG: &str = "application/vnd.oci.image.config.v1+json";

    fn descriptor(media_type: &str) -> Value {
        json!({"mediaType": media_type, "digest": Digest::of(b"x"), "size": 1})
    }

    fn manifest() -> Value {
        json!({
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "config": descriptor(OCI_CONFIG),
            "layers": [descriptor("application/vnd.oci.image.layer.v1.tar+gzip")],
            "annotations": null,
        })
    }

    fn index(platforms: &[&str]) -> Value {
        let manifests: Vec<_> = platforms
            .iter()
            .enumerate()
            .map(|(at, text)| {
                let mut entry = descriptor(OCI_MANIFEST);
                entry["size"] = at.into();
                entry["platform"] = json!(text.parse::<Platform>().unwrap());
                entry
            })
            .collect();
        json!({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": manifests})
    }

    fn parse(document: &Value, announced: Option<&str>) -> Result<ManifestDocument, ManifestError> {
        ManifestDocument::parse(document.to_string().as_bytes(), announced)
    }

    fn with(mut document: Value, key: &str, value: Value) -> Value {
        document[key] = value;
        document
    }

    #[test]
    fn manifests_and_indexes_of_both_forms_are_read() {
        let docker = with(manifest(), "mediaType", DOCKER_MANIFEST.into());
        let docker_index = with(index(&["linux/amd64"]), "mediaType", DOCKER_INDEX.into());
        let untyped = with(manifest(), "mediaType", Value::Null);
        for (document, announced) in [
            (manifest(), Some(OCI_MANIFEST)),
            (manifest(), Some("application/vnd.oci.image.manifest.v1+json; charset=utf-8")),
            (manifest(), None),
            (manifest(), Some("application/json")),
            (untyped.clone(), None),
            (untyped, Some(OCI_MANIFEST)),
            (docker, Some(DOCKER_MANIFEST)),
        ] {
            let Ok(ManifestDocument::Manifest(read)) = parse(&document, announced) else {
                panic!()
            };
            assert_eq!(read.layers.len(), 1);
            read.check_image().unwrap();
        }
        for document in [index(&["linux/amd64"]), docker_index] {
            assert!(matches!(parse(&document, None), Ok(ManifestDocument::Index(_))));
        }
    }

    #[test]
    fn media_type_that_contradicts_the_content_is_rejected() {
        let both = with(manifest(), "manifests", json!([]));
        let index = index(&["linux/amd64"]);
        let untyped_index = with(index.clone(), "mediaType", Value::Null);
        for (document, announced) in [
            (both.clone(), None),
            (both, Some(OCI_MANIFEST)),
            (with(index.clone(), "layers", json!([])), None),
            (with(index.clone(), "config", json!({})), Some(OCI_INDEX)),
            (with(manifest(), "fsLayers", json!([])), None),
            (manifest(), Some(OCI_INDEX)),
            (manifest(), Some(DOCKER_MANIFEST)),
            (index, Some(OCI_MANIFEST)),
            (untyped_index, Some(OCI_MANIFEST)),
            (with(manifest(), "mediaType", OCI_INDEX.into()), None),
            (json!({"schemaVersion": 2}), None),
        ] {
            let error = parse(&document, announced).unwrap_err();
            assert!(
                matches!(
                    error,
                    ManifestError::TypeMismatch { .. } | ManifestError::FieldMismatch { .. }
                ),
                "{document} as {announced:?}: {error}"
            );
        }
    }

    #[test]
    fn documents_that_are_no_image_are_rejected() {
        assert!(matches!(
            parse(&json!({"schemaVersion": 1, "fsLayers": []}), None),
            Err(ManifestError::Schema { version: 1 })
        ));
        let chart =
            with(manifest(), "config", descriptor("application/vnd.cncf.helm.config.v1+json"));
        let Ok(ManifestDocument::Manifest(chart)) = parse(&chart, None) else { panic!() };
        assert!(chart.check_image().unwrap_err().to_string().contains("helm"));
        assert!(matches!(
            parse(&manifest(), Some("text/html")),
            Err(ManifestError::TypeMismatch { .. })
        ));
        let other = with(manifest(), "mediaType", "application/x-thing".into());
        assert!(matches!(parse(&other, None), Err(ManifestError::NotAnImage { .. })));
        assert!(matches!(
            ManifestDocument::parse(b"<html>", None),
            Err(ManifestError::Malformed(_))
        ));
    }

    #[test]
    fn oversized_manifest_or_invalid_digest_is_rejected() {
        let padding = " ".repeat(usize::try_from(MAX_MANIFEST_BYTES).unwrap());
        let text = format!("{}{padding}", manifest());
        assert!(matches!(
            ManifestDocument::parse(text.as_bytes(), None),
            Err(ManifestError::TooLarge)
        ));
        let mut bad = manifest();
        bad["layers"][0]["digest"] = "sha256:../../x".into();
        assert!(matches!(parse(&bad, None), Err(ManifestError::Malformed(_))));
        bad["layers"][0]["digest"] = "blake3:abcd".into();
        assert!(matches!(parse(&bad, None), Err(ManifestError::Digest(_))));
    }

    #[test]
    fn the_best_variant_of_an_index_is_chosen() {
        let choose = |platforms: &[&str], wanted: &str| {
            let Ok(ManifestDocument::Index(index)) = parse(&index(platforms), None) else {
                panic!()
            };
            index.choose(&wanted.parse().unwrap()).map(|found| found.size)
        };
        let all =
            ["linux/amd64", "linux/arm/v6", "linux/arm/v7", "linux/arm64/v8", "unknown/unknown"];
        assert_eq!(choose(&all, "linux/amd64").unwrap(), 0);
        assert_eq!(choose(&all, "linux/arm").unwrap(), 2);
        assert_eq!(choose(&all, "linux/arm/v6").unwrap(), 1);
        assert_eq!(choose(&all, "linux/arm64").unwrap(), 3);
        let error = choose(&all, "linux/riscv64").unwrap_err().to_string();
        assert!(error.ends_with("linux/arm/v7, linux/arm64/v8"), "{error}");
    }

    #[test]
    fn accept_header_contains_both_formats() {
        let expected = [OCI_INDEX, OCI_MANIFEST, DOCKER_INDEX, DOCKER_MANIFEST];
        assert_eq!(ManifestDocument::accepted_types(), expected.join(", "));
        let docker_config = "application/vnd.docker.container.image.v1+json";
        let image = with(manifest(), "config", descriptor(docker_config));
        let Ok(ManifestDocument::Manifest(image)) = parse(&image, None) else { panic!() };
        image.check_image().unwrap();
    }

    #[test]
    fn nulls_and_unknown_fields_are_ignored() {
        let mut document = manifest();
        for field in ["urls", "annotations", "platform", "data", "artifactType"] {
            document["layers"][0][field] = Value::Null;
        }
        for field in ["subject", "artifactType", "annotations"] {
            document[field] = Value::Null;
        }
        document["vendor"] = json!({"x": [1]});
        document["layers"][0]["vendor"] = json!("x");
        let Ok(ManifestDocument::Manifest(read)) = parse(&document, None) else { panic!() };
        assert_eq!(read.layers[0].urls, Vec::<String>::new());
    }

    #[test]
    fn a_single_manifest_needs_no_platform() {
        let mut document = index(&["linux/amd64"]);
        document["manifests"][0].as_object_mut().unwrap().remove("platform");
        let Ok(ManifestDocument::Index(index)) = parse(&document, None) else { panic!() };
        assert!(index.choose(&Platform::host()).is_ok());
    }
}
