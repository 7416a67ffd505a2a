//! Sharing of built images between jobs.

use oci_hooks_files::fs::random_u64;
use serde::{Deserialize, Serialize};

use super::runner::CallingRunner;

/// Jobs that share built images of identical build contexts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BuildCacheScope {
    /// Jobs of the same repository, including pull requests from forks.
    #[default]
    Repository,
    /// Jobs of the same branch, tag or pull request of a repository.
    Ref,
    /// Jobs of the same name in one attempt of a run, on one runner, such as the jobs of a matrix.
    Job,
}

impl BuildCacheScope {
    /// Returns the cache key: jobs with equal keys share built images. The key is random if the job is
    /// unknown.
    pub fn sharers(self, runner: &CallingRunner) -> Vec<String> {
        let value = |name: &str| runner.job.get(name).cloned();
        let server = value("GITHUB_SERVER_URL").unwrap_or_default();
        match (self, value("GITHUB_REPOSITORY"), value("GITHUB_REF")) {
            (BuildCacheScope::Repository, Some(repository), _) => vec![server, repository],
            (BuildCacheScope::Ref, Some(repository), Some(name)) => vec![server, repository, name],
            _ => match (value("GITHUB_RUN_ID"), value("GITHUB_RUN_ATTEMPT"), value("GITHUB_JOB")) {
                (Some(run), attempt, Some(job)) => {
                    vec![server, run, attempt.unwrap_or_default(), job, runner.owner()]
                }
                _ => vec![random_u64().to_string()],
            },
        }
    }
}
