//! Records of instances, by which later calls find and remove them.
//!
//! Records are cleared on reboot, like containers. A record is written before any part of the instance is created, and
//! removed after all parts.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use jiff::Timestamp;
use oci_hooks_engine::container::{
    ContainerError, new_id, read_json_if_there, write_json, write_record,
};
use oci_hooks_files::fs::{PathContext as _, PathError, make_private};
use oci_hooks_files::lock::FileLock;
use oci_hooks_host::identity::ProcessIdentity;
use oci_hooks_host::removal::{remove_tree, repair_lock_file};
use oci_hooks_image::Digest;
use serde::{Deserialize, Serialize};

use super::instance::GarmInstance;

/// Prefix of the owner of an instance's container, followed by the controller id.
pub(super) const OWNER: &str = "garm:";

/// Prefix of the id of an instance's network.
pub(super) const NETWORK: &str = "garm-";

/// Record of an instance, written before any part of it is created and removed last.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct InstanceRecord {
    /// Name, which is also the provider id.
    pub name: String,
    pub controller: String,
    /// Pool id, an arbitrary text.
    pub pool: String,
    pub container: String,
    pub network: String,
    pub created: Timestamp,
    /// Process that creates the instance.
    pub creator: Option<ProcessIdentity>,
    /// Image as sent by GARM.
    pub image: String,
    pub flavor: String,
    /// Architecture as sent by GARM.
    pub arch: String,
    pub log: PathBuf,
    /// Key of the layer that adds the runner, if the image does not contain the runner.
    pub layer: Option<String>,
    /// None until the container has started.
    pub info: Option<RunningDetails>,
}

/// Properties of an instance that are known once its container has started.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RunningDetails {
    /// `ID` in the image's `os-release`.
    pub os_name: String,
    /// `VERSION_ID` in the image's `os-release`.
    pub os_version: String,
    pub addresses: Vec<IpAddr>,
}

/// Result of the runner of an instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RunnerOutcome {
    /// The runner exited successfully; the code is always 0.
    Ended { code: i32, at: Timestamp },
    /// The runner could not be started, or failed.
    Failed { fault: String, at: Timestamp },
}

/// Directory of the records of one controller.
#[derive(Clone, Debug)]
pub struct ControllerRecords {
    controller: String,
    path: PathBuf,
}

/// Record directory and lock file of one instance.
#[derive(Clone, Debug)]
pub struct InstanceFiles {
    path: PathBuf,
    lock: PathBuf,
}

impl ControllerRecords {
    /// Returns the records of a controller below the run directory of the store.
    ///
    /// This is not the engine's run directory: each rootless instance has its own engine, but all records are in one
    /// place.
    pub fn of(run: &Path, controller: &str) -> Self {
        let path = controllers_dir(run).join(key(controller));
        ControllerRecords { controller: controller.to_owned(), path }
    }

    /// Returns the id of the controller.
    pub fn controller(&self) -> &str {
        &self.controller
    }

    /// Returns the files of an instance; none if the name is invalid.
    pub fn files(&self, name: &str) -> Option<InstanceFiles> {
        GarmInstance::is_name(name).then(|| InstanceFiles {
            path: self.path.join("instances").join(name),
            lock: self.path.join("locks").join(name),
        })
    }

    /// Returns the names of all instances with a record directory or a lock.
    pub fn names(&self) -> Result<BTreeSet<String>, ContainerError> {
        let mut all = BTreeSet::new();
        for dir in ["instances", "locks"] {
            all.extend(names(&self.path.join(dir))?);
        }
        Ok(all)
    }

    /// Returns the names of all instances with a record directory.
    pub(super) fn recorded_names(&self) -> Result<Vec<String>, ContainerError> {
        let mut names = names(&self.path.join("instances"))?;
        names.retain(|name| GarmInstance::is_name(name));
        Ok(names)
    }

    /// Returns whether these are the records of `controller`.
    pub(super) fn are_of(&self, controller: &str) -> bool {
        self.path.file_name().is_some_and(|name| name == key(controller).as_str())
    }

    /// Returns a new id for the container of an instance, which [`is_container_of`](Self::is_container_of) recognizes.
    pub(super) fn new_container_id(&self, name: &str) -> String {
        let mut id = new_id();
        let mark = self.container_mark(name);
        id.truncate(id.len() - mark.len());
        id + &mark
    }

    /// Returns whether a container id is one of an instance, so that containers of other instances need not be read.
    pub(super) fn is_container_of(&self, name: &str, id: &str) -> bool {
        id.ends_with(&self.container_mark(name))
    }

    /// Returns the last digits of the ids of an instance's containers.
    fn container_mark(&self, name: &str) -> String {
        let key = self.path.file_name().unwrap_or_default().to_string_lossy();
        Digest::of(format!("{key}/{name}").as_bytes()).hex()[..16].to_owned()
    }

    /// Removes the controller's directories, unless they have files of an instance.
    pub fn remove_if_empty(&self) -> Result<(), PathError> {
        for dir in [self.path.join("instances"), self.path.join("locks"), self.path.clone()] {
            match fs::remove_dir(&dir) {
                Err(error)
                    if [io::ErrorKind::NotFound, io::ErrorKind::DirectoryNotEmpty]
                        .contains(&error.kind()) => {}
                removed => removed.with_path("remove", &dir)?,
            }
        }
        Ok(())
    }

    /// Reads the id of the controller from its records, because the directory may be named by a digest of the id.
    fn named_by_records(mut self) -> Result<Self, ContainerError> {
        for name in self.recorded_names()? {
            let record = self.files(&name).and_then(|files| files.record().ok().flatten());
            if let Some(record) = record.filter(|record| self.are_of(&record.controller)) {
                self.controller = record.controller;
                break;
            }
        }
        Ok(self)
    }
}

/// Returns the records of all controllers that have a directory below the run directory of the store.
pub fn recorded_controllers(run: &Path) -> Result<Vec<ControllerRecords>, ContainerError> {
    let all = controllers_dir(run);
    let keys = names(&all)?.into_iter().filter(|name| !name.starts_with('.'));
    keys.map(|key| ControllerRecords { path: all.join(&key), controller: key }.named_by_records())
        .collect()
}

impl InstanceFiles {
    /// Locks the instance against other calls; fails after `within`.
    pub fn lock(&self, within: Duration) -> Result<FileLock, ContainerError> {
        let dir = self.lock.parent().expect("it has one");
        make_private(dir)?;
        repair_lock_file(&self.lock, within)?;
        Ok(FileLock::acquire_removable(&self.lock, within)?)
    }

    /// Reads the record, if there is one.
    pub fn record(&self) -> Result<Option<InstanceRecord>, ContainerError> {
        read_json_if_there(&self.path.join("instance.json"))
    }

    /// Writes the record, atomically replacing an earlier one.
    pub fn write_record(&self, record: &InstanceRecord) -> Result<(), ContainerError> {
        make_private(&self.path)?;
        write_record(&self.path.join("instance.json"), record)
    }

    /// Returns the result of the runner, if it has exited.
    pub fn outcome(&self) -> Result<Option<RunnerOutcome>, ContainerError> {
        read_json_if_there(&self.path.join("outcome.json"))
    }

    /// Returns whether the result of the runner is recorded. After that, the supervisor only kills the container and
    /// exits.
    pub(super) fn has_ended(&self) -> bool {
        matches!(self.outcome(), Ok(Some(_)))
    }

    /// Records the result of the runner.
    pub fn write_outcome(&self, outcome: &RunnerOutcome) -> Result<(), ContainerError> {
        write_json(&self.path.join("outcome.json"), outcome)
    }

    /// Returns the supervisor of the instance, running or not.
    pub fn supervisor(&self) -> Result<Option<ProcessIdentity>, ContainerError> {
        read_json_if_there(&self.path.join("supervisor.json"))
    }

    /// Records the supervisor of the instance.
    pub fn write_supervisor(&self, process: ProcessIdentity) -> Result<(), ContainerError> {
        write_json(&self.path.join("supervisor.json"), &process)
    }

    /// Returns whether the instance is paused.
    pub fn is_paused(&self) -> bool {
        fs::symlink_metadata(self.path.join("paused")).is_ok()
    }

    /// Records whether the instance is paused.
    pub fn set_paused(&self, paused: bool) -> Result<(), PathError> {
        let path = self.path.join("paused");
        if paused {
            return fs::write(&path, "").with_path("write", &path);
        }
        remove_tree(&path)
    }

    /// Removes all files, the record last, so that the instance is found as long as it has files.
    pub fn remove(&self) -> Result<(), PathError> {
        for name in names(&self.path)? {
            if name != "instance.json" {
                remove_tree(&self.path.join(&name))?;
            }
        }
        remove_tree(&self.path)
    }

    /// Removes the lock file of an instance that has no other files, and releases the lock.
    pub fn forget(&self, lock: FileLock) -> Result<(), PathError> {
        lock.remove(&self.lock)
    }
}

/// Returns the directory of all controllers.
fn controllers_dir(run: &Path) -> PathBuf {
    run.join("garm")
}

/// Returns the directory name of a controller: its id, which is a UUID, or a digest of an unusual id.
fn key(controller: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
    if !controller.is_empty() && controller.len() <= 64 && controller.chars().all(is_plain) {
        controller.to_owned()
    } else {
        // Plain ids contain no underscore.
        format!("_{}", Digest::of(controller.as_bytes()).hex())
    }
}

fn names(dir: &Path) -> Result<Vec<String>, PathError> {
    let entries = match fs::read_dir(dir) {
        // Other files than directories are ignored.
        Err(error)
            if [io::ErrorKind::NotFound, io::ErrorKind::NotADirectory].contains(&error.kind()) =>
        {
            return Ok(Vec::new());
        }
        entries => entries.with_path("list", dir)?,
    };
    Ok(entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(controller: &str, name: &str) -> InstanceRecord {
        InstanceRecord {
            name: name.to_owned(),
            controller: controller.to_owned(),
            ..InstanceRecord::default()
        }
    }

    fn names_of(records: &ControllerRecords) -> Vec<String> {
        records.recorded_names().unwrap()
    }

    #[test]
    fn controller_finds_only_its_own_instances() {
        let run = tempfile::tempdir().unwrap();
        // Unusual ids must not share a directory.
        for controller in ["31556484-bc26-4971-aaa6-bf77c99fe7f1", "../x", ".._x", ""] {
            let records = ControllerRecords::of(run.path(), controller);
            assert!(names_of(&records).is_empty(), "{controller}");
            let files = records.files("a").unwrap();
            files.write_record(&record(controller, "a")).unwrap();
            assert_eq!(names_of(&records), ["a"], "{controller}");
        }
        let mut known: Vec<_> = recorded_controllers(run.path()).unwrap();
        assert_eq!(known.len(), 4);
        known.retain(|records| records.controller() == "../x");
        assert_eq!(names_of(&known[0]), ["a"]);
        assert_eq!(fs::read_dir(run.path()).unwrap().count(), 1);
    }

    #[test]
    fn ids_of_containers_are_those_of_one_instance() {
        let records = ControllerRecords::of(Path::new("/run"), "c");
        let ids = ["a", "a", "b"].map(|name| records.new_container_id(name));
        assert!(ids.iter().all(|id| id.len() == 64) && ids[0][..16] != ids[1][..16], "{ids:?}");
        let are_of_a = ids.each_ref().map(|id| records.is_container_of("a", id));
        assert_eq!(are_of_a, [true, true, false]);
        assert!(!ControllerRecords::of(Path::new("/run"), "d").is_container_of("a", &ids[0]));
    }

    #[test]
    fn removal_leaves_no_files() {
        let run = tempfile::tempdir().unwrap();
        let records = ControllerRecords::of(run.path(), "c");
        let files = records.files("a").unwrap();
        let lock = files.lock(Duration::ZERO).unwrap();
        files.write_record(&record("c", "a")).unwrap();
        let at = Timestamp::UNIX_EPOCH;
        files.write_outcome(&RunnerOutcome::Failed { fault: "why".to_owned(), at }).unwrap();
        files.set_paused(true).unwrap();
        assert!(files.is_paused());
        assert!(matches!(files.outcome().unwrap(), Some(RunnerOutcome::Failed { .. })));
        files.remove().unwrap();
        files.remove().unwrap();
        records.remove_if_empty().unwrap();
        assert_eq!(records.names().unwrap(), ["a".to_owned()].into());
        files.forget(lock).unwrap();
        assert!(records.names().unwrap().is_empty());
        assert!(files.record().unwrap().is_none() && files.outcome().unwrap().is_none());
        records.remove_if_empty().unwrap();
        assert_eq!(fs::read_dir(run.path().join("garm")).unwrap().count(), 0);
    }

    #[test]
    fn invalid_name_has_no_files() {
        let records = ControllerRecords::of(Path::new("/run"), "c");
        for name in ["", "..", "a/b", "-a"] {
            assert!(records.files(name).is_none(), "{name}");
        }
    }
}
