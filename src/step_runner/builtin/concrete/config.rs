//! The input `config`: what GitLab Runner wants done, in its names. Unknown fields are ignored, as newer
//! runners have more.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Deserializer};

use super::super::error::BuiltinError;

/// A whole job.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Config {
    pub(super) cache_dir: String,
    pub(super) archiver_staging_dir: String,
    pub(super) shell: String,
    pub(super) login_shell: bool,
    #[serde(deserialize_with = "nanoseconds")]
    pub(super) timeout: Option<Duration>,
    #[serde(deserialize_with = "nanoseconds")]
    pub(super) script_timeout: Option<Duration>,
    #[serde(deserialize_with = "nanoseconds")]
    pub(super) after_script_timeout: Option<Duration>,
    pub(super) after_script_ignore_errors: bool,
    pub(super) trace_sections: bool,
    pub(super) id: i64,
    pub(super) token: String,
    pub(super) base_url: String,
    pub(super) get_sources: GetSources,
    pub(super) cache_extract: Vec<CacheExtract>,
    pub(super) artifact_extract: Vec<ArtifactDownload>,
    pub(super) steps: Vec<Script>,
    pub(super) cache_archive: Vec<CacheArchive>,
    pub(super) artifacts_archive: Vec<ArtifactUpload>,
    pub(super) cleanup: Cleanup,
    /// The `run` keyword of the job.
    pub(super) run_steps: Vec<serde_json::Value>,
}

/// Where the sources come from, and how.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct GetSources {
    pub(super) checkout: bool,
    pub(super) max_attempts: i64,
    pub(super) submodule_strategy: String,
    pub(super) lfs_disabled: bool,
    pub(super) depth: i64,
    pub(super) repo_url: String,
    pub(super) refspecs: Vec<String>,
    pub(super) sha: String,
    pub(super) object_format: String,
    pub(super) git_strategy: String,
    pub(super) git_clone_flags: Vec<String>,
    pub(super) git_fetch_flags: Vec<String>,
    pub(super) git_clean_flags: Vec<String>,
    #[serde(rename = "ref")]
    pub(super) reference: String,
    pub(super) submodule_depth: i64,
    pub(super) submodule_update_flags: Vec<String>,
    pub(super) submodule_paths: Vec<String>,
    pub(super) pre_clone_step: Script,
    pub(super) post_clone_step: Script,
    pub(super) clear_worktree_on_retry: bool,
    pub(super) use_native_clone: bool,
    #[serde(rename = "use_bundled_uris")]
    pub(super) use_bundle_uris: bool,
    pub(super) safe_directory_checkout: bool,
    pub(super) user_agent: String,
    pub(super) gitaly_correlation_id: String,
    /// Scheme and host of the repository.
    pub(super) remote_host: String,
    /// Whether the user's configuration of git is that of other jobs too.
    pub(super) is_shared_env: bool,
    pub(super) use_credential_helper: bool,
    /// Pairs of a URL and the beginning of URLs that it replaces.
    pub(super) instead_ofs: Vec<[String; 2]>,
    pub(super) clean_git_config: bool,
    pub(super) use_proactive_auth: bool,
    pub(super) use_exponential_backoff_stage_retry: bool,
}

/// A script, and when it runs.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Script {
    #[serde(rename = "step")]
    pub(super) name: String,
    pub(super) script: Vec<String>,
    pub(super) on_success: bool,
    pub(super) on_failure: bool,
    pub(super) debug: bool,
    pub(super) bash_exit_code_check: bool,
    pub(super) script_sections: bool,
    pub(super) use_legacy_bash_eval: bool,
}

/// Where a cache is stored.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Descriptor {
    pub(super) url: String,
    pub(super) env: BTreeMap<String, String>,
    pub(super) headers: BTreeMap<String, Vec<String>>,
    pub(super) go_cloud_url: bool,
    pub(super) head_url: String,
}

/// A cache to restore, from the first of its sources that there is.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct CacheExtract {
    pub(super) sources: Vec<CacheSource>,
    /// In minutes.
    pub(super) timeout: i64,
    pub(super) max_attempts: i64,
    pub(super) warnings: Vec<String>,
    pub(super) use_exponential_backoff_stage_retry: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct CacheSource {
    pub(super) name: String,
    pub(super) key: String,
    pub(super) descriptor: Descriptor,
    pub(super) alternate_descriptor: Descriptor,
    pub(super) warnings: Vec<String>,
}

/// Artifacts of an earlier job.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ArtifactDownload {
    pub(super) id: i64,
    pub(super) token: String,
    pub(super) artifact_name: String,
    pub(super) filename: String,
    pub(super) download_attempts: i64,
    pub(super) use_exponential_backoff_stage_retry: bool,
}

/// A cache to make.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct CacheArchive {
    pub(super) name: String,
    pub(super) key: String,
    pub(super) untracked: bool,
    pub(super) paths: Vec<String>,
    /// In minutes.
    pub(super) timeout: i64,
    pub(super) descriptor: Descriptor,
    pub(super) max_uploaded_archive_size: i64,
    pub(super) on_success: bool,
    pub(super) on_failure: bool,
    pub(super) alternate_key: String,
}

/// Artifacts of this job.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ArtifactUpload {
    pub(super) untracked: bool,
    pub(super) paths: Vec<String>,
    pub(super) exclude: Vec<String>,
    pub(super) artifact_name: String,
    pub(super) expire_in: String,
    pub(super) format: String,
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) compression_level: String,
    #[serde(deserialize_with = "nanoseconds")]
    pub(super) timeout: Option<Duration>,
    #[serde(deserialize_with = "nanoseconds")]
    pub(super) response_header_timeout: Option<Duration>,
    pub(super) on_success: bool,
    pub(super) on_failure: bool,
    pub(super) metadata: Option<ArtifactMetadata>,
}

/// What is written down of how artifacts were made.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ArtifactMetadata {
    pub(super) runner_id: String,
    pub(super) repo_url: String,
    pub(super) repo_digest: String,
    pub(super) job_name: String,
    pub(super) executor_name: String,
    pub(super) runner_name: String,
    pub(super) started_at: String,
    pub(super) schema_version: String,
    pub(super) parameters: Vec<String>,
}

/// What becomes of the sources after the job.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Cleanup {
    pub(super) git_strategy: String,
    pub(super) submodule_strategy: String,
    pub(super) git_clean_flags: Vec<String>,
    pub(super) enable_job_cleanup: bool,
    pub(super) clean_git_config: bool,
}

impl Config {
    /// Parses the input.
    ///
    /// # Errors
    ///
    /// Fails if it is not what it should be. The error has none of its text: there are tokens in it.
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

/// Removes fields that are null, which means to Go that they are not there.
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

/// Reads a duration, a number of nanoseconds; `None` if it is none.
fn nanoseconds<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    let nanoseconds = i64::deserialize(from)?;
    Ok(u64::try_from(nanoseconds).ok().filter(|time| *time > 0).map(Duration::from_nanos))
}
