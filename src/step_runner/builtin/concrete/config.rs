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

/// Words in names of variables and headers whose values are secret.
const SECRET_NAMES: [&str; 7] =
    ["key", "secret", "token", "password", "credential", "signature", "authorization"];

/// Returns all secrets, to be masked in the log.
pub(super) fn secrets(config: &Config) -> Vec<String> {
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
    restored.chain(stored).for_each(|descriptor| of_store(descriptor, &mut secrets));
    secrets.retain(|secret| !secret.is_empty());
    secrets
}

fn of_store(store: &Descriptor, secrets: &mut Vec<String>) {
    for url in [&store.url, &store.head_url] {
        secrets.extend(user_info(url));
        // Who has it may read or write the object.
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

/// Returns the password in a URL, and the user with it.
fn user_info(url: &str) -> Option<String> {
    let (_, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let (user, _) = authority.rsplit_once('@')?;
    Some(user.split_once(':').map_or(user, |(_, password)| password).to_owned())
}

/// Returns a URL without user and password.
pub(super) fn without_user(url: &str) -> String {
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
    fn users_of_urls_are_told_from_paths() {
        for (url, user, without) in [
            ("https://x:tok@h:1/p?a@b", Some("tok"), "https://h:1/p?a@b"),
            ("https://tok@h", Some("tok"), "https://h"),
            ("https://a:b@c@h/", Some("b@c"), "https://h/"),
            ("https://h/p@q", None, "https://h/p@q"),
            ("git@h:p", None, "git@h:p"),
            ("/a/b", None, "/a/b"),
        ] {
            assert_eq!(user_info(url).as_deref(), user, "{url}");
            assert_eq!(without_user(url), without);
        }
    }

    #[test]
    fn everything_that_gives_access_is_secret() {
        let text = serde_json::json!({
            "token": "job", "artifact_extract": [{"token": "other"}],
            "get_sources": {"repo_url": "https://a:b@h/p", "instead_ofs": [["https://c:d@h", "git@h:"]]},
            "cache_extract": [{"sources": [{
                "descriptor": {"url": "https://s/o?X-Sig=e", "env": {"AWS_SECRET_ACCESS_KEY": "f", "AWS_REGION": "eu"}},
                "alternate_descriptor": {"head_url": "https://s/o?g"},
            }]}],
            "cache_archive": [{"descriptor": {"headers": {"X-Token": ["h"], "Content-Type": ["zip"]}}}],
        });
        let config = Config::parse(&text.to_string()).unwrap();
        let found = secrets(&config);
        assert_eq!(found, ["job", "other", "b", "d", "X-Sig=e", "f", "g", "h"]);
    }
}
