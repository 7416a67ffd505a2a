//! Records of instances: what any later call finds them by, and takes them apart with.
//!
//! They are where nothing outlives a boot, as containers are. A record is written before anything of
//! an instance is made and removed after all of it is gone.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::instance::Instance;
use crate::container::{
    ContainerError, containers_below, read_json_if_there, write_json, write_record,
};
use crate::image::Digest;
use crate::sys::fs::{PathContext as _, PathError, make_private};
use crate::sys::identity::Identity;
use crate::sys::lock::FileLock;
use crate::sys::removal::remove_tree;

/// What the owner of an instance's container begins with; its controller follows.
pub(super) const OWNER: &str = "garm:";

/// What the id of an instance's network begins with.
pub(super) const NETWORK: &str = "garm-";

/// The record of an instance, on disk from before anything of it is made until all of it is gone.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct InstanceRecord {
    /// Its name, which is its provider id too.
    pub name: String,
    /// The controller whose it is.
    pub controller: String,
    /// The pool it belongs to: any text.
    pub pool: String,
    /// The id of its container.
    pub container: String,
    /// The id of its network.
    pub network: String,
    pub created: Timestamp,
    pub maker: Option<Identity>,
    /// Its image, as GARM called it.
    pub image: String,
    pub flavor: String,
    /// Its architecture, as GARM called it.
    pub arch: String,
    /// Where what it writes is kept.
    pub log: PathBuf,
    /// The runner's layer, if it has one.
    pub layer: Option<String>,
    /// None until all of it is made.
    #[serde(rename = "made")]
    pub info: Option<InstanceInfo>,
}

/// What is known of an instance once it runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct InstanceInfo {
    /// `ID` of its `os-release`.
    pub os_name: String,
    /// `VERSION_ID` of its `os-release`.
    pub os_version: String,
    pub addresses: Vec<IpAddr>,
}

/// How the runner of an instance ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It ran, and ended with this code.
    Ended { code: i32, at: Timestamp },
    /// It could not be brought up.
    Failed { fault: String, at: Timestamp },
}

/// The records of all instances of a controller.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct InstanceRecords {
    /// The records, the oldest first.
    pub known: Vec<InstanceRecord>,
    /// The names of instances whose records nobody can read, and why.
    pub unreadable: Vec<(String, ContainerError)>,
}

/// The instances of one controller.
#[derive(Clone, Debug)]
pub struct Records {
    controller: String,
    path: PathBuf,
}

/// The files of one instance.
#[derive(Clone, Debug)]
pub struct Files {
    path: PathBuf,
    lock: PathBuf,
}

impl Records {
    /// Returns the records of a controller below the run directory of the store.
    ///
    /// It is not the engine's: each instance of an ordinary user has an engine of its own, and all are to
    /// be found in one place.
    pub fn of(run: &Path, controller: &str) -> Self {
        let path = all(run).join(key(controller));
        Records { controller: controller.to_owned(), path }
    }

    /// Returns the controller whose instances they are.
    pub fn controller(&self) -> &str {
        &self.controller
    }

    /// Returns the files of an instance; none if nothing can have this name.
    pub fn files(&self, name: &str) -> Option<Files> {
        Instance::is_name(name).then(|| Files {
            path: self.path.join("instances").join(name),
            lock: self.path.join("locks").join(name),
        })
    }

    /// Returns the names of all instances of which there is anything, and be it a lock.
    pub fn names(&self) -> Result<BTreeSet<String>, ContainerError> {
        let mut all = BTreeSet::new();
        for dir in ["instances", "locks"] {
            all.extend(names(&self.path.join(dir))?);
        }
        Ok(all)
    }

    /// Returns the records of all instances, the oldest first.
    pub fn read_all(&self) -> Result<InstanceRecords, ContainerError> {
        let dir = self.path.join("instances");
        let mut instances = InstanceRecords::default();
        for name in names(&dir)? {
            let files = Files { path: dir.join(&name), lock: self.path.join("locks").join(&name) };
            match files.record() {
                Ok(record) => instances.known.extend(record),
                Err(error) if error.is_unreadable_record() => {
                    instances.unreadable.push((name, error));
                }
                Err(error) => return Err(error),
            }
        }
        instances.known.sort_by_key(|record| record.created);
        Ok(instances)
    }

    /// Returns what the container of an instance tells of it, whose record cannot be read; `run` is the run
    /// directory of its site.
    pub(super) fn record_of_container(
        &self,
        run: &Path,
        name: &str,
    ) -> Result<Option<InstanceRecord>, ContainerError> {
        let is_ours = |owner: &str| Some(self.path.file_name()?.to_str()? == key(owner));
        let container = containers_below(run)?.into_iter().find(|container| {
            let owner = container.owner.strip_prefix(OWNER);
            container.name == name && owner.and_then(is_ours) == Some(true)
        });
        Ok(container.map(|container| InstanceRecord {
            name: container.name,
            controller: container.owner.trim_start_matches(OWNER).to_owned(),
            pool: String::new(),
            network: container.network.unwrap_or_default(),
            container: container.id,
            created: container.created,
            maker: None,
            image: container.image,
            flavor: String::new(),
            arch: String::new(),
            log: PathBuf::new(),
            layer: None,
            info: None,
        }))
    }
}

/// Returns the records of all controllers that have any, below the run directory of the store.
pub fn controllers(run: &Path) -> Result<Vec<Records>, ContainerError> {
    let all = all(run);
    let mut records = Vec::new();
    for key in names(&all)?.into_iter().filter(|name| !name.starts_with('.')) {
        let mut controller = Records { path: all.join(&key), controller: key };
        let instances = controller.read_all()?;
        if let Some(record) = instances.known.into_iter().next() {
            controller.controller = record.controller;
        } else if instances.unreadable.is_empty() {
            continue;
        }
        records.push(controller);
    }
    Ok(records)
}

impl Files {
    /// Waits so long until no other call works on the instance.
    pub fn lock(&self, within: Duration) -> Result<FileLock, ContainerError> {
        let dir = self.lock.parent().expect("it has one");
        make_private(dir)?;
        Ok(FileLock::passing(&self.lock, within)?)
    }

    /// Reads the record, if there is one.
    pub fn record(&self) -> Result<Option<InstanceRecord>, ContainerError> {
        read_json_if_there(&self.path.join("claim.json"))
    }

    /// Writes the record, replacing an earlier one at once.
    pub fn write_record(&self, record: &InstanceRecord) -> Result<(), ContainerError> {
        make_private(&self.path)?;
        write_record(&self.path.join("claim.json"), record)
    }

    /// Returns how the runner ended, if it has.
    pub fn outcome(&self) -> Result<Option<Outcome>, ContainerError> {
        read_json_if_there(&self.path.join("outcome.json"))
    }

    /// Records how the runner ended.
    pub fn write_outcome(&self, outcome: &Outcome) -> Result<(), ContainerError> {
        write_json(&self.path.join("outcome.json"), outcome)
    }

    /// Returns the process that stays with the instance, if there was one.
    pub fn supervisor(&self) -> Result<Option<Identity>, ContainerError> {
        read_json_if_there(&self.path.join("supervisor.json"))
    }

    /// Records the process that stays with the instance.
    pub fn write_supervisor(&self, process: Identity) -> Result<(), ContainerError> {
        write_json(&self.path.join("supervisor.json"), &process)
    }

    /// Returns whether the instance is paused.
    pub fn is_paused(&self) -> bool {
        self.path.join("paused").exists()
    }

    /// Records whether the instance is paused.
    pub fn set_paused(&self, paused: bool) -> Result<(), PathError> {
        let path = self.path.join("paused");
        if paused {
            return fs::write(&path, "").at("write", &path);
        }
        match fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result.at("remove", &path),
        }
    }

    /// Removes everything, the record last: as long as there is anything of the instance, it is
    /// found.
    pub fn remove(&self) -> Result<(), PathError> {
        for name in names(&self.path)? {
            if name != "claim.json" {
                remove_tree(&self.path.join(&name))?;
            }
        }
        remove_tree(&self.path)
    }

    /// Gives the lock of an instance back of which nothing is left.
    pub fn forget(&self, lock: FileLock) -> Result<(), PathError> {
        lock.remove(&self.lock)
    }
}

/// Returns where all controllers have theirs.
fn all(run: &Path) -> PathBuf {
    run.join("garm")
}

/// Returns the name of a directory for a controller: its id, which is a UUID, or what stands for it.
fn key(controller: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
    if !controller.is_empty() && controller.len() <= 64 && controller.chars().all(is_plain) {
        controller.to_owned()
    } else {
        // An underscore is in none of the others.
        format!("_{}", Digest::of(controller.as_bytes()).hex())
    }
}

fn names(dir: &Path) -> Result<Vec<String>, PathError> {
    let entries = match fs::read_dir(dir) {
        // What is no directory is nobody's.
        Err(error)
            if [io::ErrorKind::NotFound, io::ErrorKind::NotADirectory].contains(&error.kind()) =>
        {
            return Ok(Vec::new());
        }
        entries => entries.at("list", dir)?,
    };
    Ok(entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::tests::Damage;

    fn record(controller: &str, name: &str) -> InstanceRecord {
        InstanceRecord {
            name: name.to_owned(),
            controller: controller.to_owned(),
            pool: "my set/1".to_owned(),
            container: "c".to_owned(),
            network: "n".to_owned(),
            created: Timestamp::UNIX_EPOCH,
            maker: None,
            image: "i".to_owned(),
            flavor: "f".to_owned(),
            arch: "amd64".to_owned(),
            log: "/log".into(),
            layer: None,
            info: None,
        }
    }

    fn names_of(records: &Records) -> Vec<String> {
        records.read_all().unwrap().known.into_iter().map(|record| record.name).collect()
    }

    #[test]
    fn a_controller_finds_its_own_instances_only() {
        let run = tempfile::tempdir().unwrap();
        // The last two would be the same file, were they taken as they are.
        for controller in ["31556484-bc26-4971-aaa6-bf77c99fe7f1", "../x", ".._x", ""] {
            let records = Records::of(run.path(), controller);
            assert!(names_of(&records).is_empty(), "{controller}");
            let files = records.files("a").unwrap();
            files.write_record(&record(controller, "a")).unwrap();
            assert_eq!(names_of(&records), ["a"], "{controller}");
        }
        let mut known: Vec<_> = controllers(run.path()).unwrap();
        assert_eq!(known.len(), 4);
        known.retain(|records| records.controller() == "../x");
        assert_eq!(names_of(&known[0]), ["a"]);
        assert_eq!(fs::read_dir(run.path()).unwrap().count(), 1);
    }

    #[test]
    fn one_claim_that_cannot_be_read_hides_no_other() {
        let run = tempfile::tempdir().unwrap();
        let records = Records::of(run.path(), "c");
        for name in ["good", "bad"] {
            records.files(name).unwrap().write_record(&record("c", name)).unwrap();
        }
        let bad = records.files("bad").unwrap();
        for damage in Damage::ALL {
            damage.inflict(&run.path().join("garm/c/instances/bad/claim.json"));
            let found = records.read_all().unwrap();
            assert_eq!((found.known.len(), found.unreadable[0].0.as_str()), (1, "bad"));
            let error = &found.unreadable[0].1;
            assert_eq!(error.is_of_other_version(), damage == Damage::OtherVersion, "{error}");
            fs::create_dir(run.path().join("garm/c/instances/bad/outcome.json")).unwrap();
            bad.remove().unwrap();
            bad.write_record(&record("c", "bad")).unwrap();
        }
        fs::remove_dir_all(run.path().join("garm/c/instances/good")).unwrap();
        assert_eq!(controllers(run.path()).unwrap()[0].controller(), "c");
    }

    #[test]
    fn nothing_is_left_of_what_was_removed() {
        let run = tempfile::tempdir().unwrap();
        let records = Records::of(run.path(), "c");
        let files = records.files("a").unwrap();
        let lock = files.lock(Duration::ZERO).unwrap();
        files.write_record(&record("c", "a")).unwrap();
        let at = Timestamp::UNIX_EPOCH;
        files.write_outcome(&Outcome::Failed { fault: "why".to_owned(), at }).unwrap();
        files.set_paused(true).unwrap();
        assert!(files.is_paused());
        assert!(matches!(files.outcome().unwrap(), Some(Outcome::Failed { .. })));
        files.remove().unwrap();
        files.remove().unwrap();
        assert_eq!(records.names().unwrap(), ["a".to_owned()].into());
        files.forget(lock).unwrap();
        assert!(records.names().unwrap().is_empty());
        assert!(files.record().unwrap().is_none() && files.outcome().unwrap().is_none());
        for dir in ["instances", "locks"] {
            let dir = run.path().join("garm/c").join(dir);
            assert_eq!(fs::read_dir(dir).unwrap().count(), 0);
        }
    }

    #[test]
    fn what_is_no_name_has_no_files() {
        let records = Records::of(Path::new("/run"), "c");
        for name in ["", "..", "a/b", "-a"] {
            assert!(records.files(name).is_none(), "{name}");
        }
    }
}
