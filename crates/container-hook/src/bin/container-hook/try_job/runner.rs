//! The simulated runner: its directories, and the environment of its hooks.
//!
//! The directories are in the store, which other users cannot read and whose file system supports containers.
//! Their names identify the simulating process, so that directories of killed processes are recognized.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;

use container_hook_job::runner::CallingRunner as Caller;
use oci_hooks_files::fs::{PathContext as _, PathError, make_private};
use oci_hooks_host::identity::ProcessIdentity;
use oci_hooks_host::removal::remove_tree;

use crate::settings::HookFileSettings;

/// Prefix of the directories' names, followed by the id and the start time of the process.
const PREFIX: &str = "try-";

/// Directories of a runner before its first job.
const DIRECTORIES: [&str; 6] = [
    "externals",
    "_work/_temp/_github_home",
    "_work/_temp/_github_workflow",
    "_work/_temp/_runner_file_commands",
    "_work/_temp/_runner_hook_responses",
    "_work/repo/repo",
];

/// Prefixes of variables of a surrounding job or of sudo, which are not passed on.
const NOT_INHERITED: [&str; 4] = ["GITHUB_", "RUNNER_", "SUDO_", "INPUT_"];

/// Variable that is passed on in spite of its prefix: the runner's option for debug messages.
const DEBUG: &str = "RUNNER_DEBUG";

/// A runner with its directories, which are kept until [`Self::remove`].
pub struct SimulatedRunner {
    pub name: String,
    pub directory: PathBuf,
}

impl SimulatedRunner {
    /// Creates the directories of a runner simulated by this process; `appended` tells several runners apart.
    pub fn new(
        settings: &HookFileSettings,
        own: ProcessIdentity,
        appended: &str,
    ) -> Result<Self, PathError> {
        let root = &settings.store.root;
        make_private(root)?;
        let name = format!("{PREFIX}{}-{}{appended}", own.pid, own.start);
        let runner = SimulatedRunner { directory: root.join(&name), name };
        let mut builder = DirBuilder::new();
        builder.mode(0o700).create(&runner.directory).with_path("make", &runner.directory)?;
        for name in DIRECTORIES {
            let path = runner.directory.join(name);
            builder.recursive(true).mode(0o755).create(&path).with_path("make", &path)?;
        }
        runner.write("_work/_temp/_github_workflow/event.json", b"{}\n")?;
        Ok(runner)
    }

    /// Writes a file of the runner, and returns its path.
    pub fn write(&self, name: &str, content: &[u8]) -> Result<PathBuf, PathError> {
        let path = self.directory.join(name);
        fs::write(&path, content).with_path("write", &path)?;
        Ok(path)
    }

    /// Returns the id by which records of containers name this runner as their owner.
    pub fn owner(&self) -> String {
        Caller::owner_of(&self.name, &self.temp())
    }

    pub fn work(&self) -> PathBuf {
        self.directory.join("_work")
    }

    pub fn temp(&self) -> PathBuf {
        self.directory.join("_work/_temp")
    }

    /// Returns the environment of the runner's hooks: variables of this process, without those of a
    /// surrounding job, and variables that a runner sets.
    pub fn environment(&self) -> Vec<(OsString, OsString)> {
        let work = self.work();
        let own = [
            ("CI", "true".into()),
            ("GITHUB_ACTIONS", "true".into()),
            ("GITHUB_JOB", "try".into()),
            ("GITHUB_WORKSPACE", work.join("repo/repo").into_os_string()),
            ("RUNNER_ENVIRONMENT", "self-hosted".into()),
            ("RUNNER_NAME", self.name.clone().into()),
            ("RUNNER_OS", "Linux".into()),
            ("RUNNER_TEMP", self.temp().into_os_string()),
            ("RUNNER_TOOL_CACHE", work.join("_tool").into_os_string()),
            ("RUNNER_WORKSPACE", work.join("repo").into_os_string()),
        ];
        let own = own.map(|(name, value)| (name.into(), value));
        env::vars_os().filter(|(name, _)| !is_of_other_job(name)).chain(own).collect()
    }

    /// Removes the directories of the runner.
    pub fn remove(&self) -> Result<(), PathError> {
        remove_tree(&self.directory)
    }
}

fn is_of_other_job(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    name != DEBUG.as_bytes() && NOT_INHERITED.iter().any(|start| name.starts_with(start.as_bytes()))
}

/// Removes the directories of simulated runners whose process has ended. Their containers have to be removed
/// before.
pub fn remove_abandoned(settings: &HookFileSettings) -> Result<(), PathError> {
    let root = &settings.store.root;
    let Ok(entries) = fs::read_dir(root) else { return Ok(()) };
    for entry in entries.flatten() {
        if player(&entry.file_name()).is_some_and(|player| !player.is_running()) {
            remove_tree(&root.join(entry.file_name()))?;
        }
    }
    Ok(())
}

/// Returns the process that simulates the runner with this directory.
fn player(name: &OsStr) -> Option<ProcessIdentity> {
    let mut parts = name.to_str()?.strip_prefix(PREFIX)?.split('-');
    let (pid, start) = (parts.next()?, parts.next()?);
    Some(ProcessIdentity { pid: pid.parse().ok()?, start: start.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_of_ended_processes_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let mut settings = HookFileSettings::default();
        settings.store.root = dir.path().join("lib");
        settings.store.run = dir.path().join("run");
        remove_abandoned(&settings).unwrap();
        let own = ProcessIdentity::of(std::process::id()).unwrap();
        let mine = SimulatedRunner::new(&settings, own, "").unwrap();
        let killed = SimulatedRunner::new(
            &settings,
            ProcessIdentity { start: own.start + 1, ..own },
            "-other",
        )
        .unwrap();
        let other = settings.store.root.join("try-out");
        fs::create_dir(&other).unwrap();
        remove_abandoned(&settings).unwrap();
        let paths = [&mine.directory, &other, &killed.directory];
        assert_eq!(paths.map(|path| path.exists()), [true, true, false]);
    }

    #[test]
    fn variables_of_another_job_are_not_passed_on() {
        for (name, is_of_other_job) in [
            ("GITHUB_TOKEN", true),
            ("RUNNER_TEMP", true),
            ("SUDO_UID", true),
            ("RUNNER_DEBUG", false),
            ("ACTIONS_RUNNER_CONTAINER_HOOK_TEMPLATE", false),
            ("HTTPS_PROXY", false),
        ] {
            assert_eq!(super::is_of_other_job(name.as_ref()), is_of_other_job, "{name}");
        }
    }
}
