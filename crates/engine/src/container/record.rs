//! Writes and reads the records of containers, by which any later process finds and removes them.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use oci_hooks_files::fs::{make_private, names_in, read_bounded, read_if_there, replace_unsynced};
use oci_hooks_files::record::{decode, encode};
use oci_hooks_host::identity::ProcessIdentity;
use oci_hooks_init::frames::{Hello, VERSIONS};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::error::ContainerError;
use super::processes::belongs_to;
use crate::runtime::OciRuntime;

const MAX_RECORD_BYTES: u64 = 1 << 20;

/// Purpose of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ContainerRole {
    /// Runs the steps of a job.
    Job,
    Service,
    Step,
    /// Prepares a job or a step, and ends before that begins.
    Init,
    /// Runs beside a job container or a step.
    Sidecar,
    Instance,
}

impl ContainerRole {
    /// Returns the role's name, as in annotations and listings.
    pub fn name(self) -> &'static str {
        match self {
            ContainerRole::Job => "job",
            ContainerRole::Service => "service",
            ContainerRole::Step => "step",
            ContainerRole::Init => "init",
            ContainerRole::Sidecar => "sidecar",
            ContainerRole::Instance => "instance",
        }
    }
}

/// Record of a container, which exists from before any resource of it is created until all are removed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ContainerRecord {
    /// 64 hexadecimal digits.
    pub id: String,
    pub name: String,
    /// The only owner who may use the container.
    pub owner: String,
    pub role: ContainerRole,
    pub image: String,
    /// The digest of the image's manifest.
    pub digest: String,
    pub created: Timestamp,
    pub runtime: OciRuntime,
    /// Cgroup, as in `linux.cgroupsPath`; empty without a cgroup of its own.
    pub cgroup: String,
    /// Id of the network, if the engine created it.
    pub network: Option<String>,
    /// Directory of the root file system and volumes.
    pub disk: PathBuf,
    /// Maximum size of the kept output.
    pub log_bytes: u64,
    /// First process, once the container has started.
    pub process: Option<ProcessIdentity>,
    /// Way to stop the container; `None` to kill it at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<StopPolicy>,
    /// Protocol by which the first process starts steps, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<StepSupport>,
}

/// Protocol by which a container's first process starts steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepSupport {
    /// Oldest and newest supported version of the protocol.
    pub versions: (u16, u16),
}

impl StepSupport {
    /// Returns the protocol for the first process of a new container.
    pub(super) fn of_this_version() -> Self {
        StepSupport { versions: (VERSIONS.oldest, VERSIONS.newest) }
    }

    /// Returns whether this program supports one of the versions.
    pub fn is_understood(self) -> bool {
        let (oldest, newest) = self.versions;
        VERSIONS.common_version(Hello { oldest, newest }).is_some()
    }
}

/// End of a container's first process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedEnd {
    /// Exit code, or 128 plus the signal that ended it.
    pub code: i32,
    pub at: Timestamp,
}

/// Files of a container that are cleared on reboot.
#[derive(Clone, Debug)]
pub struct RecordDirectory {
    path: PathBuf,
}

impl RecordDirectory {
    /// Returns the directory of a container below the engine's run directory.
    pub fn of(run: &Path, id: &str) -> Self {
        RecordDirectory { path: containers_dir(run).join(id) }
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the run directory that contains this directory.
    pub(super) fn run(&self) -> &Path {
        self.path.ancestors().nth(2).unwrap_or(Path::new("/"))
    }

    /// Returns the bundle for the runtime.
    pub fn bundle(&self) -> PathBuf {
        self.path.join("bundle")
    }

    /// Returns the file to which the runtime writes the PID.
    pub fn pid_file(&self) -> PathBuf {
        self.path.join("pid")
    }

    /// Returns the runtime's own log.
    pub fn runtime_log(&self) -> PathBuf {
        self.path.join("runtime.log")
    }

    /// Returns the log of the container's output.
    pub fn log(&self) -> PathBuf {
        self.path.join("log")
    }

    /// Creates the directory with its record. The caller keeps other processes from looking for orphans.
    pub(super) fn create(&self, record: &ContainerRecord) -> Result<(), ContainerError> {
        make_private(&self.path)?;
        self.write(record)
    }

    /// Writes the record, replacing an earlier one atomically.
    pub(super) fn write(&self, record: &ContainerRecord) -> Result<(), ContainerError> {
        write_record(&self.path.join("record.json"), record)
    }

    /// Reads the record, within a limit of its size.
    pub fn read(&self) -> Result<ContainerRecord, ContainerError> {
        read_json(&self.path.join("record.json"))
    }

    /// Records the end of the first process.
    pub(super) fn write_end(&self, ended: &RecordedEnd) -> Result<(), ContainerError> {
        write_json(&self.path.join("end.json"), ended)
    }

    /// Returns the end of the first process, if it has ended and had a monitor.
    pub fn end(&self) -> Option<RecordedEnd> {
        read_json(&self.path.join("end.json")).ok()
    }

    /// Returns the process whose PID the runtime wrote, if it runs and belongs to the container: after its
    /// end, another process may have the PID.
    pub(super) fn process(&self, id: &str) -> Option<ProcessIdentity> {
        let process = ProcessIdentity::of(self.pid()?)?;
        // If it still runs, it was the same process all along.
        (belongs_to(process.pid, id) && process.is_running()).then_some(process)
    }

    /// Returns the process whose PID the runtime wrote, if it is a child of this process or an
    /// orphan that this process adopts.
    pub(super) fn child(&self) -> Option<ProcessIdentity> {
        ProcessIdentity::of_child(self.pid()?)
    }

    fn pid(&self) -> Option<u32> {
        fs::read_to_string(self.pid_file()).ok()?.trim().parse().ok()
    }
}

/// Returns the directory of all containers' directories.
fn containers_dir(run: &Path) -> PathBuf {
    run.join("containers")
}

/// Returns the records of all containers, the oldest first, without unreadable records: their
/// containers are being created or removed, or are found as orphans.
pub fn records(run: &Path) -> Result<Vec<ContainerRecord>, ContainerError> {
    let mut records = Vec::new();
    for id in ids(run)? {
        records.extend(RecordDirectory::of(run, &id).read());
    }
    records.sort_by_key(|record| record.created);
    Ok(records)
}

/// Returns the ids of containers that cannot be used any more: their record is corrupt, or missing
/// because its writer was killed. Records of other versions do not count.
pub fn orphans(run: &Path) -> Result<Vec<String>, ContainerError> {
    let mut ids = ids(run)?;
    ids.retain(|id| {
        RecordDirectory::of(run, id).read().is_err_and(|error| !error.is_of_other_version())
    });
    Ok(ids)
}

/// Returns the ids of containers whose record another version of this program wrote.
pub fn find_other_versions(run: &Path) -> Result<Vec<String>, ContainerError> {
    let mut ids = ids(run)?;
    ids.retain(|id| {
        RecordDirectory::of(run, id).read().is_err_and(|error| error.is_of_other_version())
    });
    Ok(ids)
}

/// Returns the errors of reading unreadable records.
pub fn find_unreadable(run: &Path) -> Result<Vec<ContainerError>, ContainerError> {
    let errors = ids(run)?.into_iter().filter_map(|id| RecordDirectory::of(run, &id).read().err());
    Ok(errors.filter(ContainerError::is_unreadable_record).collect())
}

/// Returns the ids of all containers with a directory, whatever is in it.
pub fn ids(run: &Path) -> Result<Vec<String>, ContainerError> {
    Ok(names_in(&containers_dir(run))?)
}

/// Writes a record with its version, atomically.
pub fn write_record(path: &Path, value: &impl Serialize) -> Result<(), ContainerError> {
    Ok(replace_unsynced(path, &encode(value), 0o600)?)
}

/// Writes a value as JSON without a version, atomically.
pub fn write_json(path: &Path, value: &impl Serialize) -> Result<(), ContainerError> {
    let text = serde_json::to_vec(value).expect("these are values that JSON has");
    Ok(replace_unsynced(path, &text, 0o600)?)
}

/// Reads a value that [`write_json`] or [`write_record`] wrote.
pub fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, ContainerError> {
    Ok(decode(path, &read_bounded(path, MAX_RECORD_BYTES)?)?)
}

/// Reads a value as `read_json` does; `None` if the file does not exist.
pub fn read_json_if_there<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, ContainerError> {
    let text = read_if_there(path, MAX_RECORD_BYTES)?;
    Ok(text.map(|text| decode(path, &text)).transpose()?)
}

/// An action on a container: a health check, or a lifecycle hook.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ContainerAction {
    /// Runs a program in the container, which must exit with code 0.
    Command(Vec<String>),
    /// Sends a request from the container's network; the status must be from 200 to 399, certificates are not verified.
    Http {
        /// `http` or `https`, with the host and the port.
        url: String,
        headers: Vec<(String, String)>,
    },
    /// Connects from the container's network.
    Tcp(SocketAddr),
    Sleep(Duration),
}

/// Way to stop a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopPolicy {
    /// `preStop` action, performed before the signal is sent.
    pub before: Option<ContainerAction>,
    /// Signal that asks the container to end; `None` if it ignores all signals.
    pub signal: Option<String>,
    /// Timeout of the action and the wait for the container's end, together.
    pub grace: Duration,
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub(crate) fn record(id: &str) -> ContainerRecord {
        ContainerRecord {
            id: id.into(),
            name: "job".into(),
            owner: "runner".into(),
            role: ContainerRole::Job,
            image: "busybox".into(),
            digest: "sha256:00".into(),
            created: Timestamp::UNIX_EPOCH,
            runtime: OciRuntime::new("/usr/bin/runc".into(), "/run/oci-hooks/runtime".into()),
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
        RecordDirectory::of(run.path(), "a").create(&record("a")).unwrap();
        fs::create_dir(run.path().join("containers/b")).unwrap();
        let found = records(run.path()).unwrap();
        assert_eq!(found.iter().map(|record| &record.id).collect::<Vec<_>>(), ["a"]);
        assert_eq!(orphans(run.path()).unwrap(), ["b"]);
    }

    #[test]
    fn corrupt_record_is_named() {
        let run = tempfile::tempdir().unwrap();
        let directory = RecordDirectory::of(run.path(), "a");
        directory.create(&record("a")).unwrap();
        fs::write(directory.path().join("record.json"), "{").unwrap();
        let error = directory.read().unwrap_err().to_string();
        assert!(
            error.ends_with("containers/a/record.json is damaged, or was written by another version of this program"),
            "{error}"
        );
        assert_eq!(orphans(run.path()).unwrap(), ["a"]);
        assert_eq!(find_unreadable(run.path()).unwrap().len(), 1);
    }

    #[test]
    fn record_of_another_version_is_no_orphan() {
        let run = tempfile::tempdir().unwrap();
        let directory = RecordDirectory::of(run.path(), "a");
        directory.create(&record("a")).unwrap();
        fs::write(directory.path().join("record.json"), r#"{"version": 9}"#).unwrap();
        assert!(orphans(run.path()).unwrap().is_empty());
        assert_eq!(find_unreadable(run.path()).unwrap().len(), 1);
    }
}
