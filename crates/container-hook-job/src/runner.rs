//! The runner that calls the hook, and the job metadata in its environment.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use oci_hooks_host::identity::ProcessIdentity;
use oci_hooks_image::{Digest, Platform};

use super::options::NetworkMode;
use super::runner_files::RunnerFiles;

/// The runner that calls the hook, as its environment describes it.
#[derive(Clone, Debug)]
pub struct CallingRunner {
    /// `RUNNER_NAME`.
    pub name: String,
    /// `RUNNER_TEMP`, on the host.
    pub temp: PathBuf,
    /// `GITHUB_WORKSPACE`, on the host.
    pub workspace: PathBuf,
    /// Files of the host that the runner's requests may name.
    pub files: RunnerFiles,
    /// User and group ID of the runner's files.
    pub user: (u32, u32),
    /// Worker process of the runner, which lives as long as the job.
    pub worker: Option<ProcessIdentity>,
    /// `_diag` directory of the runner; set if its logs are searched for the names of services.
    pub diag: Option<PathBuf>,
    /// Defaults of containers for unset `options:`.
    pub defaults: RunnerDefaults,
    /// Job metadata for annotations: `GITHUB_REPOSITORY`, `GITHUB_RUN_ID` and the like.
    pub job: BTreeMap<String, String>,
}

/// Defaults of a runner's containers for unset `options:`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunnerDefaults {
    pub network: NetworkMode,
    /// Platform of pulled images; none for this machine's.
    pub platform: Option<Platform>,
    /// Environment variables of containers, except init containers and sidecars; those of `options:` and of the
    /// request override them.
    pub env: Vec<(String, String)>,
}

/// Environment variables of a job and the suffixes of their annotation keys.
pub const JOB_VARIABLES: [(&str, &str); 9] = [
    ("GITHUB_ACTOR", "actor"),
    ("GITHUB_EVENT_NAME", "event"),
    ("GITHUB_JOB", "job"),
    ("GITHUB_REF", "ref"),
    ("GITHUB_REPOSITORY", "repository"),
    ("GITHUB_RUN_ATTEMPT", "run-attempt"),
    ("GITHUB_RUN_ID", "run-id"),
    ("GITHUB_SERVER_URL", "server-url"),
    ("GITHUB_WORKFLOW", "workflow"),
];

/// Prefix of annotation keys that only the hook sets.
pub const PREFIX: &str = "com.github.actions.";

/// Prefix of annotation keys made from labels. Labels are untrusted, and runtimes act on annotations.
pub const LABEL: &str = "com.github.actions.label.";

impl CallingRunner {
    /// Returns an id of this runner that is unique on the machine: runners of different organizations may
    /// have the same name, but not the same directory.
    pub fn owner(&self) -> String {
        CallingRunner::owner_of(&self.name, &self.temp)
    }

    /// Returns [`CallingRunner::owner`] of the runner with this name and `RUNNER_TEMP`.
    pub fn owner_of(name: &str, temp: &Path) -> String {
        let identity = format!("{name}\0{}", work(temp).display());
        Digest::of(identity.as_bytes()).hex()[..32].to_owned()
    }

    /// Returns the work directory of the runner's jobs, usually called `_work`.
    pub fn work(&self) -> &Path {
        work(&self.temp)
    }

    /// Returns the repository of the job, as `OWNER/REPOSITORY`.
    pub fn repository(&self) -> Option<&str> {
        self.job.get("GITHUB_REPOSITORY").map(String::as_str)
    }

    /// Returns the annotations of a container with this role and name.
    pub fn annotations(&self, role: &str, name: &str) -> BTreeMap<String, String> {
        let job = JOB_VARIABLES.iter().filter_map(|(variable, key)| {
            Some((format!("{PREFIX}{key}"), self.job.get(*variable)?.clone()))
        });
        let own = [("runner", self.name.as_str()), ("role", role), ("name", name)];
        let own = own.map(|(key, value)| (format!("{PREFIX}{key}"), value.to_owned()));
        job.chain(own).collect()
    }
}

fn work(temp: &Path) -> &Path {
    temp.parent().unwrap_or(Path::new("/"))
}

#[cfg(test)]
mod tests {
    use crate::testing::runner;

    use super::*;

    #[test]
    fn same_name_elsewhere_is_another_owner() {
        let one = runner();
        let other = CallingRunner { temp: "/srv/other/_work/_temp".into(), ..runner() };
        assert_eq!(one.owner(), runner().owner());
        assert_ne!(one.owner(), other.owner());
        assert_eq!(one.owner().len(), 32);
    }

    #[test]
    fn annotations_describe_the_purpose_of_the_container() {
        let annotations = runner().annotations("job", "build");
        assert_eq!(annotations["com.github.actions.role"], "job");
        assert_eq!(annotations["com.github.actions.repository"], "octo/repo");
        assert!(!annotations.contains_key("com.github.actions.workflow"));
    }
}
