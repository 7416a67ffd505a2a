//! Pause processes of a rootless user's jobs: one for each owner of containers, which is a GitHub runner or a GARM
//! instance.
//!
//! ```text
//! RUN/KIND/OWNER.lock          held while a pause process is looked up, started or stopped
//! RUN/KIND/OWNER/pause.json    record: the pause process and its owner
//! RUN/KIND/OWNER/pause.lock    locked by the pause process, whose working directory is RUN/KIND/OWNER
//! RUN/KIND/OWNER/run/          records of the owner's containers and networks
//! ROOT/KIND/OWNER/             root file systems and volumes of the owner's containers
//! ```
//!
//! A corrupt record, or one from a newer version, blocks no call, because the process is also found by its directory. The
//! record must name that process, so a wrong record cannot cause another process to be killed.

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use oci_hooks_engine::container::{ContainerError, read_json_if_there, write_record};
use oci_hooks_files::fs::{PathError, entries_in, make_private};
use oci_hooks_files::lock::FileLock;
use oci_hooks_host::identity::ProcessIdentity;
use oci_hooks_host::privilege::{
    DelegatedCgroup, ForkSide, IdMaps, InsideProcess, MappedIds, PauseProcess, Privilege,
    PrivilegeError, enter_new, exit_at_once,
};
use oci_hooks_host::removal::{remove_tree, repair_lock_file};
use serde::{Deserialize, Serialize};

use super::super::paths::{self, PrivateDirError};
use super::super::sections::{StoreSection, StoreView};
use super::ContainerOwner;

/// Errors of finding, starting or stopping a pause process.
#[derive(Debug, thiserror::Error)]
pub enum PauseError {
    #[error(transparent)]
    Privilege(#[from] PrivilegeError),
    #[error(transparent)]
    Path(#[from] PathError),
    #[error(transparent)]
    Private(#[from] PrivateDirError),
    #[error(transparent)]
    Record(#[from] ContainerError),
    #[error("cannot stop the pause process of the job (process {pid})")]
    End { pid: u32, source: io::Error },
    #[error("{} is not the record of the pause process of {owner}: it names another owner or process", path.display())]
    Foreign { path: PathBuf, owner: String },
    #[error("{} is missing, but the pause process of {owner} is running", path.display())]
    Missing { path: PathBuf, owner: String },
    #[error(
        "cannot tell whether the job of {owner} is still running: the runner's next job removes it, or kill \
         process {pid} and prune again"
    )]
    Unclear { owner: String, pid: u32, source: Box<PauseError> },
}

/// Record of a pause process, written before the process is started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PauseRecord {
    pub owner: String,
    pub name: String,
    /// Process that the job's containers work for; the job is over when it has exited.
    pub worker: Option<ProcessIdentity>,
    /// Pause process; none until it is ready.
    pub process: Option<ProcessIdentity>,
    /// Number of user ids and of group ids mapped in its user namespace.
    pub ids: (u32, u32),
    pub cgroup: Option<PathBuf>,
}

impl PauseRecord {
    /// Returns the pause process, if it is running.
    fn pause_process(&self) -> Option<PauseProcess> {
        let process = self.process.filter(ProcessIdentity::is_running)?;
        let ids = MappedIds { uids: self.ids.0, gids: self.ids.1 };
        let privilege =
            if ids == MappedIds::SINGLE { Privilege::Single } else { Privilege::Mapped(ids) };
        Some(PauseProcess { process, privilege, cgroup: self.cgroup.clone() })
    }

    /// Returns whether the job is over because its worker process has exited.
    pub fn is_over(&self) -> bool {
        self.worker.is_none_or(|worker| !worker.is_running())
    }
}

/// Pause process of an owner, with its record.
#[derive(Debug)]
pub struct FoundPauseProcess {
    /// Pause process, if it is running.
    pub pause_process: Option<PauseProcess>,
    /// Record, or the reason why it cannot be read or trusted.
    pub record: Result<PauseRecord, PauseError>,
}

impl FoundPauseProcess {
    /// Stops the pause process, if it is running, with all processes in its PID namespace. Files are kept.
    pub fn end(&self) -> Result<(), PauseError> {
        let Some(pause_process) = &self.pause_process else { return Ok(()) };
        let pid = pause_process.process.pid;
        pause_process.end().map_err(|source| PauseError::End { pid, source })
    }

    /// Returns whether the record was written by a newer version of this program.
    pub fn is_newer(&self) -> bool {
        matches!(&self.record, Err(PauseError::Record(ContainerError::Record(error))) if error.is_newer())
    }
}

/// Pause processes of one kind of owners, such as `jobs`, with their directories.
#[derive(Clone, Debug)]
pub struct PauseProcesses {
    store: PathBuf,
    run: PathBuf,
    disk: PathBuf,
}

impl PauseProcesses {
    /// Returns the pause processes of a kind, with their images in `store`.
    pub(super) fn new(store: &StoreSection, kind: &str) -> Self {
        let below = |dir: &Path| dir.join(kind);
        PauseProcesses {
            store: store.root.clone(),
            run: below(&store.run),
            disk: below(&store.root),
        }
    }

    /// Creates the directories of pause processes, accessible only to the user.
    pub(super) fn make_directories(&self, store: &StoreSection) -> Result<(), PauseError> {
        paths::make_private(&store.run)?;
        make_private(&self.run)?;
        Ok(make_private(&self.disk)?)
    }

    /// Locks an owner, so that no other call finds, starts or stops its pause process; fails after `within`.
    pub fn lock(&self, owner: &str, within: Duration) -> Result<FileLock, PauseError> {
        let path = self.lock_file(owner);
        repair_lock_file(&path, within)?;
        Ok(FileLock::acquire_removable(&path, within)?)
    }

    fn lock_file(&self, owner: &str) -> PathBuf {
        self.run.join(format!("{owner}.lock"))
    }

    /// Finds the pause process of an owner by its record and directory; none if it has neither.
    pub fn find(&self, owner: &str) -> Option<FoundPauseProcess> {
        let path = self.record(owner);
        // Before the record is read: a recorded process that is no longer found is exiting.
        let running = PauseProcess::of_directory(&self.run.join(owner));
        let owner = owner.to_owned();
        let record = match read_json_if_there::<PauseRecord>(&path) {
            Ok(Some(record)) => record,
            Ok(None) => {
                return running.map(|pause_process| FoundPauseProcess {
                    pause_process: Some(pause_process),
                    record: Err(PauseError::Missing { path, owner }),
                });
            }
            Err(error) => {
                return Some(FoundPauseProcess {
                    pause_process: running,
                    record: Err(error.into()),
                });
            }
        };
        let pause_process = record.pause_process();
        let is_it = |pause_process: &PauseProcess| {
            let process = pause_process.process;
            running.as_ref().is_some_and(|it| it.process == process) || !process.is_working()
        };
        Some(match record.owner == owner && pause_process.as_ref().is_none_or(is_it) {
            true => FoundPauseProcess { pause_process, record: Ok(record) },
            false => FoundPauseProcess {
                pause_process: running,
                record: Err(PauseError::Foreign { path, owner }),
            },
        })
    }

    /// Finds the pause processes of all owners.
    pub(super) fn find_all(&self) -> Result<Vec<(String, FoundPauseProcess)>, PauseError> {
        let owners = self.owners()?.into_iter();
        Ok(owners.filter_map(|owner| self.find(&owner).map(|found| (owner, found))).collect())
    }

    /// Returns the readable records of all pause processes.
    pub fn records(&self) -> Result<Vec<PauseRecord>, PauseError> {
        Ok(self.find_all()?.into_iter().filter_map(|(_, found)| found.record.ok()).collect())
    }

    /// Returns the ids of owners that have a directory of records, or one of root file systems and volumes.
    pub fn owners(&self) -> Result<Vec<String>, PauseError> {
        let mut owners = Vec::new();
        for dir in [&self.run, &self.disk] {
            let entries = entries_in(dir)?.into_iter();
            let dirs = entries.filter(|e| e.file_type().is_ok_and(|kind| kind.is_dir()));
            owners.extend(dirs.filter_map(|entry| entry.file_name().into_string().ok()));
        }
        owners.sort();
        owners.dedup();
        Ok(owners)
    }

    /// Starts a pause process for an owner, and replaces the record of an earlier one. The caller holds the owner's
    /// lock.
    fn make(&self, owner: ContainerOwner<'_>) -> Result<PauseProcess, PauseError> {
        let ContainerOwner { id: owner, name, worker } = owner;
        make_private(&self.run.join(owner).join("run"))?;
        make_private(&self.disk.join(owner))?;
        // The path may have been replaced by something other than a file.
        remove_tree(&self.record(owner))?;
        let map = IdMaps::of_process()?;
        let cgroup =
            DelegatedCgroup::find().map(|delegated| delegated.prepare(owner)).transpose()?;
        let mut record = PauseRecord {
            owner: owner.to_owned(),
            name: name.to_owned(),
            worker,
            process: None,
            ids: map.privilege().ids().map_or((0, 0), |ids| (ids.uids, ids.gids)),
            cgroup: cgroup.as_ref().map(|cgroup| cgroup.path().to_owned()),
        };
        write_record(&self.record(owner), &record)?;
        let new = PauseProcess::make(&map, cgroup.as_ref(), Some(&self.run.join(owner)))?;
        record.process = Some(new.pause_process().process);
        write_record(&self.record(owner), &record)?;
        Ok(new.keep()?)
    }

    /// Enters the namespaces of a pause process. If the process is exiting, waits for its exit and returns none.
    pub(super) fn enter(
        &self,
        pause_process: &PauseProcess,
    ) -> Result<Option<ForkSide>, PauseError> {
        let pid = pause_process.process.pid;
        match pause_process.enter() {
            Err(PrivilegeError::Ended { .. }) => {
                pause_process.end().map_err(|source| PauseError::End { pid, source })?;
                Ok(None)
            }
            entered => Ok(Some(entered?)),
        }
    }

    /// Enters the namespaces of the pause process in `found`, if it is running, or of a new one. The caller holds the
    /// owner's lock.
    pub(super) fn enter_or_make(
        &self,
        found: Option<&FoundPauseProcess>,
        owner: ContainerOwner<'_>,
    ) -> Result<ForkSide, PauseError> {
        if let Some(pause_process) = found.and_then(|found| found.pause_process.as_ref())
            && let Some(side) = self.enter(pause_process)?
        {
            return Ok(side);
        }
        Ok(self.make(owner)?.enter()?)
    }

    /// If the job is over, stops the pause process of an owner and removes the owner's directories. The caller holds
    /// the lock.
    pub fn end_if(&self, owner: &str, lock: FileLock, is_over: bool) -> Result<(), PauseError> {
        if is_over {
            if let Some(found) = self.find(owner) {
                found.end()?;
            }
            self.forget(owner, lock)?;
        }
        Ok(())
    }

    /// Removes the directories and the lock file of an owner, whose pause process has exited; keeps
    /// named volumes. The caller holds the lock. This process must have no other thread.
    pub(super) fn forget(&self, owner: &str, lock: FileLock) -> Result<(), PauseError> {
        // Named volumes are kept for the runner's next job.
        if !self.has_volumes(owner) {
            remove_owned(&self.disk.join(owner))?;
        }
        // The record is removed last, so that the owner is found as long as it has files.
        remove_tree(&self.run.join(owner))?;
        Ok(lock.remove(&self.lock_file(owner))?)
    }

    /// Removes the directories `ROOT/KIND/OWNER` of owners without a run directory, for example
    /// after a reboot, with named volumes. The user namespace of this process must map the owners
    /// of their files.
    pub fn remove_forgotten(&self) -> Result<(), PauseError> {
        for owner in self.owners()? {
            // The run directory is created before the one on the disk.
            if !self.run.join(&owner).exists() {
                remove_tree(&self.disk.join(&owner))?;
            }
        }
        Ok(())
    }

    /// Returns whether an owner has named volumes.
    pub(super) fn has_volumes(&self, owner: &str) -> bool {
        let volumes = self.disk.join(owner).join("volumes");
        fs::read_dir(volumes).is_ok_and(|mut all| all.next().is_some())
    }

    /// Returns whether an owner has records of jobs or containers.
    pub fn has_job(&self, owner: &str) -> bool {
        let run = self.run_of(owner);
        ["jobs", "containers"].iter().any(|name| {
            let entries = fs::read_dir(run.join(name)).into_iter().flatten().flatten();
            entries.into_iter().any(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        })
    }

    /// Returns the engine's run directory for an owner, with the records of its containers and networks.
    pub fn run_of(&self, owner: &str) -> PathBuf {
        self.run.join(owner).join("run")
    }

    /// Returns the directories and privilege of a process in an owner's namespaces.
    pub(super) fn place(&self, owner: &str, inside: InsideProcess) -> StoreView {
        StoreView {
            privilege: inside.privilege,
            has_cgroup: inside.has_cgroup,
            run: Some(self.run_of(owner)),
            disk: Some(self.disk.join(owner)),
        }
    }

    fn record(&self, owner: &str) -> PathBuf {
        self.run.join(owner).join("pause.json")
    }

    /// Returns the directory of the image store for a process with this privilege. Layers unpacked
    /// with a single mapped id have lost the owners of their files, so they have a directory of
    /// their own.
    pub(super) fn store_root(&self, privilege: Privilege) -> PathBuf {
        match privilege {
            Privilege::Single => self.store.join("single"),
            Privilege::Root | Privilege::Mapped(_) => self.store.clone(),
        }
    }
}

/// Enters a new user namespace as user 0, for the duration of a command. It maps the owners of the
/// store's files; the network stays the host's.
pub fn enter_store(store: &StoreSection) -> Result<ForkSide, PauseError> {
    paths::make_private(&store.run)?;
    make_private(&store.root)?;
    Ok(enter_new(&IdMaps::of_process()?)?)
}

/// Removes a directory whose files may belong to subordinate ids of this user: in a new user namespace, if the user
/// cannot remove all files outside.
fn remove_owned(directory: &Path) -> Result<(), PauseError> {
    match remove_tree(directory) {
        Err(error) if error.source.kind() == io::ErrorKind::PermissionDenied => {}
        removed => return Ok(removed?),
    }
    match enter_new(&IdMaps::of_process()?)? {
        ForkSide::Inside(_) => exit_at_once(i32::from(remove_tree(directory).is_err())),
        ForkSide::Outside(child) => drop(child.wait(None, |_| ())),
    }
    // If the copy failed, this returns the error.
    Ok(remove_tree(directory)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_lock_is_repaired_by_one_call_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let [store, run, disk] = [(); 3].map(|()| dir.path().to_owned());
        let processes = PauseProcesses { store, run, disk };
        let lock = processes.lock_file("owner");
        fs::create_dir(&lock).unwrap();
        let other = fs::File::open(dir.path()).unwrap();
        other.lock().unwrap();
        assert!(processes.lock("owner", Duration::ZERO).is_err());
        assert!(lock.is_dir());
        drop(other);
        processes.lock("owner", Duration::ZERO).unwrap();
        assert!(lock.is_file());
    }
}
