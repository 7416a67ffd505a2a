//! Records: what a container needs to be found again, and taken apart, by any later process.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::error::ContainerError;
use crate::runtime::Runtime;
use crate::sys::cgroup;
use crate::sys::fs::{
    Durability, FileAt, PathContext as _, ReplaceOptions, Symlinks, make_private, read_bounded,
    read_if_there,
};
use crate::sys::identity::Identity;
use crate::sys::init::frames::{Hello, VERSIONS};
use crate::sys::processes::is_rooted_in;
use crate::sys::record::{decode, encode};

/// More than any record has.
const LONGEST_RECORD: u64 = 1 << 20;

/// What a container is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The steps of a job run in it.
    Job,
    Service,
    Step,
    /// It prepares a job or a step, and has ended before that begins.
    Init,
    /// It runs beside a job container or a step.
    Sidecar,
    /// A runner is in it.
    Instance,
}

impl Record {
    /// Keeps the cgroup that containers are in, limited, while this one is made.
    pub(super) fn keep_parents(&self) -> Option<fs::File> {
        let kept = cgroup::keep_parents();
        if self.cgroup.starts_with(cgroup::PARENT) {
            cgroup::limit_all();
        }
        kept
    }
}

impl Role {
    /// Returns the role's name, as in annotations and listings.
    pub fn name(self) -> &'static str {
        match self {
            Role::Job => "job",
            Role::Service => "service",
            Role::Step => "step",
            Role::Init => "init",
            Role::Sidecar => "sidecar",
            Role::Instance => "instance",
        }
    }
}

/// What is known of a container, from before anything of it is made until all of it is gone.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// 64 hexadecimal digits.
    pub id: String,
    pub name: String,
    /// Whose it is: only the same owner may touch it.
    pub owner: String,
    pub role: Role,
    /// The image as it was asked for.
    pub image: String,
    /// The digest of the image's manifest.
    pub digest: String,
    pub created: Timestamp,
    /// The runtime that has it.
    pub runtime: Runtime,
    /// Its cgroup, as in `linux.cgroupsPath`; empty if it has none of its own.
    pub cgroup: String,
    /// The network it is in, if it is one of ours.
    pub network: Option<String>,
    /// Where its root file system and volumes are.
    pub disk: PathBuf,
    /// How much of its output is kept.
    pub log_bytes: u64,
    /// Its first process, once it has one.
    pub process: Option<Identity>,
    /// How it is ended, if not by killing it at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<Stop>,
    /// How its first process takes steps, if it takes any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<TakesSteps>,
}

/// How a container's first process takes steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TakesSteps {
    /// The oldest and the newest version of the protocol that it speaks.
    pub versions: (u16, u16),
}

impl TakesSteps {
    /// Returns how the first process of a new container takes steps.
    pub(super) fn of_this_version() -> Self {
        TakesSteps { versions: (VERSIONS.oldest, VERSIONS.newest) }
    }

    /// Returns whether it speaks a version of the protocol that is known here.
    pub fn is_understood(self) -> bool {
        let (oldest, newest) = self.versions;
        VERSIONS.common(Hello { oldest, newest }).is_some()
    }
}

/// How a container's first process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// Its code, or 128 and the signal that ended it.
    pub code: i32,
    pub at: Timestamp,
}

/// The files of a container that do not outlive a boot.
#[derive(Clone, Debug)]
pub struct Directory {
    path: PathBuf,
}

impl Directory {
    /// Returns the directory of a container below the engine's run directory.
    pub fn of(run: &Path, id: &str) -> Self {
        Directory { path: all(run).join(id) }
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the run directory that it is in.
    pub(super) fn run(&self) -> &Path {
        self.path.ancestors().nth(2).unwrap_or(Path::new("/"))
    }

    /// Returns the bundle, which the runtime is given.
    pub fn bundle(&self) -> PathBuf {
        self.path.join("bundle")
    }

    /// Returns the file that the runtime writes the process id to.
    pub fn pid_file(&self) -> PathBuf {
        self.path.join("pid")
    }

    /// Returns the runtime's own log.
    pub fn runtime_log(&self) -> PathBuf {
        self.path.join("runtime.log")
    }

    /// Returns what the container wrote.
    pub fn log(&self) -> PathBuf {
        self.path.join("log")
    }

    /// Makes the directory with its record in it. Nobody may look for orphans meanwhile.
    pub(super) fn create(&self, record: &Record) -> Result<(), ContainerError> {
        make_private(&self.path)?;
        self.write(record)
    }

    /// Writes the record, replacing an earlier one at once.
    pub(super) fn write(&self, record: &Record) -> Result<(), ContainerError> {
        write_record(&self.path.join("record.json"), record)
    }

    /// Reads the record, within a limit of its size.
    pub fn read(&self) -> Result<Record, ContainerError> {
        read_json(&self.path.join("record.json"))
    }

    /// Records how the first process ended.
    pub(super) fn write_end(&self, ended: &Ended) -> Result<(), ContainerError> {
        write_json(&self.path.join("end.json"), ended)
    }

    /// Returns how the first process ended, if it did and somebody watched it.
    pub fn end(&self) -> Option<Ended> {
        read_json(&self.path.join("end.json")).ok()
    }

    /// Returns the process whose id the runtime wrote, if it runs and is the container's: when that
    /// has ended, the id may be anybody's.
    pub(super) fn process(&self, id: &str) -> Option<Identity> {
        let process = Identity::of(self.pid()?)?;
        // It was that process all along.
        let is_of = cgroup::is_of(process.pid, id) || is_rooted_in(process.pid, id);
        (is_of && process.is_running()).then_some(process)
    }

    /// Returns the process whose id the runtime wrote for the process that adopted it.
    pub(super) fn child(&self) -> Option<Identity> {
        Identity::of_child(self.pid()?)
    }

    fn pid(&self) -> Option<u32> {
        fs::read_to_string(self.pid_file()).ok()?.trim().parse().ok()
    }
}

/// Returns the directory that all containers have theirs in.
fn all(run: &Path) -> PathBuf {
    run.join("containers")
}

/// Returns the records of all containers. One that cannot be read is left out: it was being made or
/// removed just now, or is found as an orphan.
pub fn records(run: &Path) -> Result<Vec<Record>, ContainerError> {
    let mut records = Vec::new();
    for id in ids(run)? {
        records.extend(Directory::of(run, &id).read());
    }
    records.sort_by_key(|record| record.created);
    Ok(records)
}

/// Returns the ids of containers whose record is missing, as who made or removed them was killed, or
/// damaged: nobody can use them any more. One that another version wrote is not among them.
pub fn orphans(run: &Path) -> Result<Vec<String>, ContainerError> {
    let mut ids = ids(run)?;
    ids.retain(|id| Directory::of(run, id).read().is_err_and(|error| !error.is_of_other_version()));
    Ok(ids)
}

/// Returns the ids of containers whose record another version of this program wrote.
pub fn of_other_versions(run: &Path) -> Result<Vec<String>, ContainerError> {
    let mut ids = ids(run)?;
    ids.retain(|id| Directory::of(run, id).read().is_err_and(|error| error.is_of_other_version()));
    Ok(ids)
}

/// Returns why records of containers cannot be read.
pub fn unreadable(run: &Path) -> Result<Vec<ContainerError>, ContainerError> {
    let errors = ids(run)?.into_iter().filter_map(|id| Directory::of(run, &id).read().err());
    Ok(errors.filter(ContainerError::is_unreadable_record).collect())
}

fn ids(run: &Path) -> Result<Vec<String>, ContainerError> {
    let all = all(run);
    let entries = match fs::read_dir(&all) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.at("list", &all)?,
    };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    Ok(names.collect())
}

/// Writes a record with its version; readers see the old or the new.
pub fn write_record(path: &Path, value: &impl Serialize) -> Result<(), ContainerError> {
    write(path, &encode(value))
}

/// Writes a value as JSON, for whoever knows by other means what it is; readers see the old or the new.
pub fn write_json(path: &Path, value: &impl Serialize) -> Result<(), ContainerError> {
    write(path, &serde_json::to_vec(value).expect("these are values that JSON has"))
}

fn write(path: &Path, text: &[u8]) -> Result<(), ContainerError> {
    let options = ReplaceOptions {
        mode: Some(0o600),
        // The run directory does not outlive a boot.
        durability: Durability::Unsynced,
        ..ReplaceOptions::default()
    };
    let file = FileAt::open(path, Symlinks::Refuse)?;
    Ok(file.replace(text, &options)?)
}

/// Reads a value that [`write_json`] or [`write_record`] wrote.
pub fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, ContainerError> {
    Ok(decode(path, &read_bounded(path, LONGEST_RECORD)?)?)
}

/// Reads such a value, if there is one.
pub fn read_json_if_there<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, ContainerError> {
    let text = read_if_there(path, LONGEST_RECORD)?;
    Ok(text.map(|text| decode(path, &text)).transpose()?)
}

/// Something that a container is to do or to answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Check {
    /// A program in it ends with code 0.
    Command(Vec<String>),
    /// A request from its network is answered with a code from 200 to 399; certificates do not count.
    Http {
        /// `http` or `https`, with the host and the port.
        url: String,
        headers: Vec<(String, String)>,
    },
    /// A connection from its network is accepted.
    Tcp(SocketAddr),
    Sleep(Duration),
}

/// How a container is ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Stop {
    /// What is done in it first.
    pub before: Option<Check>,
    /// The signal that asks it to end; none if it takes no notice of any.
    pub signal: Option<String>,
    /// How long all of that may take.
    pub grace: Duration,
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub(crate) fn record(id: &str) -> Record {
        Record {
            id: id.into(),
            name: "job".into(),
            owner: "runner".into(),
            role: Role::Job,
            image: "busybox".into(),
            digest: "sha256:00".into(),
            created: Timestamp::UNIX_EPOCH,
            runtime: Runtime::new("/usr/bin/runc".into(), "/run/oci-hooks/runtime".into()),
            cgroup: format!("/oci-hooks/{id}"),
            network: None,
            disk: "/var/lib/oci-hooks/containers".into(),
            log_bytes: 1 << 20,
            process: None,
            stop: None,
            steps: None,
        }
    }

    #[test]
    fn a_container_is_found_by_its_record() {
        let run = tempfile::tempdir().unwrap();
        assert!(records(run.path()).unwrap().is_empty());
        Directory::of(run.path(), "a").create(&record("a")).unwrap();
        fs::create_dir(run.path().join("containers/b")).unwrap();
        let found = records(run.path()).unwrap();
        assert_eq!(found.iter().map(|record| &record.id).collect::<Vec<_>>(), ["a"]);
        assert_eq!(orphans(run.path()).unwrap(), ["b"]);
    }

    #[test]
    fn a_broken_record_is_named() {
        let run = tempfile::tempdir().unwrap();
        let directory = Directory::of(run.path(), "a");
        directory.create(&record("a")).unwrap();
        fs::write(directory.path().join("record.json"), "{").unwrap();
        let error = directory.read().unwrap_err().to_string();
        assert!(
            error.ends_with("containers/a/record.json is not a record of this version"),
            "{error}"
        );
        assert_eq!(orphans(run.path()).unwrap(), ["a"]);
        assert_eq!(unreadable(run.path()).unwrap().len(), 1);
    }

    #[test]
    fn a_record_of_another_version_is_no_orphan() {
        let run = tempfile::tempdir().unwrap();
        let directory = Directory::of(run.path(), "a");
        directory.create(&record("a")).unwrap();
        fs::write(directory.path().join("record.json"), r#"{"version": 9}"#).unwrap();
        assert!(orphans(run.path()).unwrap().is_empty());
        assert_eq!(unreadable(run.path()).unwrap().len(), 1);
    }
}
