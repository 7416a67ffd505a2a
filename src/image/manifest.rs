//! Manifests and indexes: what registries and OCI layouts hold, in both Docker's and OCI's form.
//!
//! The two forms have the same fields, and a document of one kind could be read as the other. So
//! the type that a document is announced with, the type it states, and the fields it has must
//! agree ([CVE-2021-41190](https://github.com/advisories/GHSA-mc8v-mgrf-8f4m)).

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

use super::digest::Digest;
use super::platform::Platform;

/// The types of documents and layers, as in `Content-Type` and `mediaType`.
pub mod media_type {
    /// An OCI manifest.
    pub const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
    /// An OCI index.
    pub const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
    /// An OCI image configuration.
    pub const OCI_CONFIG: &str = "application/vnd.oci.image.config.v1+json";
    /// Docker's manifest, schema 2.
    pub const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
    /// Docker's index.
    pub const DOCKER_INDEX: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
    /// Docker's image configuration.
    pub const DOCKER_CONFIG: &str = "application/vnd.docker.container.image.v1+json";
    /// What OCI puts for a configuration that is none.
    pub const EMPTY: &str = "application/vnd.oci.empty.v1+json";
}

/// A manifest larger than this is refused, as by most registries.
pub const MAX_MANIFEST_BYTES: u64 = 4 << 20;

/// Where some content is: its type, size and digest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    /// The type of the content.
    #[serde(default)]
    pub media_type: String,
    /// The digest of the content.
    pub digest: Digest,
    /// The size of the content in bytes.
    pub size: u64,
    /// Where else the content can be had: foreign layers.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub urls: Vec<String>,
    /// What anybody wanted to add.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// What the content runs on, in an index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<Platform>,
}

/// One image: its configuration and layers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// Always 2.
    pub schema_version: u32,
    /// Its own type; OCI lets it be left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
    /// What it is, if it is no image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact_type: Option<String>,
    /// The image configuration.
    pub config: Descriptor,
    /// The layers, lowest first.
    pub layers: Vec<Descriptor>,
    /// What anybody wanted to add.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// The manifests of one image for several platforms.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Index {
    /// Always 2.
    pub schema_version: u32,
    /// Its own type; OCI lets it be left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
    /// The manifests.
    #[serde(deserialize_with = "or_default")]
    pub manifests: Vec<Descriptor>,
    /// What anybody wanted to add.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// What stands behind a tag: one image, or several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Document {
    /// One image.
    Manifest(Manifest),
    /// One image for each of several platforms.
    Index(Index),
}

/// Why a document is neither manifest nor index.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ManifestError {
    /// It is too large.
    #[error("the manifest has more than {MAX_MANIFEST_BYTES} bytes")]
    TooLarge,
    /// It is not JSON, or fields are missing or of the wrong type.
    #[error("the manifest is malformed")]
    Malformed(#[source] serde_json::Error),
    /// It is of a schema that Docker gave up in 2019.
    #[error(
        "the manifest has schema version {version}, only 2 is known: push the image again \
         with a current program"
    )]
    Schema {
        /// The version.
        version: u64,
    },
    /// It says that it is of another type than it was announced with.
    #[error("the manifest was announced as {announced:?}, but says that it is {stated:?}")]
    TypeMismatch {
        /// The type from the registry or the descriptor.
        announced: String,
        /// The type in the document.
        stated: String,
    },
    /// It has fields of both manifest and index, or not those of its type.
    #[error("the fields of the manifest do not fit its type {media_type:?}")]
    FieldMismatch {
        /// Its type; empty if it was announced as anything and says nothing.
        media_type: String,
    },
    /// It is of a type that is not an image.
    #[error("{media_type:?} is not an image that can be run")]
    NotAnImage {
        /// The type.
        media_type: String,
    },
    /// An index names another one for the platform.
    #[error("the index names another index instead of an image: name the image by its digest")]
    NestedIndex,
    /// The index has nothing for the platform.
    #[error("there is no image for {wanted}: there are {}", list(available))]
    NoPlatform {
        /// The platform.
        wanted: Platform,
        /// What there is.
        available: Vec<Platform>,
    },
}

/// The fields by which documents are told apart.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Probe {
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

impl Document {
    /// Reads a document that was announced with this type, in `Content-Type` or by a descriptor.
    pub fn parse(bytes: &[u8], announced: Option<&str>) -> Result<Self, ManifestError> {
        if bytes.len() as u64 > MAX_MANIFEST_BYTES {
            return Err(ManifestError::TooLarge);
        }
        let probe: Probe = serde_json::from_slice(bytes).map_err(ManifestError::Malformed)?;
        if probe.schema_version != 2 {
            return Err(ManifestError::Schema { version: probe.schema_version });
        }
        let announced = announced.map(essence).filter(|announced| !is_generic(announced));
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
            Some(media_type::OCI_INDEX | media_type::DOCKER_INDEX) if is_index => {}
            Some(media_type::OCI_MANIFEST | media_type::DOCKER_MANIFEST) if !is_index => {}
            Some(
                media_type::OCI_INDEX
                | media_type::DOCKER_INDEX
                | media_type::OCI_MANIFEST
                | media_type::DOCKER_MANIFEST,
            ) => return Err(mismatch()),
            Some(other) => {
                return Err(ManifestError::NotAnImage { media_type: other.to_owned() });
            }
        }
        let document = if is_index {
            serde_json::from_slice(bytes).map(Document::Index)
        } else {
            serde_json::from_slice(bytes).map(Document::Manifest)
        };
        document.map_err(ManifestError::Malformed)
    }
}

impl Manifest {
    /// Checks that this is an image and not another artifact in its form.
    pub fn check_image(&self) -> Result<(), ManifestError> {
        let media_type = self.config.media_type.as_str();
        match media_type {
            media_type::OCI_CONFIG | media_type::DOCKER_CONFIG => Ok(()),
            _ => Err(ManifestError::NotAnImage {
                media_type: self.artifact_type.as_deref().unwrap_or(media_type).to_owned(),
            }),
        }
    }
}

impl Index {
    /// Returns the manifest that runs best on a platform; of equals the first.
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
            let available = platforms.filter(|found| found.os != "unknown").collect();
            ManifestError::NoPlatform { wanted: wanted.clone(), available }
        })
    }
}

/// Returns a type without its parameters.
fn essence(content_type: &str) -> &str {
    content_type.split(';').next().unwrap_or(content_type).trim()
}

/// Returns whether a type says nothing; plain file servers send such.
fn is_generic(media_type: &str) -> bool {
    matches!(
        media_type,
        "" | "application/json" | "application/octet-stream" | "binary/octet-stream" | "text/plain"
    )
}

fn list(platforms: &[Platform]) -> String {
    match platforms {
        [] => "none".to_owned(),
        _ => platforms.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
    }
}

/// Reads null as the default, as Go does.
pub(super) fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
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

    fn descriptor(media_type: &str) -> Value {
        json!({"mediaType": media_type, "digest": Digest::of(b"x"), "size": 1})
    }

    fn manifest() -> Value {
        json!({
            "schemaVersion": 2,
            "mediaType": media_type::OCI_MANIFEST,
            "config": descriptor(media_type::OCI_CONFIG),
            "layers": [descriptor("application/vnd.oci.image.layer.v1.tar+gzip")],
            "annotations": null,
        })
    }

    fn index(platforms: &[&str]) -> Value {
        let manifests: Vec<_> = platforms
            .iter()
            .enumerate()
            .map(|(at, text)| {
                let mut entry = descriptor(media_type::OCI_MANIFEST);
                entry["size"] = at.into();
                entry["platform"] = json!(text.parse::<Platform>().unwrap());
                entry
            })
            .collect();
        json!({"schemaVersion": 2, "mediaType": media_type::OCI_INDEX, "manifests": manifests})
    }

    fn parse(document: &Value, announced: Option<&str>) -> Result<Document, ManifestError> {
        Document::parse(document.to_string().as_bytes(), announced)
    }

    fn with(mut document: Value, key: &str, value: Value) -> Value {
        document[key] = value;
        document
    }

    #[test]
    fn manifests_and_indexes_of_both_forms_are_read() {
        let docker = with(manifest(), "mediaType", media_type::DOCKER_MANIFEST.into());
        let docker_index =
            with(index(&["linux/amd64"]), "mediaType", media_type::DOCKER_INDEX.into());
        let untyped = with(manifest(), "mediaType", Value::Null);
        for (document, announced) in [
            (manifest(), Some(media_type::OCI_MANIFEST)),
            (manifest(), Some("application/vnd.oci.image.manifest.v1+json; charset=utf-8")),
            (manifest(), None),
            (manifest(), Some("application/json")),
            (untyped.clone(), None),
            (untyped, Some(media_type::OCI_MANIFEST)),
            (docker, Some(media_type::DOCKER_MANIFEST)),
        ] {
            let Ok(Document::Manifest(read)) = parse(&document, announced) else { panic!() };
            assert_eq!(read.layers.len(), 1);
            read.check_image().unwrap();
        }
        for document in [index(&["linux/amd64"]), docker_index] {
            assert!(matches!(parse(&document, None), Ok(Document::Index(_))));
        }
    }

    #[test]
    fn a_type_that_does_not_fit_the_content_is_refused() {
        let both = with(manifest(), "manifests", json!([]));
        let index = index(&["linux/amd64"]);
        let untyped_index = with(index.clone(), "mediaType", Value::Null);
        for (document, announced) in [
            (both.clone(), None),
            (both, Some(media_type::OCI_MANIFEST)),
            (with(index.clone(), "layers", json!([])), None),
            (with(index.clone(), "config", json!({})), Some(media_type::OCI_INDEX)),
            (with(manifest(), "fsLayers", json!([])), None),
            (manifest(), Some(media_type::OCI_INDEX)),
            (manifest(), Some(media_type::DOCKER_MANIFEST)),
            (index, Some(media_type::OCI_MANIFEST)),
            (untyped_index, Some(media_type::OCI_MANIFEST)),
            (with(manifest(), "mediaType", media_type::OCI_INDEX.into()), None),
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
    fn what_is_no_image_is_refused() {
        assert!(matches!(
            parse(&json!({"schemaVersion": 1, "fsLayers": []}), None),
            Err(ManifestError::Schema { version: 1 })
        ));
        let chart =
            with(manifest(), "config", descriptor("application/vnd.cncf.helm.config.v1+json"));
        let Ok(Document::Manifest(chart)) = parse(&chart, None) else { panic!() };
        assert!(chart.check_image().unwrap_err().to_string().contains("helm"));
        assert!(matches!(
            parse(&manifest(), Some("text/html")),
            Err(ManifestError::TypeMismatch { .. })
        ));
        let other = with(manifest(), "mediaType", "application/x-thing".into());
        assert!(matches!(parse(&other, None), Err(ManifestError::NotAnImage { .. })));
        assert!(matches!(Document::parse(b"<html>", None), Err(ManifestError::Malformed(_))));
    }

    #[test]
    fn a_manifest_that_is_too_large_or_has_a_bad_digest_is_refused() {
        let padding = " ".repeat(usize::try_from(MAX_MANIFEST_BYTES).unwrap());
        let text = format!("{}{padding}", manifest());
        assert!(matches!(Document::parse(text.as_bytes(), None), Err(ManifestError::TooLarge)));
        let mut bad = manifest();
        bad["layers"][0]["digest"] = "sha256:../../x".into();
        assert!(matches!(parse(&bad, None), Err(ManifestError::Malformed(_))));
    }

    #[test]
    fn the_best_variant_of_an_index_is_chosen() {
        let choose = |platforms: &[&str], wanted: &str| {
            let Ok(Document::Index(index)) = parse(&index(platforms), None) else { panic!() };
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
    fn a_single_manifest_needs_no_platform() {
        let mut document = index(&["linux/amd64"]);
        document["manifests"][0].as_object_mut().unwrap().remove("platform");
        let Ok(Document::Index(index)) = parse(&document, None) else { panic!() };
        assert!(index.choose(&Platform::host()).is_ok());
    }
}
