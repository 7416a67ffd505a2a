//! Downloads and uploads of artifacts and caches, which GitLab's helper program transfers.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::super::super::ExprValue;
use super::super::super::gitlab_helper;
use super::super::super::go_expand::expand_like_go;
use super::super::error::{BuiltinError, CommandError, CommandFailure, JobPartContext as _};
use super::super::script::find_program;
use super::config::{
    ArtifactDownload, ArtifactMetadata, ArtifactUpload, CacheArchive, CacheDescriptor,
    CacheExtract, CacheSource,
};
use super::context::{JobContext, attempts};
use super::go;

/// The environment variable from which GitLab's helper program reads the token for artifacts.
const TOKEN: &str = "CI_JOB_TOKEN";

impl JobContext<'_> {
    /// Fetches and unpacks the artifacts of an earlier job.
    pub(super) fn download(&mut self, artifact: &ArtifactDownload) -> Result<(), BuiltinError> {
        let ArtifactDownload { id, artifact_name: name, .. } = artifact;
        if artifact.filename.is_empty() {
            self.notice(&format!(
                "Skipping artifacts of {name} ({id}): the job has no artifacts file"
            ));
            return Ok(());
        }
        let id_text = id.to_string();
        let arguments =
            to_words(&["artifacts-downloader", "--url", &self.config.base_url, "--id", &id_text]);
        let env = BTreeMap::from([(TOKEN.to_owned(), artifact.token.clone())]);
        let count = attempts(artifact.download_attempts);
        let mut attempt = 1;
        loop {
            if attempt == 1 {
                self.notice(&format!("Downloading artifacts for {name} ({id})..."));
            } else {
                if artifact.use_exponential_backoff_stage_retry {
                    self.pause(attempt);
                }
                self.warn(&format!(
                    "Retrying artifact download for {name} (attempt {attempt}/{count})..."
                ));
            }
            let ended = self.gitlab(&arguments, &env);
            attempt += 1;
            if ended.is_ok() || attempt > count || !self.is_running() {
                return ended.with_part(format!("downloading artifacts for {name} ({id})"));
            }
        }
    }

    pub(super) fn upload(&mut self, artifact: &ArtifactUpload) -> Result<(), BuiltinError> {
        let name = &artifact.artifact_name;
        let part = format!("artifacts {name:?}");
        if !self.applies(&part, artifact.on_success, artifact.on_failure) {
            return Ok(());
        }
        let chosen = artifact.paths.iter().flat_map(|path| to_words(&["--path", path]));
        let excluded = artifact.exclude.iter().flat_map(|path| to_words(&["--exclude", path]));
        let untracked = artifact.untracked.then(|| "--untracked".to_owned());
        let what: Vec<_> = chosen.chain(excluded).chain(untracked).collect();
        if what.is_empty() {
            self.notice(&format!("Skipping {part}: no paths configured"));
            return Ok(());
        }
        self.notice("Uploading artifacts...");
        let id = self.config.id.to_string();
        let mut arguments =
            to_words(&["artifacts-uploader", "--url", &self.config.base_url, "--id", &id]);
        let timeout = artifact.timeout.map(go::duration).unwrap_or_default();
        arguments.extend(option("--timeout", &timeout));
        let timeout = artifact.response_header_timeout.map(go::duration).unwrap_or_default();
        arguments.extend(option("--response-header-timeout", &timeout));
        arguments.extend(artifact.metadata.iter().flat_map(metadata));
        arguments.extend(what);
        // The program expands variables in names and paths itself, but not in this argument.
        let Ok(expire_in) = expand_like_go(&artifact.expire_in, |name| {
            Ok::<_, Infallible>(self.variable(name).to_owned())
        });
        for (name, value) in [
            ("--name", name),
            ("--expire-in", &expire_in),
            ("--artifact-format", &artifact.format),
            ("--artifact-type", &artifact.kind),
            ("--compression-level", &artifact.compression_level),
        ] {
            arguments.extend(option(name, value));
        }
        let env = BTreeMap::from([(TOKEN.to_owned(), self.config.token.clone())]);
        self.gitlab(&arguments, &env).with_part(format!("uploading artifacts {name:?}"))
    }
}

/// Returns the arguments with which GitLab's helper program generates provenance metadata for
/// artifacts.
fn metadata(metadata: &ArtifactMetadata) -> Vec<String> {
    let ended = format!("{:.0}", Timestamp::now());
    let mut arguments = to_words(&[
        "--generate-artifacts-metadata",
        "--runner-id",
        &metadata.runner_id,
        "--repo-url",
        &metadata.repo_url,
        "--repo-digest",
        &metadata.repo_digest,
        "--job-name",
        &metadata.job_name,
        "--executor-name",
        &metadata.executor_name,
        "--runner-name",
        &metadata.runner_name,
        "--started-at",
        &metadata.started_at,
        "--ended-at",
        &ended,
        "--schema-version",
        &metadata.schema_version,
    ]);
    for parameter in &metadata.parameters {
        arguments.extend(to_words(&["--metadata-parameter", parameter]));
    }
    arguments
}

fn to_words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// Returns the arguments for an option with a value; no arguments if the value is empty.
fn option(name: &str, value: &str) -> Vec<String> {
    if value.is_empty() { Vec::new() } else { to_words(&[name, value]) }
}

impl JobContext<'_> {
    /// Restores a cache from the first of its sources that can be extracted. Failures are only
    /// logged.
    pub(super) fn restore(&mut self, cache: &CacheExtract) {
        for warning in &cache.warnings {
            self.warn(warning);
        }
        let count = attempts(cache.max_attempts);
        for attempt in 1..=count {
            if attempt > 1 {
                if !self.is_running() {
                    return;
                }
                if cache.use_exponential_backoff_stage_retry {
                    self.pause(attempt);
                }
                self.warn(&format!("Retrying cache extraction (attempt {attempt}/{count})..."));
            }
            for (index, source) in cache.sources.iter().enumerate() {
                for warning in &source.warnings {
                    self.warn(warning);
                }
                let fallback = if index == 0 { "" } else { " (fallback)" };
                self.notice(&format!("Checking cache for {}{fallback}...", source.name));
                match self.extract(cache, source) {
                    Ok(()) => {
                        self.notice("Successfully extracted cache");
                        return;
                    }
                    Err(error) => {
                        let name = &source.name;
                        self.warn(&format!("Failed to extract cache {name}: {error}"));
                    }
                }
            }
        }
    }

    fn extract(&mut self, cache: &CacheExtract, source: &CacheSource) -> Result<(), CommandError> {
        let file = self.archive_path(&source.key);
        let timeout = cache.timeout.to_string();
        let mut arguments = to_words(&["cache-extractor", "--file", &file, "--timeout", &timeout]);
        arguments.extend(url(&source.descriptor, ["--url", "--gocloud-url"]));
        arguments.extend(option("--head-url", &source.descriptor.head_url));
        let other = &source.alternate_descriptor;
        arguments.extend(url(other, ["--alternate-url", "--alternate-gocloud-url"]));
        if !other.url.is_empty() {
            arguments.extend(option("--alternate-head-url", &other.head_url));
        }
        // The first URL is tried first, so its keys take precedence.
        let mut env = other.env.clone();
        env.extend(source.descriptor.env.clone());
        self.gitlab(&arguments, &env)
    }

    /// Archives and uploads a cache, unless it is for another job status or has no paths.
    pub(super) fn archive(&mut self, cache: &CacheArchive) -> Result<(), BuiltinError> {
        let CacheArchive { key, descriptor, .. } = cache;
        if !self.applies(&format!("cache {key}"), cache.on_success, cache.on_failure) {
            return Ok(());
        }
        let chosen = cache.paths.iter().flat_map(|path| to_words(&["--path", path]));
        let untracked = cache.untracked.then(|| "--untracked".to_owned());
        let what: Vec<_> = chosen.chain(untracked).collect();
        if what.is_empty() {
            self.notice(&format!("Skipping cache {key}: no paths configured"));
            return Ok(());
        }
        self.notice(&format!("Creating cache {key}..."));
        let (file, timeout) = (self.archive_path(key), cache.timeout.to_string());
        let mut arguments = to_words(&["cache-archiver", "--file", &file, "--timeout", &timeout]);
        if !cache.alternate_key.is_empty() && cache.alternate_key != *key {
            let other = self.archive_path(&cache.alternate_key);
            arguments.extend(to_words(&["--alternate-file", &other]));
        }
        if cache.max_uploaded_archive_size > 0 {
            let size = cache.max_uploaded_archive_size.to_string();
            arguments.extend(to_words(&["--max-uploaded-archive-size", &size]));
        }
        arguments.extend(what);
        arguments.extend(url(descriptor, ["--url", "--gocloud-url"]));
        arguments.extend(option("--check-url", &descriptor.head_url));
        for (name, values) in &descriptor.headers {
            for value in values {
                arguments.extend(to_words(&["--header", &format!("{name}: {value}")]));
            }
        }
        let mut env = descriptor.env.clone();
        let members =
            BTreeMap::from([("cachekey".to_owned(), ExprValue::String(cache.name.clone()))]);
        env.insert("CACHE_METADATA".to_owned(), ExprValue::Object(members).to_json());
        let stored = self.gitlab(&arguments, &env);
        match &stored {
            Ok(()) => self.notice("Created cache"),
            Err(_) => self.warn("Failed to create cache"),
        }
        stored.with_part(format!("archiving cache {key}"))
    }

    fn archive_path(&self, key: &str) -> String {
        go::archive_path(&self.config.cache_dir, key, &self.work_dir.to_string_lossy())
    }
}

/// Returns the option with the URL of a cache archive. `signed` and `store` are the names of the
/// option for a pre-signed URL and for a URL of Go CDK (`gocloud`), which needs credentials.
fn url(descriptor: &CacheDescriptor, [signed, store]: [&str; 2]) -> Vec<String> {
    option(if descriptor.go_cloud_url { store } else { signed }, &descriptor.url)
}

/// Names under which GitLab's helper program is looked up in PATH, the preferred one first.
const NAMES: [&str; 2] = ["gitlab-runner", "gitlab-runner-helper"];

impl JobContext<'_> {
    /// Runs GitLab's helper program with `extra` environment variables; fails if it is not found.
    fn gitlab(
        &mut self,
        arguments: &[String],
        extra: &BTreeMap<String, String>,
    ) -> Result<(), CommandError> {
        let Some(program) = self.gitlab_program() else {
            let beside = self.host.executable().and_then(Path::parent).unwrap_or(Path::new("/"));
            let message = format!(
                "GitLab's helper program not found: expected gitlab-runner or gitlab-runner-helper in \
                 PATH, or gitlab-runner-helper{} in {}",
                gitlab_helper::SUFFIX,
                beside.display()
            );
            return Err(CommandError { failure: CommandFailure::Exit, message, code: 1 });
        };
        let program = program.to_string_lossy().into_owned();
        let argv: Vec<_> = [program].into_iter().chain(arguments.iter().cloned()).collect();
        self.command(&argv, &self.tool_env(extra))
    }

    fn gitlab_program(&self) -> Option<PathBuf> {
        let own = self.host.executable();
        let in_path = |name| {
            find_program(name, &self.work_dir, self.variable("PATH"))
                // This program may be installed under that name.
                .filter(|path| !own.is_some_and(|own| is_same_file(path, own)))
        };
        let found = NAMES.into_iter().find_map(in_path);
        found.or_else(|| own.and_then(gitlab_helper::original_program))
    }
}

fn is_same_file(one: &Path, other: &Path) -> bool {
    let id = |path: &Path| path.metadata().map(|meta| (meta.dev(), meta.ino())).ok();
    id(one).is_some() && id(one) == id(other)
}
