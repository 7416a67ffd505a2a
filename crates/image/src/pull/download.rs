//! Downloads an image as an OCI layout in a directory, for programs with a store of their own.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use oci_hooks_files::fs::{PathContext as _, PathError};
use oci_spec::image::MediaType;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tracing::info_span;

use super::fetch::{MAX_CONFIGURATION_BYTES, StoppableReader, check, manifest_of, side_by_side};
use super::is_theirs;
use super::request::{PullError, PullPolicy, PullRequest};
use crate::config::ImageConfiguration;
use crate::digest::{Digest, Hasher};
use crate::manifest::{Descriptor, ManifestDocument};
use crate::progress::ProgressEvent;
use crate::registry::{FetchedDocument, RegistryClient, RegistryError, RegistryRepository};

/// Result of a download.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DownloadedImage {
    /// Digest of the manifest or index behind the name.
    pub digest: Digest,
    pub id: Digest,
    /// Fingerprint of the login that the registry required; `None` if the image is public.
    pub access: Option<String>,
}

/// Writes an image to an empty directory as an OCI layout. Writes nothing and returns `None` if the
/// image is still the known one and these credentials may have it.
///
/// If the reference has the digest of an index, `index.json` names that index.
pub fn download(
    client: &RegistryClient,
    request: &PullRequest<'_>,
    known: Option<&DownloadedImage>,
    directory: &Path,
) -> Result<Option<DownloadedImage>, PullError> {
    let _span = info_span!("download", image = %request.reference).entered();
    let asks_rarely = matches!(request.policy, PullPolicy::Missing | PullPolicy::Never);
    if asks_rarely && known.is_some_and(|known| known.access.is_none()) {
        return Ok(None);
    }
    let repository = client.repository(request.reference, request.credentials, request.progress)?;
    repository.set_hurry(known.is_some() && request.policy != PullPolicy::Always);
    let named = match repository.document(request.reference.target()) {
        Ok(named) => named,
        Err(error) => return accept_known_image(request, known, error.into()).map(|()| None),
    };
    let is_private = repository.used_login().is_some();
    let is_same = |known: &DownloadedImage| {
        known.digest == named.digest && known.access.is_some() == is_private
    };
    if known.is_some_and(is_same) {
        return Ok(None);
    }
    repository.set_hurry(false);
    let layout = LayoutDownload { directory, client, repository: &repository, request };
    let digest = named.digest.clone();
    let id = layout.fill(named)?;
    let access = repository.used_login().map(|login| login.fingerprint());
    Ok(Some(DownloadedImage { digest, id, access }))
}

/// Accepts the known image if the registry fails temporarily and these credentials may have it.
fn accept_known_image(
    request: &PullRequest<'_>,
    known: Option<&DownloadedImage>,
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

struct LayoutDownload<'a> {
    directory: &'a Path,
    client: &'a RegistryClient,
    repository: &'a RegistryRepository<'a>,
    request: &'a PullRequest<'a>,
}

impl LayoutDownload<'_> {
    /// Fetches the image that a document has for the platform. Returns the digest of its
    /// configuration.
    fn fill(&self, named: FetchedDocument) -> Result<Digest, PullError> {
        let LayoutDownload { repository, request, .. } = self;
        self.write_blob(&named.digest, &named.bytes)?;
        let mut top = entry(&named);
        let mut found = named;
        if let ManifestDocument::Index(index) = &found.document {
            found = repository.document_of(index.choose(request.platform)?)?;
            self.write_blob(&found.digest, &found.bytes)?;
            if request.reference.digest().is_none() {
                top = entry(&found);
            }
        }
        let digest = found.digest;
        let manifest = manifest_of(found.document)?;
        let bytes = repository.blob(&manifest.config, MAX_CONFIGURATION_BYTES)?;
        check(request, &manifest, &ImageConfiguration::parse(&bytes)?)?;
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
        let mut file = File::create_new(&path).with_path("make", &path)?;
        let mut reader = StoppableReader { reader: self.repository.blob_reader(layer), stop };
        let mut hasher = Hasher::new(digest.algorithm());
        let mut buffer = vec![0; 128 << 10];
        loop {
            let count = reader.read(&mut buffer).map_err(|error| blob_error(error, &path))?;
            if count == 0 {
                break;
            }
            hasher.update(&buffer[..count]);
            file.write_all(&buffer[..count]).with_path("write", &path)?;
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
        fs::write(&path, bytes).with_path("write", &path)
    }

    /// Creates the directory of a file in the layout, and returns the file's path.
    fn place(&self, name: &str) -> Result<PathBuf, PathError> {
        let path = self.directory.join(name);
        let parent = path.parent().unwrap_or(&path);
        fs::create_dir_all(parent).with_path("create the directory", parent)?;
        Ok(path)
    }
}

/// Returns the entry of `index.json` for a document. The default media type is OCI's.
fn entry(FetchedDocument { document, digest, bytes }: &FetchedDocument) -> Value {
    let stated =
        serde_json::from_slice::<StatedType>(bytes).ok().and_then(|stated| stated.media_type);
    let media_type = stated.unwrap_or(match document {
        ManifestDocument::Manifest(_) => MediaType::ImageManifest,
        ManifestDocument::Index(_) => MediaType::ImageIndex,
    });
    json!({"mediaType": media_type, "digest": digest, "size": bytes.len()})
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct StatedType {
    media_type: Option<MediaType>,
}

/// Converts an error of reading a blob.
fn blob_error(error: io::Error, path: &Path) -> PullError {
    match error.downcast::<RegistryError>() {
        Ok(error) => error.into(),
        Err(error) => PathError::new("download to", path, error).into(),
    }
}
