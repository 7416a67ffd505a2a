//! The runner that is played: its directories, and the environment that its hooks have.
//!
//! The directories are in the store, where nobody else looks in and where the file systems of containers work. Their
//! name says which process plays, by which those of killed ones are known.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use oci_hooks::container_hook::Runner as Caller;
use oci_hooks::sys::fs::{PathContext as _, PathError, make_private};
use oci_hooks::sys::identity::Identity;
use oci_hooks::sys::removal::remove_tree;

use crate::settings::Settings;

/// What the names of the directories begin with: then come the number and the start of the process.
const PREFIX: &str = "try-";

/// What a runner has there before its first job.
const DIRECTORIES: [&str; 6] = [
    "externals",
    "_work/_temp/_github_home",
    "_work/_temp/_github_workflow",
    "_work/_temp/_runner_file_commands",
    "_work/_temp/_runner_hook_responses",
    "_work/repo/repo",
];

/// Variables that say something of another job, which this may be a step of, or of who called sudo.
const OF_OTHERS: [&str; 4] = ["GITHUB_", "RUNNER_", "SUDO_", "INPUT_"];

/// The variable of those that is an option of a runner.
const DEBUG: &str = "RUNNER_DEBUG";

/// A runner whose directories are there until this is removed.
pub struct Runner {
    pub name: String,
    pub directory: PathBuf,
}

impl Runner {
    /// Makes the directories of a runner that this process plays; what is appended to its name is that of one of several.
    pub fn new(settings: &Settings, own: Identity, appended: &str) -> Result<Self, PathError> {
        let root = &settings.store.root;
        make_private(root)?;
        let name = format!("{PREFIX}{}-{}{appended}", own.pid, own.start);
        let runner = Runner { directory: root.join(&name), name };
        let mut builder = DirBuilder::new();
        builder.mode(0o700).create(&runner.directory).at("make", &runner.directory)?;
        for name in DIRECTORIES {
            let path = runner.directory.join(name);
            builder.recursive(true).mode(0o755).create(&path).at("make", &path)?;
        }
        runner.write("_work/_temp/_github_workflow/event.json", b"{}\n")?;
        Ok(runner)
    }

    /// Writes a file of the runner, and returns its path.
    pub fn write(&self, name: &str, content: &[u8]) -> Result<PathBuf, PathError> {
        let path = self.directory.join(name);
        fs::write(&path, content).at("write", &path)?;
        Ok(path)
    }

    /// Returns the owner id that its containers are recorded under.
    pub fn owner(&self) -> String {
        Caller::owner_of(&self.name, &self.temp())
    }

    pub fn work(&self) -> PathBuf {
        self.directory.join("_work")
    }

    pub fn temp(&self) -> PathBuf {
        self.directory.join("_work/_temp")
    }

    /// Returns the variables of its hooks: those of this process, and a runner's own.
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
        env::vars_os().filter(|(name, _)| !is_of_others(name)).chain(own).collect()
    }

    /// Removes its directories.
    pub fn remove(&self, settings: &Settings) -> Result<(), PathError> {
        remove(&self.directory, settings)
    }
}

fn is_of_others(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    name != DEBUG.as_bytes() && OF_OTHERS.iter().any(|start| name.starts_with(start.as_bytes()))
}

/// Removes the directories of runners that were played by processes that have ended. What they had of containers is
/// removed before.
pub fn remove_abandoned(settings: &Settings) -> Result<(), PathError> {
    let root = &settings.store.root;
    let Ok(entries) = fs::read_dir(root) else { return Ok(()) };
    for entry in entries.flatten() {
        if player(&entry.file_name()).is_some_and(|player| !player.is_running()) {
            remove(&root.join(entry.file_name()), settings)?;
        }
    }
    Ok(())
}

/// Returns which process plays the runner whose directory has this name.
fn player(name: &OsStr) -> Option<Identity> {
    let mut parts = name.to_str()?.strip_prefix(PREFIX)?.split('-');
    let (pid, start) = (parts.next()?, parts.next()?);
    Some(Identity { pid: pid.parse().ok()?, start: start.parse().ok()? })
}

/// Removes the directories of a runner, and the lock that its calls had: no other runner will have its name.
fn remove(directory: &Path, settings: &Settings) -> Result<(), PathError> {
    let name = directory.file_name().unwrap_or_default().to_string_lossy();
    let owner = Caller::owner_of(&name, &directory.join("_work/_temp"));
    remove_tree(&settings.store.run.join("jobs").join(format!("{owner}.lock")))?;
    remove_tree(directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_of_processes_that_ended_go_and_others_stay() {
        let dir = tempfile::tempdir().unwrap();
        let mut settings = Settings::default();
        settings.store.root = dir.path().join("lib");
        settings.store.run = dir.path().join("run");
        remove_abandoned(&settings).unwrap();
        let own = Identity::of(std::process::id()).unwrap();
        let mine = Runner::new(&settings, own, "").unwrap();
        let killed =
            Runner::new(&settings, Identity { start: own.start + 1, ..own }, "-other").unwrap();
        let lock = settings.store.run.join("jobs").join(format!("{}.lock", killed.owner()));
        fs::create_dir_all(lock.parent().unwrap()).unwrap();
        fs::write(&lock, "").unwrap();
        let other = settings.store.root.join("try-out");
        fs::create_dir(&other).unwrap();
        remove_abandoned(&settings).unwrap();
        let paths = [&mine.directory, &other, &killed.directory, &lock];
        assert_eq!(paths.map(|path| path.exists()), [true, true, false, false]);
    }

    #[test]
    fn variables_of_another_job_are_not_handed_on() {
        for (name, is_of_others) in [
            ("GITHUB_TOKEN", true),
            ("RUNNER_TEMP", true),
            ("SUDO_UID", true),
            ("RUNNER_DEBUG", false),
            ("ACTIONS_RUNNER_CONTAINER_HOOK_TEMPLATE", false),
            ("HTTPS_PROXY", false),
        ] {
            assert_eq!(super::is_of_others(name.as_ref()), is_of_others, "{name}");
        }
    }
}
