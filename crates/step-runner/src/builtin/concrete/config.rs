//! The input `config`: the work for a whole job, with the field names of GitLab Runner. Unknown fields are
//! ignored, as newer runners have more.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Deserializer};

use super::super::error::BuiltinError;

/// The work of a whole job: sources, caches, artifacts, scripts and cleanup.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct ConcreteConfig {
    pub cache_dir: String,
    pub archiver_staging_dir: String,
    pub shell: String,
    pub login_shell: bool,
    #[serde(deserialize_with = "nanoseconds")]
    pub timeout: Option<Duration>,
    #[serde(deserialize_with = "nanoseconds")]
    pub script_timeout: Option<Duration>,
    #[serde(deserialize_with = "nanoseconds")]
    pub after_script_timeout: Option<Duration>,
    pub after_script_ignore_errors: bool,
    pub trace_sections: bool,
    pub id: i64,
    pub token: String,
    pub base_url: String,
    pub get_sources: SourceOptions,
    pub cache_extract: Vec<CacheExtract>,
    pub artifact_extract: Vec<ArtifactDownload>,
    pub steps: Vec<JobScript>,
    pub cache_archive: Vec<CacheArchive>,
    pub artifacts_archive: Vec<ArtifactUpload>,
    pub cleanup: SourceCleanup,
    /// Steps of the `run` keyword; empty for a job with `script`.
    pub run_steps: Vec<serde_json::Value>,
}

/// The sources of a job, and options for getting them.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct SourceOptions {
    pub checkout: bool,
    pub max_attempts: i64,
    pub submodule_strategy: String,
    pub lfs_disabled: bool,
    pub depth: i64,
    pub repo_url: String,
    pub refspecs: Vec<String>,
    pub sha: String,
    pub object_format: String,
    pub git_strategy: String,
    pub git_clone_flags: Vec<String>,
    pub git_fetch_flags: Vec<String>,
    pub git_clean_flags: Vec<String>,
    #[serde(rename = "ref")]
    pub reference: String,
    pub submodule_depth: i64,
    pub submodule_update_flags: Vec<String>,
    pub submodule_paths: Vec<String>,
    pub pre_clone_step: JobScript,
    pub post_clone_step: JobScript,
    pub clear_worktree_on_retry: bool,
    pub use_native_clone: bool,
    #[serde(rename = "use_bundled_uris")]
    pub use_bundle_uris: bool,
    pub safe_directory_checkout: bool,
    pub user_agent: String,
    pub gitaly_correlation_id: String,
    /// Scheme and host of the repository URL, such as `https://gitlab.com`; may be empty.
    pub remote_host: String,
    /// If set, other jobs share the user's git configuration, so it is not changed.
    pub is_shared_env: bool,
    pub use_credential_helper: bool,
    /// Pairs for git's setting `url.BASE.insteadOf`: the URL `BASE`, and the URL prefix that it
    /// replaces.
    pub instead_ofs: Vec<[String; 2]>,
    pub clean_git_config: bool,
    pub use_proactive_auth: bool,
    pub use_exponential_backoff_stage_retry: bool,
}

/// A script, and the job statuses for which it runs.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct JobScript {
    #[serde(rename = "step")]
    pub name: String,
    pub script: Vec<String>,
    pub on_success: bool,
    pub on_failure: bool,
    pub debug: bool,
    pub bash_exit_code_check: bool,
    pub script_sections: bool,
    pub use_legacy_bash_eval: bool,
}

/// URLs of a cache archive, with the headers and environment variables to access it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct CacheDescriptor {
    pub url: String,
    pub env: BTreeMap<String, String>,
    pub headers: BTreeMap<String, Vec<String>>,
    pub go_cloud_url: bool,
    pub head_url: String,
}

/// A cache to restore from the first of its sources that can be extracted.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct CacheExtract {
    pub sources: Vec<CacheSource>,
    pub timeout: i64,
    pub max_attempts: i64,
    pub warnings: Vec<String>,
    pub use_exponential_backoff_stage_retry: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct CacheSource {
    pub name: String,
    pub key: String,
    pub descriptor: CacheDescriptor,
    pub alternate_descriptor: CacheDescriptor,
    pub warnings: Vec<String>,
}

/// Artifacts of an earlier job.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct ArtifactDownload {
    pub id: i64,
    pub token: String,
    pub artifact_name: String,
    pub filename: String,
    pub download_attempts: i64,
    pub use_exponential_backoff_stage_retry: bool,
}

/// A cache to create and store.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct CacheArchive {
    pub name: String,
    pub key: String,
    pub untracked: bool,
    pub paths: Vec<String>,
    pub timeout: i64,
    pub descriptor: CacheDescriptor,
    pub max_uploaded_archive_size: i64,
    pub on_success: bool,
    pub on_failure: bool,
    pub alternate_key: String,
}

/// Artifacts of this job.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct ArtifactUpload {
    pub untracked: bool,
    pub paths: Vec<String>,
    pub exclude: Vec<String>,
    pub artifact_name: String,
    pub expire_in: String,
    pub format: String,
    #[serde(rename = "type")]
    pub kind: String,
    pub compression_level: String,
    #[serde(deserialize_with = "nanoseconds")]
    pub timeout: Option<Duration>,
    #[serde(deserialize_with = "nanoseconds")]
    pub response_header_timeout: Option<Duration>,
    pub on_success: bool,
    pub on_failure: bool,
    pub metadata: Option<ArtifactMetadata>,
}

/// Provenance metadata of artifacts.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct ArtifactMetadata {
    pub runner_id: String,
    pub repo_url: String,
    pub repo_digest: String,
    pub job_name: String,
    pub executor_name: String,
    pub runner_name: String,
    pub started_at: String,
    pub schema_version: String,
    pub parameters: Vec<String>,
}

/// Cleanup of the sources after the job.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct SourceCleanup {
    pub git_strategy: String,
    pub submodule_strategy: String,
    pub git_clean_flags: Vec<String>,
    pub enable_job_cleanup: bool,
    pub clean_git_config: bool,
}

impl ConcreteConfig {
    /// Parses the JSON text of the input `config`.
    ///
    /// # Errors
    ///
    /// Fails if the JSON is invalid or a value has the wrong type. The error quotes nothing from
    /// the input, which contains tokens.
    pub(super) fn parse(text: &str) -> Result<Self, BuiltinError> {
        let mut json: serde_json::Value = serde_json::from_str(text).map_err(|error| {
            let (line, column) = (error.line(), error.column());
            BuiltinError::Config(format!("invalid JSON at line {line}, column {column}"))
        })?;
        if !json.is_object() {
            return Err(BuiltinError::Config("expected an object".to_owned()));
        }
        drop_nulls(&mut json);
        serde_json::from_value(json).map_err(|error| {
            let text = error.to_string();
            let expected = text.rsplit_once("expected ").map_or("other values", |(_, text)| text);
            BuiltinError::Config(format!("a value has the wrong type: expected {expected}"))
        })
    }
}

/// Removes null fields, which count as missing in Go.
fn drop_nulls(json: &mut serde_json::Value) {
    match json {
        serde_json::Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(drop_nulls);
        }
        serde_json::Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

/// Deserializes an integer number of nanoseconds as a duration; `None` if it is not positive.
fn nanoseconds<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    let nanoseconds = i64::deserialize(from)?;
    Ok(u64::try_from(nanoseconds).ok().filter(|time| *time > 0).map(Duration::from_nanos))
}

/// Lower-case words that occur in the names of variables and headers with secret values.
const SECRET_NAMES: [&str; 7] =
    ["key", "secret", "token", "password", "credential", "signature", "authorization"];

/// Returns all secrets in the configuration, to mask them in the log.
pub fn secrets(config: &ConcreteConfig) -> Vec<String> {
    let mut secrets = vec![config.token.clone()];
    secrets.extend(config.artifact_extract.iter().map(|artifact| artifact.token.clone()));
    secrets.extend(user_info(&config.get_sources.repo_url));
    for [url, replaced] in &config.get_sources.instead_ofs {
        secrets.extend(user_info(url));
        secrets.extend(user_info(replaced));
    }
    let restored = config.cache_extract.iter().flat_map(|cache| &cache.sources);
    let restored = restored.flat_map(|source| [&source.descriptor, &source.alternate_descriptor]);
    let stored = config.cache_archive.iter().map(|cache| &cache.descriptor);
    restored.chain(stored).for_each(|descriptor| add_store_secrets(descriptor, &mut secrets));
    secrets.retain(|secret| !secret.is_empty());
    secrets
}

fn add_store_secrets(store: &CacheDescriptor, secrets: &mut Vec<String>) {
    for url in [&store.url, &store.head_url] {
        secrets.extend(user_info(url));
        // The query of a signed URL permits reading or writing the object.
        secrets.extend(url.split_once('?').map(|(_, query)| query.to_owned()));
    }
    let is_secret = |name: &str| {
        let name = name.to_lowercase();
        SECRET_NAMES.iter().any(|word| name.contains(word))
    };
    let values = store.env.iter().filter(|(name, _)| is_secret(name)).map(|(_, value)| value);
    secrets.extend(values.cloned());
    let headers = store.headers.iter().filter(|(name, _)| is_secret(name));
    secrets.extend(headers.flat_map(|(_, values)| values.clone()));
}

/// Returns the password in a URL, or the user name if there is no password.
fn user_info(url: &str) -> Option<String> {
    let (_, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let (user, _) = authority.rsplit_once('@')?;
    Some(user.split_once(':').map_or(user, |(_, password)| password).to_owned())
}

/// Returns a URL without user and password.
pub fn remove_user(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    format!("{scheme}://{host}{path}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_in_a_url_is_distinguished_from_the_path() {
        for (url, user, without) in [
            ("https://x:tok@h:1/p?a@b", Some("tok"), "https://h:1/p?a@b"),
            ("https://tok@h", Some("tok"), "https://h"),
            ("https://a:b@c@h/", Some("b@c"), "https://h/"),
            ("https://h/p@q", None, "https://h/p@q"),
            ("git@h:p", None, "git@h:p"),
            ("/a/b", None, "/a/b"),
        ] {
            assert_eq!(user_info(url).as_deref(), user, "{url}");
            assert_eq!(remove_user(url), without);
        }
    }

    #[test]
    fn all_credentials_of_the_configuration_are_secret() {
        let text = serde_json::json!({
            "token": "job", "artifact_extract": [{"token": "other"}],
            "get_sources": {"repo_url": "https://a:b@h/p", "instead_ofs": [["https://c:d@h", "git@h:"]]},
            "cache_extract": [{"sources": [{
                "descriptor": {"url": "https://s/o?X-Sig=e", "env": {"AWS_SECRET_ACCESS_KEY": "f", "AWS_REGION": "eu"}},
                "alternate_descriptor": {"head_url": "https://s/o?g"},
            }]}],
            "cache_archive": [{"descriptor": {"headers": {"X-Token": ["h"], "Content-Type": ["zip"]}}}],
        });
        let config = ConcreteConfig::parse(&text.to_string()).unwrap();
        let found = secrets(&config);
        assert_eq!(found, ["job", "other", "b", "d", "X-Sig=e", "f", "g", "h"]);
    }
}
