//! An image of a registry as an OCI layout in a directory, for a program that has a store of its own.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use oci_spec::image::MediaType;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tracing::info_span;

use super::fetch::{MAX_CONFIGURATION_BYTES, Stoppable, check, manifest_of, side_by_side};
use super::is_theirs;
use super::request::{PullError, PullPolicy, PullRequest};
use crate::image::config::Configuration;
use crate::image::digest::{Digest, Hasher};
use crate::image::manifest::{Descriptor, Document};
use crate::image::progress::ProgressEvent;
use crate::image::registry::{Fetched, RegistryClient, RegistryError, Repository};
use crate::sys::fs::{PathContext as _, PathError};

/// An image that was downloaded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Downloaded {
    /// The digest of what its name stands for: a manifest, or an index.
    pub digest: Digest,
    /// The digest of its configuration.
    pub id: Digest,
    /// The fingerprint of the login that the registry wanted; none if anybody may have the image.
    pub access: Option<String>,
}

/// Writes an image to an empty directory as an OCI layout that has nothing else. Writes nothing, and returns nothing, if
/// the image is still the known one and these credentials may have it.
///
/// An image that is named by the digest of an index is in the layout with that index.
pub fn download(
    client: &RegistryClient,
    request: &PullRequest<'_>,
    known: Option<&Downloaded>,
    directory: &Path,
) -> Result<Option<Downloaded>, PullError> {
    let _span = info_span!("download", image = %request.reference).entered();
    let asks_rarely = matches!(request.policy, PullPolicy::Missing | PullPolicy::Never);
    if asks_rarely && known.is_some_and(|known| known.access.is_none()) {
        return Ok(None);
    }
    let repository = client.repository(request.reference, request.credentials, request.progress)?;
    repository.hurry(known.is_some() && request.policy != PullPolicy::Always);
    let named = match repository.document(request.reference.target()) {
        Ok(named) => named,
        Err(error) => return known_instead(request, known, error.into()).map(|()| None),
    };
    let is_private = repository.used_login().is_some();
    let is_same =
        |known: &Downloaded| known.digest == named.digest && known.access.is_some() == is_private;
    if known.is_some_and(is_same) {
        return Ok(None);
    }
    repository.hurry(false);
    let layout = Layout { directory, client, repository: &repository, request };
    let digest = named.digest.clone();
    let id = layout.fill(named)?;
    let access = repository.used_login().map(|login| login.fingerprint());
    Ok(Some(Downloaded { digest, id, access }))
}

/// Takes the known image if its registry cannot give one now, and these credentials may have it.
fn known_instead(
    request: &PullRequest<'_>,
    known: Option<&Downloaded>,
    error: PullError,
) -> Result<(), PullError> {
    let Some(known) = known.filter(|_| request.policy != PullPolicy::Always) else {
        return Err(error);
    };
    if !error.is_transient() || !is_theirs(request, known.access.as_deref())? {
        return Err(error);
    }
    request.progress.event(ProgressEvent::Outdated { reference: request.reference, error: &error });
    Ok(())
}

/// A layout that is filled.
struct Layout<'a> {
    directory: &'a Path,
    client: &'a RegistryClient,
    repository: &'a Repository<'a>,
    request: &'a PullRequest<'a>,
}

impl Layout<'_> {
    /// Fetches what a document names for the platform. Returns the digest of its configuration.
    fn fill(&self, named: Fetched) -> Result<Digest, PullError> {
        let Layout { repository, request, .. } = self;
        self.write_blob(&named.digest, &named.bytes)?;
        let mut top = entry(&named);
        let mut found = named;
        if let Document::Index(index) = &found.document {
            found = repository.document_of(index.choose(request.platform)?)?;
            self.write_blob(&found.digest, &found.bytes)?;
            if request.reference.digest().is_none() {
                top = entry(&found);
            }
        }
        let digest = found.digest;
        let manifest = manifest_of(found.document)?;
        let bytes = repository.blob(&manifest.config, MAX_CONFIGURATION_BYTES)?;
        check(request, &manifest, &Configuration::parse(&bytes)?)?;
        self.write_blob(&manifest.config.digest, &bytes)?;
        let mut seen = HashSet::new();
        let layers: Vec<_> =
            manifest.layers.iter().filter(|layer| seen.insert(&layer.digest)).collect();
        request.progress.event(ProgressEvent::Resolved {
            reference: request.reference,
            digest: &digest,
            layers: layers.len(),
            bytes: layers.iter().map(|layer| layer.size).fold(0, u64::saturating_add),
        });
        let stop = AtomicBool::new(false);
        side_by_side(&layers, self.client, request, &stop, |layer| self.layer(layer, &stop))?;
        self.write("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)?;
        let index = json!({"schemaVersion": 2, "manifests": [top]});
        self.write("index.json", index.to_string().as_bytes())?;
        Ok(manifest.config.digest)
    }

    fn layer(&self, layer: &Descriptor, stop: &AtomicBool) -> Result<(), PullError> {
        let Descriptor { digest, size, .. } = layer;
        let progress = self.request.progress;
        progress.event(ProgressEvent::LayerStarted { digest, bytes: *size });
        let path = self.place(&digest.blob_name())?;
        let mut file = File::create_new(&path).at("make", &path)?;
        let mut reader = Stoppable { reader: self.repository.blob_reader(layer), stop };
        let mut hasher = Hasher::new(digest.algorithm());
        let mut buffer = vec![0; 128 << 10];
        loop {
            let count = reader.read(&mut buffer).map_err(|error| failed(error, &path))?;
            if count == 0 {
                break;
            }
            hasher.update(&buffer[..count]);
            file.write_all(&buffer[..count]).at("write", &path)?;
        }
        let found = hasher.finish();
        if found != *digest {
            let (server, expected) = (self.repository.registry().to_owned(), digest.clone());
            return Err(RegistryError::Digest { server, expected, found }.into());
        }
        progress.event(ProgressEvent::LayerDone { digest });
        Ok(())
    }

    fn write_blob(&self, digest: &Digest, bytes: &[u8]) -> Result<(), PathError> {
        self.write(&digest.blob_name(), bytes)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), PathError> {
        let path = self.place(name)?;
        fs::write(&path, bytes).at("write", &path)
    }

    /// Returns the path of a file of the layout, whose directory is there.
    fn place(&self, name: &str) -> Result<PathBuf, PathError> {
        let path = self.directory.join(name);
        let parent = path.parent().unwrap_or(&path);
        fs::create_dir_all(parent).at("make the directory", parent)?;
        Ok(path)
    }
}

/// Returns what `index.json` says of a document. One that does not say its type is of OCI's.
fn entry(Fetched { document, digest, bytes }: &Fetched) -> Value {
    let stated = serde_json::from_slice::<Stated>(bytes).ok().and_then(|stated| stated.media_type);
    let media_type = stated.unwrap_or(match document {
        Document::Manifest(_) => MediaType::ImageManifest,
        Document::Index(_) => MediaType::ImageIndex,
    });
    json!({"mediaType": media_type, "digest": digest, "size": bytes.len()})
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Stated {
    media_type: Option<MediaType>,
}

/// Returns why a blob cannot be read.
fn failed(error: io::Error, path: &Path) -> PullError {
    match error.downcast::<RegistryError>() {
        Ok(error) => error.into(),
        Err(error) => PathError::new("download to", path, error).into(),
    }
}
