//! `builtin://function/oci/publish`: an archive becomes an image in a registry, with the tags of its version.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::path::Path;

use serde::Deserialize;

use super::super::Value;
use super::super::log::Stream;
use super::super::resolve::credentials;
use super::build::{REF_NAME, VERSION, digest_output};
use super::error::FunctionError;
use super::files::JobDirectory;
use super::inputs::{PublishInputs, Version};
use super::run::{Outputs, Task};
use crate::image::{
    ConfigurationError, Descriptor, Destination, Document, ImportError, LayoutArchive, MAX_LAYERS,
    ManifestError, Progress, ProgressEvent, PushError, Pushed, Reference,
};
use crate::sys::error::chain;
use crate::sys::quantity::human;

/// The most platforms of an image.
const MAX_MANIFESTS: usize = 100;

/// Annotations of a document.
#[derive(Deserialize)]
struct Annotated {
    #[serde(default)]
    annotations: Option<HashMap<String, String>>,
}

/// All of an image in an archive.
struct FunctionImage {
    version: Version,
    /// Configurations and layers, each once.
    blobs: Vec<Descriptor>,
    /// Manifests that the top names.
    manifests: Vec<Descriptor>,
    /// What tags name: an index, or the manifest of an image for one platform.
    top: Descriptor,
    /// Content of the top.
    bytes: Vec<u8>,
}

/// Publishes an image. Returns the outputs of the function.
pub fn publish(task: &Task<'_>) -> Result<Outputs, FunctionError> {
    let inputs = PublishInputs::parse(task.inputs())?;
    let job = JobDirectory::open(task.work_dir())?;
    let path = inputs.archive.as_path();
    let invalid = |source| FunctionError::Archive { path: path.to_owned(), source };
    let archive = LayoutArchive::open(job.open_file(path)?.file, path).map_err(invalid)?;
    let image = FunctionImage::read(&archive, path)?;

    let remote = task.remote().ok_or(FunctionError::NoRegistries)?;
    let caller = task.caller();
    let credentials = credentials(&remote.credentials, &caller, &inputs.repository)?;
    let log = Log { task };
    let destination = remote.registries.destination(&inputs.repository, &credentials, &log)?;
    let (registry, repository) = (inputs.repository.registry(), inputs.repository.repository());
    let name = format!("{registry}/{repository}");
    task.say(&format!("Publishing {} as {name}:{}", path.display(), image.version));
    check_new(&destination, &image, &inputs)?;
    let tags = match image.version.is_prerelease() {
        true => image.version.tags(&BTreeSet::new()),
        false => image.version.tags(&destination.tags()?),
    };
    push(task, &archive, &image, &destination, path)?;
    let Descriptor { media_type, digest, .. } = &image.top;
    for tag in &tags {
        check_cancelled(task)?;
        destination.push_document(tag, media_type.as_ref(), &image.bytes)?;
        task.say(&format!("Tagged {name}:{tag}"));
    }
    task.say(&format!("Published {name}@{digest}"));
    let tag = image.version.to_string();
    let text = |text: &str| Value::String(text.to_owned());
    Ok(BTreeMap::from([
        ("registry".to_owned(), text(registry)),
        ("repository".to_owned(), text(repository)),
        ("ref".to_owned(), Value::String(format!("{name}:{tag}"))),
        ("tag".to_owned(), Value::String(tag)),
        ("tags".to_owned(), Value::Array(tags.iter().map(|tag| text(tag)).collect())),
        ("digest".to_owned(), digest_output(digest)),
    ]))
}

/// Checks that the version is not there with another content.
fn check_new(
    destination: &Destination<'_>,
    image: &FunctionImage,
    inputs: &PublishInputs,
) -> Result<(), FunctionError> {
    let expected = &image.top.digest;
    match destination.tagged(&image.version.to_string())? {
        Some(found) if found != *expected && !inputs.overwrite => {
            let repository = &inputs.repository;
            let name = format!("{}/{}", repository.registry(), repository.repository());
            let reference: Result<Reference, _> = format!("{name}:{}", image.version).parse();
            let reference = Box::new(reference.unwrap_or_else(|_| repository.clone()));
            Err(FunctionError::Published { reference, found, expected: expected.clone() })
        }
        _ => Ok(()),
    }
}

/// Pushes all that tags can name afterwards.
fn push(
    task: &Task<'_>,
    archive: &LayoutArchive,
    image: &FunctionImage,
    destination: &Destination<'_>,
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
            Pushed::Uploaded => "Pushed",
            Pushed::Present => "Present",
        };
        task.say(&format!("{done}: {}, {}", blob.digest, human(blob.size)));
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
        task.say(&format!("Pushed: image {digest}{platform}"));
    }
    Ok(())
}

fn check_cancelled(task: &Task<'_>) -> Result<(), FunctionError> {
    if task.is_cancelled() { Err(FunctionError::Cancelled) } else { Ok(()) }
}

impl FunctionImage {
    /// Reads all documents of the image in an archive, and checks that all of its blobs are there.
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
            version: version.parse()?,
            blobs: Vec::new(),
            manifests: Vec::new(),
            top: descriptor.clone(),
            bytes,
        };
        let mut seen = HashSet::new();
        match document {
            Document::Index(index) => {
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

    /// Adds the blobs of a manifest.
    fn add(
        &mut self,
        document: &Document,
        seen: &mut HashSet<crate::image::Digest>,
    ) -> Result<(), ImportError> {
        let Document::Manifest(manifest) = document else {
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

/// Returns the version that an archive names: in its entry for the image, or in the image.
fn version(descriptor: &Descriptor, document: &[u8]) -> Option<String> {
    let document: Option<Annotated> = serde_json::from_slice(document).ok();
    let own = document.and_then(|document| document.annotations).unwrap_or_default();
    let annotations = &descriptor.annotations;
    let candidates = [annotations.get(VERSION), own.get(VERSION), annotations.get(REF_NAME)];
    candidates.into_iter().flatten().next().cloned()
}

/// Tells the log what is tried again.
struct Log<'a> {
    task: &'a Task<'a>,
}

impl Progress for Log<'_> {
    fn event(&self, event: ProgressEvent<'_>) {
        if let ProgressEvent::Retry { error, delay } = event {
            let seconds = delay.as_secs_f64();
            let line = format!("Trying again in {seconds:.1} s: {}", chain(error));
            self.task.print(Stream::Err, &line);
        }
    }
}
