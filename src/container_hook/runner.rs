//! Who calls: the runner, and what its environment says of the job.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::options::NetworkMode;
use super::runner_files::RunnerFiles;
use crate::image::{Digest, Platform};
use crate::sys::identity::Identity;

/// The runner that calls the hook, as its environment describes it.
#[derive(Clone, Debug)]
pub struct Runner {
    /// `RUNNER_NAME`.
    pub name: String,
    /// `RUNNER_TEMP`, on the host.
    pub temp: PathBuf,
    /// `GITHUB_WORKSPACE`, on the host.
    pub workspace: PathBuf,
    /// The files of the host that its requests may name.
    pub files: RunnerFiles,
    /// The user and group that the runner's files belong to.
    pub user: (u32, u32),
    /// The runner's worker, which lives as long as the job.
    pub worker: Option<Identity>,
    /// Its `_diag` directory, if the names of services are to be looked for there.
    pub diag: Option<PathBuf>,
    /// `GITHUB_WORKFLOW_REF`: the repository, the path and the commit of the workflow.
    pub workflow: Option<String>,
    /// What holds for its containers where `options:` says nothing.
    pub defaults: RunnerDefaults,
    /// What it says of the job, for annotations: `GITHUB_REPOSITORY`, `GITHUB_RUN_ID` and the like.
    pub job: BTreeMap<String, String>,
}

/// What holds for the containers of a runner that `options:` says nothing else of.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunnerDefaults {
    pub network: NetworkMode,
    /// What images are pulled for; this machine's if none.
    pub platform: Option<Platform>,
}

/// What annotations say of a job: the variable, and the end of the annotation's name.
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

/// What annotations begin with that only the hook sets.
pub const PREFIX: &str = "com.github.actions.";

/// What annotations made from labels begin with. Labels are untrusted, and runtimes act on annotations.
pub const LABEL: &str = "com.github.actions.label.";

impl Runner {
    /// Returns what tells this runner's containers from those of all others on the machine: two
    /// runners of different organisations may have the same name, but not the same directory.
    pub fn owner(&self) -> String {
        Runner::owner_of(&self.name, &self.temp)
    }

    /// Returns what [`Runner::owner`] is of a runner with this name and `RUNNER_TEMP`.
    pub fn owner_of(name: &str, temp: &Path) -> String {
        let identity = format!("{name}\0{}", work(temp).display());
        Digest::of(identity.as_bytes()).hex()[..32].to_owned()
    }

    /// Returns the directory of all the runner's jobs, mostly called `_work`.
    pub fn work(&self) -> &Path {
        work(&self.temp)
    }

    /// Returns the annotations of a container with this role and name.
    pub(super) fn annotations(&self, role: &str, name: &str) -> BTreeMap<String, String> {
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
pub mod tests {
    use super::*;

    /// Returns a runner whose directories need not exist.
    pub fn runner() -> Runner {
        Runner {
            name: "runner-1".into(),
            temp: "/home/runner/_work/_temp".into(),
            workspace: "/home/runner/_work/repo/repo".into(),
            files: RunnerFiles::new(Path::new("/")).unwrap(),
            user: (1000, 1000),
            worker: None,
            diag: None,
            workflow: None,
            defaults: RunnerDefaults::default(),
            job: BTreeMap::from([("GITHUB_REPOSITORY".into(), "octo/repo".into())]),
        }
    }

    #[test]
    fn the_same_name_elsewhere_is_another_owner() {
        let one = runner();
        let other = Runner { temp: "/srv/other/_work/_temp".into(), ..runner() };
        assert_eq!(one.owner(), runner().owner());
        assert_ne!(one.owner(), other.owner());
        assert_eq!(one.owner().len(), 32);
    }

    #[test]
    fn annotations_say_what_the_container_is_for() {
        let annotations = runner().annotations("job", "build");
        assert_eq!(annotations["com.github.actions.role"], "job");
        assert_eq!(annotations["com.github.actions.repository"], "octo/repo");
        assert!(!annotations.contains_key("com.github.actions.workflow"));
    }
}
