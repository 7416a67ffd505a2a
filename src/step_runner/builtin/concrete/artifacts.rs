//! Artifacts of earlier jobs and of this one.
//!
//! The token is passed in `CI_JOB_TOKEN`, where GitLab's program reads it if it is no argument: everyone
//! can read arguments.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::super::error::{BuiltinError, Within as _};
use super::config::{ArtifactDownload, ArtifactMetadata, ArtifactUpload};
use super::context::{JobContext, attempts};
use super::go;

/// The variable in which GitLab's program looks for the token.
const TOKEN: &str = "CI_JOB_TOKEN";

impl JobContext<'_> {
    /// Fetches and unpacks the artifacts of an earlier job.
    pub(super) fn download(&mut self, artifact: &ArtifactDownload) -> Result<(), BuiltinError> {
        let ArtifactDownload { id, artifact_name: name, .. } = artifact;
        if artifact.filename.is_empty() {
            self.notice(&format!("Skipping artifacts of {name} ({id}): there is no file"));
            return Ok(());
        }
        let id_text = id.to_string();
        let arguments =
            words(&["artifacts-downloader", "--url", &self.config.base_url, "--id", &id_text]);
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
                return ended.within(format!("downloading artifacts for {name} ({id})"));
            }
        }
    }

    /// Packs and stores artifacts.
    pub(super) fn upload(&mut self, artifact: &ArtifactUpload) -> Result<(), BuiltinError> {
        let name = &artifact.artifact_name;
        if !self.applies(artifact.on_success, artifact.on_failure) {
            self.notice(&format!("Skipping artifacts {name:?}: not for this status of the job"));
            return Ok(());
        }
        let chosen = artifact.paths.iter().flat_map(|path| words(&["--path", path]));
        let excluded = artifact.exclude.iter().flat_map(|path| words(&["--exclude", path]));
        let untracked = artifact.untracked.then(|| "--untracked".to_owned());
        let what: Vec<_> = chosen.chain(excluded).chain(untracked).collect();
        if what.is_empty() {
            self.notice(&format!("Skipping artifacts {name:?}: there are no paths"));
            return Ok(());
        }
        self.notice("Uploading artifacts...");
        let id = self.config.id.to_string();
        let mut arguments =
            words(&["artifacts-uploader", "--url", &self.config.base_url, "--id", &id]);
        let mut add = |name: &str, value: &str| {
            if !value.is_empty() {
                arguments.extend(words(&[name, value]));
            }
        };
        add("--timeout", &artifact.timeout.map(go::duration).unwrap_or_default());
        let header_timeout = artifact.response_header_timeout.map(go::duration);
        add("--response-header-timeout", &header_timeout.unwrap_or_default());
        arguments.extend(artifact.metadata.iter().flat_map(metadata));
        arguments.extend(what);
        // The program expands variables in names and paths itself, but not here.
        let expire_in = go::expand(&artifact.expire_in, |name| self.variable(name).to_owned());
        for (option, value) in [
            ("--name", name),
            ("--expire-in", &expire_in),
            ("--artifact-format", &artifact.format),
            ("--artifact-type", &artifact.kind),
            ("--compression-level", &artifact.compression_level),
        ] {
            if !value.is_empty() {
                arguments.extend(words(&[option, value]));
            }
        }
        let env = BTreeMap::from([(TOKEN.to_owned(), self.config.token.clone())]);
        self.gitlab(&arguments, &env).within(format!("uploading artifacts {name:?}"))
    }
}

/// Returns the arguments for a document on how the artifacts were made.
fn metadata(metadata: &ArtifactMetadata) -> Vec<String> {
    let ended = format!("{:.0}", Timestamp::now());
    let mut arguments = words(&[
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
        arguments.extend(words(&["--metadata-parameter", parameter]));
    }
    arguments
}

pub(super) fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}
