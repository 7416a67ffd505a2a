//! `builtin://function/oci/publish`: pushes an archive to a registry, with the tags of its version.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::path::Path;

use oci_hooks_files::error::chain;
use oci_hooks_files::quantity::format_size;
use oci_hooks_image::{
    ConfigurationError, Descriptor, ImageReference, ImportError, LayoutArchive, MAX_LAYERS,
    ManifestDocument, ManifestError, ProgressEvent, PullProgress, PushDestination, PushError,
    PushOutcome,
};
use semver::Version;
use serde::Deserialize;

use super::super::ExprValue;
use super::super::log::LogStream;
use super::super::resolve::credentials;
use super::build::{REF_NAME, VERSION, digest_output};
use super::error::FunctionError;
use super::files::JobDirectory;
use super::inputs::{PublishInputs, parse_version, tags_of};
use super::run::{FunctionOutputs, FunctionTask};

/// Maximum number of platforms of an image.
const MAX_MANIFESTS: usize = 100;

#[derive(Deserialize)]
struct AnnotatedDocument {
    #[serde(default)]
    annotations: Option<HashMap<String, String>>,
}

/// The image in an archive.
struct FunctionImage {
    version: Version,
    /// Configurations and layers, each once.
    blobs: Vec<Descriptor>,
    /// Manifests for single platforms, if the top document is an index; otherwise empty.
    manifests: Vec<Descriptor>,
    /// Descriptor of the top document, to which tags refer: an index, or the manifest of an image
    /// for one platform.
    top: Descriptor,
    /// Content of the top document.
    bytes: Vec<u8>,
}

/// Publishes an image. Returns the outputs of the function.
pub fn publish(task: &FunctionTask<'_>) -> Result<FunctionOutputs, FunctionError> {
    let inputs = PublishInputs::parse(&task.call.inputs)?;
    let job = JobDirectory::open(&task.call.work_dir)?;
    let path = inputs.archive.as_path();
    let invalid = |source| FunctionError::Archive { path: path.to_owned(), source };
    let archive = LayoutArchive::open(job.open_file(path)?.file, path).map_err(invalid)?;
    let image = FunctionImage::read(&archive, path)?;

    let remote = task.call.remote.as_deref().ok_or(FunctionError::NoRegistries)?;
    let caller = task.caller();
    let credentials = credentials(&remote.credentials, &caller, &inputs.repository)?;
    let destination = remote.registries.destination(&inputs.repository, &credentials, task)?;
    let (registry, repository) = (inputs.repository.registry(), inputs.repository.repository());
    let name = format!("{registry}/{repository}");
    task.log_progress(&format!("Publishing {} as {name}:{}", path.display(), image.version));
    check_new(&destination, &image, &inputs)?;
    let existing = match image.version.pre.is_empty() {
        true => destination.tags()?,
        false => BTreeSet::new(),
    };
    let tags = tags_of(&image.version, &existing);
    push(task, &archive, &image, &destination, path)?;
    let Descriptor { media_type, digest, .. } = &image.top;
    for tag in &tags {
        check_cancelled(task)?;
        destination.push_document(tag, media_type.as_ref(), &image.bytes)?;
        task.log_progress(&format!("Tagged {name}:{tag}"));
    }
    task.log_progress(&format!("Published {name}@{digest}"));
    let tag = image.version.to_string();
    let text = |text: &str| ExprValue::String(text.to_owned());
    Ok(BTreeMap::from([
        ("registry".to_owned(), text(registry)),
        ("repository".to_owned(), text(repository)),
        ("ref".to_owned(), ExprValue::String(format!("{name}:{tag}"))),
        ("tag".to_owned(), ExprValue::String(tag)),
        ("tags".to_owned(), ExprValue::Array(tags.iter().map(|tag| text(tag)).collect())),
        ("digest".to_owned(), digest_output(digest)),
    ]))
}

/// Checks that the version is not published with other content, unless the input `overwrite` is
/// set.
fn check_new(
    destination: &PushDestination<'_>,
    image: &FunctionImage,
    inputs: &PublishInputs,
) -> Result<(), FunctionError> {
    let expected = &image.top.digest;
    match destination.tag_digest(&image.version.to_string())? {
        Some(found) if found != *expected && !inputs.overwrite => {
            let repository = &inputs.repository;
            let name = format!("{}/{}", repository.registry(), repository.repository());
            let reference: Result<ImageReference, _> = format!("{name}:{}", image.version).parse();
            let reference = Box::new(reference.unwrap_or_else(|_| repository.clone()));
            Err(FunctionError::Published { reference, found, expected: expected.clone() })
        }
        _ => Ok(()),
    }
}

/// Pushes all blobs and manifests to which the top document refers, but not the top document
/// itself.
fn push(
    task: &FunctionTask<'_>,
    archive: &LayoutArchive,
    image: &FunctionImage,
    destination: &PushDestination<'_>,
    path: &Path,
) -> Result<(), FunctionError> {
    for blob in &image.blobs {
        check_cancelled(task)?;
        let open = || {
            let reader = archive.blob(blob).map_err(io::Error::other)?;
            Ok(task.guard(reader))
        };
        let done = destination.push_blob(blob, open).map_err(|error| match error {
            PushError::Content { .. } if task.is_cancelled() => FunctionError::Cancelled,
            error => error.into(),
        })?;
        let done = match done {
            PushOutcome::Uploaded => "Pushed",
            PushOutcome::Present => "Already in the registry",
        };
        task.log_progress(&format!("{done}: {}, {}", blob.digest, format_size(blob.size)));
    }
    for manifest in &image.manifests {
        check_cancelled(task)?;
        let Descriptor { media_type, digest, platform, .. } = manifest;
        let document = archive.document(manifest);
        let (_, bytes) =
            document.map_err(|source| FunctionError::Archive { path: path.to_owned(), source })?;
        destination.push_document(digest.as_str(), media_type.as_ref(), &bytes)?;
        let platform =
            platform.as_ref().map_or(String::new(), |platform| format!(" for {platform}"));
        task.log_progress(&format!("Pushed: image {digest}{platform}"));
    }
    Ok(())
}

fn check_cancelled(task: &FunctionTask<'_>) -> Result<(), FunctionError> {
    if task.is_cancelled() { Err(FunctionError::Cancelled) } else { Ok(()) }
}

impl FunctionImage {
    /// Reads all documents of the image in an archive, and checks that all its blobs are in the
    /// archive.
    fn read(archive: &LayoutArchive, path: &Path) -> Result<Self, FunctionError> {
        let invalid = |source| FunctionError::Archive { path: path.to_owned(), source };
        let images = archive.images().map_err(invalid)?;
        let [descriptor] = images.as_slice() else {
            return Err(FunctionError::Images { path: path.to_owned(), images: images.len() });
        };
        let (document, bytes) = archive.document(descriptor).map_err(invalid)?;
        let version = version(descriptor, &bytes);
        let version = version.ok_or_else(|| FunctionError::NoVersion { path: path.to_owned() })?;
        let mut image = FunctionImage {
            version: parse_version(&version)?,
            blobs: Vec::new(),
            manifests: Vec::new(),
            top: descriptor.clone(),
            bytes,
        };
        let mut seen = HashSet::new();
        match document {
            ManifestDocument::Index(index) => {
                if index.manifests.len() > MAX_MANIFESTS {
                    let (path, limit) = (path.to_owned(), MAX_MANIFESTS);
                    return Err(FunctionError::Platforms { path, limit });
                }
                for descriptor in index.manifests {
                    if !seen.insert(descriptor.digest.clone()) {
                        continue;
                    }
                    let (document, _) = archive.document(&descriptor).map_err(invalid)?;
                    image.add(&document, &mut seen).map_err(invalid)?;
                    image.manifests.push(descriptor);
                }
            }
            manifest => image.add(&manifest, &mut seen).map_err(invalid)?,
        }
        for blob in &image.blobs {
            archive.blob(blob).map(drop).map_err(invalid)?;
        }
        Ok(image)
    }

    /// Adds the blobs of a manifest whose digests are not in `seen`.
    fn add(
        &mut self,
        document: &ManifestDocument,
        seen: &mut HashSet<oci_hooks_image::Digest>,
    ) -> Result<(), ImportError> {
        let ManifestDocument::Manifest(manifest) = document else {
            return Err(ManifestError::NestedIndex.into());
        };
        manifest.check_image()?;
        let layers = manifest.layers.len();
        if layers > MAX_LAYERS {
            return Err(ConfigurationError::Layers { layers }.into());
        }
        for blob in [&manifest.config].into_iter().chain(&manifest.layers) {
            if seen.insert(blob.digest.clone()) {
                self.blobs.push(blob.clone());
            }
        }
        Ok(())
    }
}

/// Returns the version of an image: from the version annotation of its entry in the archive or of
/// its top document, or else from the tag annotation of the entry.
fn version(descriptor: &Descriptor, document: &[u8]) -> Option<String> {
    let document: Option<AnnotatedDocument> = serde_json::from_slice(document).ok();
    let own = document.and_then(|document| document.annotations).unwrap_or_default();
    let annotations = &descriptor.annotations;
    let candidates = [annotations.get(VERSION), own.get(VERSION), annotations.get(REF_NAME)];
    candidates.into_iter().flatten().next().cloned()
}

impl PullProgress for FunctionTask<'_> {
    fn event(&self, event: ProgressEvent<'_>) {
        if let ProgressEvent::Retry { error, delay } = event {
            let seconds = delay.as_secs_f64();
            let line = format!("Retrying in {seconds:.1} s: {}", chain(error));
            self.print(LogStream::Err, &line);
        }
    }
}
