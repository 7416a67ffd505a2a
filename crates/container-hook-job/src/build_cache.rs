//! Which jobs use each other's built images.

use oci_hooks_files::fs::random_u64;
use serde::{Deserialize, Serialize};

use super::runner::CallingRunner;

/// Jobs that use each other's built images, if the content of the Dockerfile's directory is the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BuildCache {
    /// Those of the same repository, including pull requests from forks.
    #[default]
    Repository,
    /// Those of the same branch, tag or pull request of a repository.
    Ref,
    /// Those of the same name in a run, on one runner: a job, or jobs of a matrix.
    Job,
}

impl BuildCache {
    /// Returns what the jobs that share built images have in common.
    pub fn sharers(self, runner: &CallingRunner) -> Vec<String> {
        let value = |name: &str| runner.job.get(name).cloned();
        let server = value("GITHUB_SERVER_URL").unwrap_or_default();
        match (self, value("GITHUB_REPOSITORY"), value("GITHUB_REF")) {
            (BuildCache::Repository, Some(repository), _) => vec![server, repository],
            (BuildCache::Ref, Some(repository), Some(name)) => vec![server, repository, name],
            _ => match (value("GITHUB_RUN_ID"), value("GITHUB_RUN_ATTEMPT"), value("GITHUB_JOB")) {
                (Some(run), attempt, Some(job)) => {
                    vec![server, run, attempt.unwrap_or_default(), job, runner.owner()]
                }
                _ => vec![random_u64().to_string()],
            },
        }
    }
}
