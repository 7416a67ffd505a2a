//! `builtin://function/oci/build`: builds an OCI image from files of a job, and writes it to an
//! archive.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use oci_hooks_files::beneath::ConfinedRoot;
use oci_hooks_files::fs::{PathContext as _, random_u64};
use oci_hooks_files::quantity::format_size;
use oci_hooks_image::{
    Digest, LayerBuilder, LayoutWriter, MAX_MANIFEST_BYTES, MediaType, Platform, WrittenLayer,
};
use rustix::fd::BorrowedFd;
use rustix::fs::{AtFlags, Mode, OFlags, openat, renameat, unlinkat};
use semver::Version;
use serde_json::{Value as Json, json};

use super::super::ExprValue;
use super::super::document::{LintSeverity, MAX_BYTES, STEP_FILE_NAMES, lint};
use super::super::log::LogStream;
use super::super::resolve::ARCHIVE;
use super::error::FunctionError;
use super::files::{FILES, JobDirectory, LayerEntry, LayerTree};
use super::inputs::BuildInputs;
use super::run::{FunctionOutputs, FunctionTask};

/// Media type of layers of functions, which are tar archives compressed with zstd.
const LAYER: &str = "application/vnd.gitlab.step.layer.v1.tar+zstd";

/// Annotation with the version: of the manifests and the index of the image, and of the entry for
/// the image in the archive's `index.json`.
pub const VERSION: &str = "org.opencontainers.image.version";

/// Annotation with the tag, only of the entry for the image in the archive's `index.json`.
pub const REF_NAME: &str = "org.opencontainers.image.ref.name";

/// Builds an image. Returns the outputs of the function.
pub fn build(task: &FunctionTask<'_>) -> Result<FunctionOutputs, FunctionError> {
    let BuildInputs { version, common, platforms } = BuildInputs::parse(&task.call.inputs)?;
    let job = JobDirectory::open(&task.call.work_dir)?;
    let is_cancelled = || task.is_cancelled();
    let common = job.collect(&common, &is_cancelled)?;
    let mut trees = Vec::new();
    for (platform, copied) in platforms {
        let tree = job.collect(&copied, &is_cancelled)?;
        let has_step_file = [&common, &tree].into_iter().any(LayerTree::has_step_file);
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
    task.log_progress(&format!(
        "Built {name} with version {version}: {digest}, {}",
        format_size(size)
    ));
    Ok(BTreeMap::from([
        ("archive".to_owned(), ExprValue::String(name.into_owned())),
        ("version".to_owned(), ExprValue::String(version.to_string())),
        ("digest".to_owned(), digest_output(&digest)),
    ]))
}

/// Returns a digest as an output: an object with `algorithm`, `hash` and `value`, as in outputs of
/// GitLab's function.
pub fn digest_output(digest: &Digest) -> ExprValue {
    json!({
        "algorithm": digest.algorithm().name(),
        "hash": digest.hex(),
        "value": digest.as_str(),
    })
    .into()
}

/// An image that is being written.
struct ImageWriter<'a> {
    writer: LayoutWriter,
    task: &'a FunctionTask<'a>,
    job: &'a JobDirectory,
    version: &'a Version,
}

impl ImageWriter<'_> {
    /// Writes a layer with the files of `tree`; returns `None` if there are none. `name` describes
    /// the layer in the log.
    fn layer(
        &mut self,
        name: &str,
        tree: &LayerTree,
    ) -> Result<Option<WrittenLayer>, FunctionError> {
        for path in &tree.left_out {
            self.task.log_progress(&format!("Not copied to the image: {}", path.display()));
        }
        if tree.entries.is_empty() {
            return Ok(None);
        }
        let (task, job) = (self.task, self.job);
        let mut files = 0;
        let fill = |layer: &mut LayerBuilder<'_>| -> Result<(), FunctionError> {
            for (path, entry) in &tree.entries {
                match entry {
                    LayerEntry::Directory => layer.directory(path)?,
                    LayerEntry::Link(target) => layer.link(path, target)?,
                    LayerEntry::File(source) => {
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
        let size = format_size(layer.size);
        let plural = if files == 1 { "" } else { "s" };
        task.log_progress(&format!("Files for {name}: {files} file{plural}, {size} compressed"));
        Ok(Some(layer))
    }

    /// Writes the configuration and the manifest for a platform. Returns the entry for them in the
    /// image index.
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

    /// Writes the image index, and finishes the archive. Returns the digest of the image index.
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

    /// Writes a JSON document as a blob. Returns its descriptor.
    fn document(&mut self, kind: &MediaType, document: &Json) -> Result<Json, FunctionError> {
        let bytes = document.to_string();
        debug_assert!(bytes.len() as u64 <= MAX_MANIFEST_BYTES);
        let digest = self.writer.blob(bytes.as_bytes())?;
        Ok(json!({"mediaType": kind.as_ref(), "digest": digest, "size": bytes.len()}))
    }
}

/// Adds a file to a layer. A step file is checked first.
fn add_file(
    layer: &mut LayerBuilder<'_>,
    path: &Path,
    job: &JobDirectory,
    source: &Path,
    task: &FunctionTask<'_>,
) -> Result<(), FunctionError> {
    let opened = job.open_file(source)?;
    let mut reader = task.guard(opened.file);
    if !is_step_file(path) {
        return Ok(layer.file(path, opened.is_executable, opened.size, reader)?);
    }
    let mut text = Vec::new();
    reader.by_ref().take(MAX_BYTES + 1).read_to_end(&mut text)?;
    if text.len() as u64 > MAX_BYTES {
        let problem = format!("{}: step file too large (limit {MAX_BYTES} bytes)", path.display());
        return Err(FunctionError::Input { path: FILES.to_owned(), problem });
    }
    check(path, &text, &|stream: LogStream, line: &str| task.print(stream, line))?;
    Ok(layer.file(path, opened.is_executable, text.len() as u64, &*text)?)
}

impl LayerTree {
    fn has_step_file(&self) -> bool {
        let is_file = |(path, entry): (&PathBuf, &LayerEntry)| {
            is_step_file(path) && matches!(entry, LayerEntry::File(_))
        };
        self.entries.iter().any(is_file)
    }
}

/// Returns whether a path ends in the name of a step file, `step.yml` or `func.yml`.
fn is_step_file(path: &Path) -> bool {
    STEP_FILE_NAMES.iter().any(|name| path.file_name() == Some(name.as_ref()))
}

/// Logs errors and warnings about a step file. Fails on errors only if the file is at the top of
/// the image; deeper files may be test data.
pub fn check(path: &Path, text: &[u8], log: &dyn Fn(LogStream, &str)) -> Result<(), FunctionError> {
    let name = path.display().to_string();
    let findings = lint(&name, &String::from_utf8_lossy(text), None);
    let mut errors = 0;
    for finding in findings.iter().filter(|finding| finding.severity != LintSeverity::Note) {
        log(
            LogStream::Err,
            &format!("{}: {}: {}", finding.location, finding.severity, finding.message),
        );
        errors += usize::from(finding.severity == LintSeverity::Error);
    }
    match errors {
        1.. if path.components().count() == 1 => {
            Err(FunctionError::StepFile { path: PathBuf::from(path), errors })
        }
        _ => Ok(()),
    }
}

/// A new archive with a temporary name in the job's directory; removed on drop, unless finished.
#[derive(Debug)]
struct NewArchive<'a> {
    directory: BorrowedFd<'a>,
    path: PathBuf,
    /// Temporary file name; `None` once the archive is finished.
    name: Option<String>,
    file: File,
}

impl<'a> NewArchive<'a> {
    fn create(directory: &'a ConfinedRoot) -> Result<Self, FunctionError> {
        let path = directory.path().join(ARCHIVE);
        let name = format!("{ARCHIVE}.{:016x}.tmp", random_u64());
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o644);
        let directory = directory.as_fd();
        let file = openat(directory, &name, flags, mode).with_path("create", &path)?;
        Ok(NewArchive { directory, path, name: Some(name), file: file.into() })
    }

    /// Renames the new archive, which replaces the previous one. Returns the path.
    pub fn finish(mut self) -> Result<PathBuf, FunctionError> {
        if let Some(name) = &self.name {
            renameat(self.directory, name, self.directory, ARCHIVE)
                .with_path("replace", &self.path)?;
        }
        self.name = None;
        Ok(self.path.clone())
    }

    /// Returns the size of the archive in bytes.
    fn size(&self) -> Result<u64, FunctionError> {
        Ok(self.file.metadata().with_path("read the status of", &self.path)?.len())
    }
}

impl Drop for NewArchive<'_> {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            let _ = unlinkat(self.directory, name, AtFlags::empty());
        }
    }
}
