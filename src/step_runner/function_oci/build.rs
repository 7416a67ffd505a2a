//! `builtin://function/oci/build`: files of a job become an image in an archive.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use rustix::fd::BorrowedFd;
use rustix::fs::{AtFlags, Mode, OFlags, openat, renameat, unlinkat};
use serde_json::{Value as Json, json};

use super::super::Value;
use super::super::document::{Severity, lint};
use super::super::log::Stream;
use super::super::resolve::{ARCHIVE, MAX_BYTES};
use super::error::FunctionError;
use super::files::{Entry, JobDirectory, Tree};
use super::inputs::{BuildInputs, Version};
use super::run::{Outputs, Task};
use crate::image::{
    Digest, LayerBuilder, LayoutWriter, MAX_MANIFEST_BYTES, MediaType, Platform, WrittenLayer,
};
use crate::sys::beneath::Beneath;
use crate::sys::fs::{PathContext as _, random_u64};
use crate::sys::quantity::human;

/// The media type of layers of functions: a tar archive compressed by zstd, as others too.
const LAYER: &str = "application/vnd.gitlab.step.layer.v1.tar+zstd";

/// The annotation with the version, of the image and of the archive's entry for it.
pub const VERSION: &str = "org.opencontainers.image.version";

/// The annotation with the tag, in the archive only.
pub const REF_NAME: &str = "org.opencontainers.image.ref.name";

/// Builds an image. Returns the outputs of the function.
pub fn build(task: &Task<'_>) -> Result<Outputs, FunctionError> {
    let BuildInputs { version, common, platforms } = BuildInputs::parse(task.inputs())?;
    let job = JobDirectory::open(task.work_dir())?;
    let is_cancelled = || task.is_cancelled();
    let common = job.collect(&common, &is_cancelled)?;
    let mut trees = Vec::new();
    for (platform, copied) in platforms {
        let tree = job.collect(&copied, &is_cancelled)?;
        let has_step_file = [&common, &tree].into_iter().any(Tree::has_step_file);
        if !has_step_file {
            return Err(FunctionError::NoStepFile { platform: platform.to_string() });
        }
        trees.push((platform, tree));
    }

    let archive = NewArchive::create(job.root())?;
    let file = archive.file.try_clone()?;
    let mut image =
        ImageWriter { writer: LayoutWriter::new(file)?, task, job: &job, version: &version };
    let shared = image.layer("all platforms", &common)?;
    let mut manifests = Vec::new();
    for (platform, tree) in &trees {
        let own = image.layer(&platform.to_string(), tree)?;
        let layers: Vec<_> = shared.iter().chain(&own).collect();
        manifests.push(image.manifest(platform, &layers)?);
    }
    let digest = image.finish(&manifests)?;
    let size = archive.size()?;
    let path = archive.finish()?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    task.say(&format!("Built {name} with version {version}: {digest}, {}", human(size)));
    Ok(BTreeMap::from([
        ("archive".to_owned(), Value::String(name.into_owned())),
        ("version".to_owned(), Value::String(version.to_string())),
        ("digest".to_owned(), digest_output(&digest)),
    ]))
}

/// Returns a digest as an output, in the form that GitLab's step for images has.
pub fn digest_output(digest: &Digest) -> Value {
    json!({
        "algorithm": digest.algorithm().name(),
        "hash": digest.hex(),
        "value": digest.as_str(),
    })
    .into()
}

/// An image that is written.
struct ImageWriter<'a> {
    writer: LayoutWriter,
    task: &'a Task<'a>,
    job: &'a JobDirectory,
    version: &'a Version,
}

impl ImageWriter<'_> {
    /// Writes the files of a layer, if there are any.
    fn layer(&mut self, name: &str, tree: &Tree) -> Result<Option<WrittenLayer>, FunctionError> {
        for path in &tree.left_out {
            self.task.say(&format!("Left out: {}", path.display()));
        }
        if tree.entries.is_empty() {
            return Ok(None);
        }
        let (task, job) = (self.task, self.job);
        let mut files = 0;
        let fill = |layer: &mut LayerBuilder<'_>| -> Result<(), FunctionError> {
            for (path, entry) in &tree.entries {
                match entry {
                    Entry::Directory => layer.directory(path)?,
                    Entry::Link(target) => layer.link(path, target)?,
                    Entry::File(source) => {
                        files += 1;
                        add_file(layer, path, job, source, task)?;
                    }
                }
            }
            Ok(())
        };
        let layer = self.writer.layer(fill).map_err(|error| match error {
            FunctionError::Write(_) if task.is_cancelled() => FunctionError::Cancelled,
            error => error,
        })?;
        let size = human(layer.size);
        let plural = if files == 1 { "" } else { "s" };
        task.say(&format!("Files for {name}: {files} file{plural}, {size} compressed"));
        Ok(Some(layer))
    }

    /// Writes the configuration and the manifest for a platform. Returns its entry in the index.
    fn manifest(
        &mut self,
        platform: &Platform,
        layers: &[&WrittenLayer],
    ) -> Result<Json, FunctionError> {
        let mut config = json!(platform);
        let diff_ids: Vec<_> = layers.iter().map(|layer| &layer.diff_id).collect();
        config["config"] = json!({});
        config["rootfs"] = json!({"type": "layers", "diff_ids": diff_ids});
        let config = self.document(&MediaType::ImageConfig, &config)?;
        let layers: Vec<_> = layers
            .iter()
            .map(|layer| json!({"mediaType": LAYER, "digest": layer.digest, "size": layer.size}))
            .collect();
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MediaType::ImageManifest.as_ref(),
            "config": config,
            "layers": layers,
            "annotations": {VERSION: self.version.to_string()},
        });
        let mut entry = self.document(&MediaType::ImageManifest, &manifest)?;
        entry["platform"] = json!(platform);
        Ok(entry)
    }

    /// Writes the index, and ends the archive. Returns the digest of the index.
    fn finish(mut self, manifests: &[Json]) -> Result<Digest, FunctionError> {
        let version = self.version.to_string();
        let index = json!({
            "schemaVersion": 2,
            "mediaType": MediaType::ImageIndex.as_ref(),
            "manifests": manifests,
            "annotations": {VERSION: version},
        });
        let mut entry = self.document(&MediaType::ImageIndex, &index)?;
        let digest = Digest::of(index.to_string().as_bytes());
        entry["annotations"] = json!({VERSION: version, REF_NAME: version});
        let layout = json!({
            "schemaVersion": 2,
            "mediaType": MediaType::ImageIndex.as_ref(),
            "manifests": [entry],
        });
        self.writer.finish(layout.to_string().as_bytes())?;
        Ok(digest)
    }

    /// Writes a document. Returns its descriptor.
    fn document(&mut self, kind: &MediaType, document: &Json) -> Result<Json, FunctionError> {
        let bytes = document.to_string();
        debug_assert!(bytes.len() as u64 <= MAX_MANIFEST_BYTES);
        let digest = self.writer.blob(bytes.as_bytes())?;
        Ok(json!({"mediaType": kind.as_ref(), "digest": digest, "size": bytes.len()}))
    }
}

/// Adds a file to a layer. Step files are checked first.
fn add_file(
    layer: &mut LayerBuilder<'_>,
    path: &Path,
    job: &JobDirectory,
    source: &Path,
    task: &Task<'_>,
) -> Result<(), FunctionError> {
    let opened = job.open_file(source)?;
    let mut reader = task.guard(opened.file);
    if !is_step_file(path) {
        return Ok(layer.file(path, opened.is_executable, opened.size, reader)?);
    }
    let mut text = Vec::new();
    reader.by_ref().take(MAX_BYTES + 1).read_to_end(&mut text)?;
    if text.len() as u64 > MAX_BYTES {
        let problem = format!("step file too large (limit {MAX_BYTES} bytes)");
        return Err(FunctionError::Input { path: path.display().to_string(), problem });
    }
    check(path, &text, &|stream: Stream, line: &str| task.print(stream, line))?;
    Ok(layer.file(path, opened.is_executable, text.len() as u64, &*text)?)
}

impl Tree {
    fn has_step_file(&self) -> bool {
        let is_file = |(path, entry): (&PathBuf, &Entry)| {
            is_step_file(path) && matches!(entry, Entry::File(_))
        };
        self.entries.iter().any(is_file)
    }
}

/// Names of step files.
const NAMES: [&str; 2] = ["func.yml", "step.yml"];

/// Returns whether a path is one of a step file.
fn is_step_file(path: &Path) -> bool {
    NAMES.iter().any(|name| path.file_name() == Some(name.as_ref()))
}

/// Reports what is wrong with a step file. Errors in one at the top of the image fail; what is further down
/// may be there for tests.
pub fn check(path: &Path, text: &[u8], log: &dyn Fn(Stream, &str)) -> Result<(), FunctionError> {
    let name = path.display().to_string();
    let findings = lint(&name, &String::from_utf8_lossy(text), None);
    let mut errors = 0;
    for finding in findings.iter().filter(|finding| finding.severity != Severity::Note) {
        log(
            Stream::Err,
            &format!("{}: {}: {}", finding.location, finding.severity, finding.message),
        );
        errors += usize::from(finding.severity == Severity::Error);
    }
    match errors {
        1.. if path.components().count() == 1 => {
            Err(FunctionError::StepFile { path: PathBuf::from(path), errors })
        }
        _ => Ok(()),
    }
}

/// A new archive beside the old one; removed when dropped.
#[derive(Debug)]
struct NewArchive<'a> {
    directory: BorrowedFd<'a>,
    path: PathBuf,
    /// The name while it is written.
    name: Option<String>,
    file: File,
}

impl<'a> NewArchive<'a> {
    fn create(directory: &'a Beneath) -> Result<Self, FunctionError> {
        let path = directory.path().join(ARCHIVE);
        let name = format!("{ARCHIVE}.{:016x}.tmp", random_u64());
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o644);
        let directory = directory.as_fd();
        let file = openat(directory, &name, flags, mode).at("create", &path)?;
        Ok(NewArchive { directory, path, name: Some(name), file: file.into() })
    }

    /// Puts the archive in the place of the old one. Returns its path.
    pub fn finish(mut self) -> Result<PathBuf, FunctionError> {
        if let Some(name) = &self.name {
            renameat(self.directory, name, self.directory, ARCHIVE).at("replace", &self.path)?;
        }
        self.name = None;
        Ok(self.path.clone())
    }

    /// Returns how large the archive is in bytes.
    fn size(&self) -> Result<u64, FunctionError> {
        Ok(self.file.metadata().at("read the status of", &self.path)?.len())
    }
}

impl Drop for NewArchive<'_> {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            let _ = unlinkat(self.directory, name, AtFlags::empty());
        }
    }
}
