//! The holders of an ordinary user's jobs: one for each owner of containers, found by every call that has to
//! do with them.
//!
//! ```text
//! RUN/KIND/OWNER.lock          held while a holder is found, made or ended
//! RUN/KIND/OWNER/holder.json   which process it is, and for whom
//! RUN/KIND/OWNER/holder.lock   locked by that process
//! RUN/KIND/OWNER/run/          records of its containers and networks
//! ROOT/KIND/OWNER/             root file systems and volumes of its containers
//! ```
//!
//! A damaged record, or one of a newer version, blocks no call: the lock names the process of the holder. A record
//! has to agree with it, so that a wrong record cannot have another process killed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::super::paths::{self, PrivateError};
use super::super::sections::{Place, Store};
use super::Owner;
use crate::container::{ContainerError, read_json_if_there, write_record};
use crate::sys::fs::{PathContext as _, PathError, make_private};
use crate::sys::identity::Identity;
use crate::sys::lock::FileLock;
use crate::sys::privilege::cgroup::Delegated;
use crate::sys::privilege::{
    Holder, Ids, Inside, Map, Privilege, PrivilegeError, Side, enter_new, exit_at_once, make_lock,
};
use crate::sys::removal::remove_tree;

/// A holder cannot be found, made or ended.
#[derive(Debug, thiserror::Error)]
pub enum HolderError {
    #[error(transparent)]
    Privilege(#[from] PrivilegeError),
    #[error(transparent)]
    Path(#[from] PathError),
    #[error(transparent)]
    Private(#[from] PrivateError),
    #[error(transparent)]
    Record(#[from] ContainerError),
    #[error("cannot end the holder of the job (process {pid})")]
    End { pid: u32, source: io::Error },
    #[error("{} is not the record of the holder of {owner}: it is about another one, or another process", path.display())]
    Foreign { path: PathBuf, owner: String },
    #[error("{} is missing, and the holder of {owner} runs", path.display())]
    Missing { path: PathBuf, owner: String },
    #[error(
        "cannot tell whether the job of {owner} is over, which runs: its runner's next job removes it; or end \
         process {pid} and prune again"
    )]
    Unclear { owner: String, pid: u32, source: Box<HolderError> },
}

/// The record of a holder, written before the holder is made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HolderRecord {
    /// The id of the owner.
    pub owner: String,
    /// The name of the owner.
    pub name: String,
    /// The process on whose behalf there is a job; it is over when that has ended.
    pub worker: Option<Identity>,
    /// The holder; none until it is ready.
    pub process: Option<Identity>,
    /// The numbers of user and group ids that it has.
    pub ids: (u32, u32),
    pub cgroup: Option<PathBuf>,
}

impl HolderRecord {
    /// Returns the holder, if the process runs that is recorded.
    fn holder(&self) -> Option<Holder> {
        let process = self.process.filter(Identity::is_running)?;
        let ids = Ids { uids: self.ids.0, gids: self.ids.1 };
        let privilege = if ids == Ids::SINGLE { Privilege::Single } else { Privilege::Mapped(ids) };
        Some(Holder { process, privilege, cgroup: self.cgroup.clone() })
    }

    /// Returns whether the process on whose behalf there is a job has ended.
    pub fn is_over(&self) -> bool {
        self.worker.is_none_or(|worker| !worker.is_running())
    }
}

/// The holder of an owner, as it is found.
#[derive(Debug)]
pub struct Found {
    /// The holder, if it runs.
    pub holder: Option<Holder>,
    /// Its record, or why the record cannot be read or trusted.
    pub record: Result<HolderRecord, HolderError>,
}

impl Found {
    /// Ends the holder, if it runs, with all that runs there. Its files stay.
    pub fn end(&self) -> Result<(), HolderError> {
        let Some(holder) = &self.holder else { return Ok(()) };
        let pid = holder.process.pid;
        holder.end().map_err(|source| HolderError::End { pid, source })
    }

    /// Returns whether a newer version of this program wrote the record.
    pub fn is_newer(&self) -> bool {
        matches!(&self.record, Err(HolderError::Record(ContainerError::Record(error))) if error.is_newer())
    }
}

/// The holders of a user.
#[derive(Clone, Debug)]
pub struct Holders {
    store: PathBuf,
    run: PathBuf,
    disk: PathBuf,
}

impl Holders {
    /// Returns the holders of a kind whose images are in a store.
    pub(super) fn new(store: &Store, kind: &str) -> Self {
        let below = |dir: &Path| dir.join(kind);
        Holders { store: store.root.clone(), run: below(&store.run), disk: below(&store.root) }
    }

    /// Makes the directories of holders, for the user alone.
    pub(super) fn make_directories(&self, store: &Store) -> Result<(), HolderError> {
        paths::make_private(&store.run)?;
        make_private(&self.run)?;
        Ok(make_private(&self.disk)?)
    }

    /// Waits at most so long until no other call finds, makes or ends the holder of an owner.
    pub fn lock(&self, owner: &str, within: Duration) -> Result<FileLock, HolderError> {
        Ok(FileLock::passing(&self.lock_file(owner), within)?)
    }

    fn lock_file(&self, owner: &str) -> PathBuf {
        self.run.join(format!("{owner}.lock"))
    }

    /// Returns what is found of the holder of an owner; none if it has none.
    pub fn find(&self, owner: &str) -> Option<Found> {
        let path = self.record(owner);
        // Asked first: who has no lock any more by the time the record is read is about to end.
        let locked = Holder::of_lock(&self.lock_of_holder(owner));
        let owner = owner.to_owned();
        let record = match read_json_if_there::<HolderRecord>(&path) {
            Ok(Some(record)) => record,
            Ok(None) => {
                return locked.map(|holder| Found {
                    holder: Some(holder),
                    record: Err(HolderError::Missing { path, owner }),
                });
            }
            Err(error) => return Some(Found { holder: locked, record: Err(error.into()) }),
        };
        let holder = record.holder();
        let is_it = |holder: &Holder| {
            let process = holder.process;
            locked.as_ref().is_some_and(|it| it.process == process) || !process.is_working()
        };
        Some(match record.owner == owner && holder.as_ref().is_none_or(is_it) {
            true => Found { holder, record: Ok(record) },
            false => Found { holder: locked, record: Err(HolderError::Foreign { path, owner }) },
        })
    }

    /// Returns what is found of each owner's holder.
    pub(super) fn all(&self) -> Result<Vec<(String, Found)>, HolderError> {
        let owners = self.owners()?.into_iter();
        Ok(owners.filter_map(|owner| self.find(&owner).map(|found| (owner, found))).collect())
    }

    /// Returns what is recorded of all holders.
    pub fn records(&self) -> Result<Vec<HolderRecord>, HolderError> {
        Ok(self.all()?.into_iter().filter_map(|(_, found)| found.record.ok()).collect())
    }

    /// Returns the owners who have a holder or what one left, on the disk too.
    pub(super) fn owners(&self) -> Result<Vec<String>, HolderError> {
        let mut owners = Vec::new();
        for dir in [&self.run, &self.disk] {
            let entries = match fs::read_dir(dir) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                entries => entries.at("list", dir)?,
            };
            let dirs = entries.flatten().filter(|e| e.file_type().is_ok_and(|kind| kind.is_dir()));
            owners.extend(dirs.filter_map(|entry| entry.file_name().into_string().ok()));
        }
        owners.sort();
        owners.dedup();
        Ok(owners)
    }

    /// Makes the holder of an owner, whose lock is held; what is recorded of an earlier one is forgotten.
    fn make(&self, owner: Owner<'_>) -> Result<Holder, HolderError> {
        let Owner { id: owner, name, worker } = owner;
        make_private(&self.run.join(owner).join("run"))?;
        make_private(&self.disk.join(owner))?;
        // Whatever else was put there.
        remove_tree(&self.record(owner))?;
        let lock = make_lock(&self.lock_of_holder(owner))?;
        let map = Map::of_process()?;
        let cgroup = Delegated::find().map(|delegated| delegated.prepare(owner)).transpose()?;
        let mut record = HolderRecord {
            owner: owner.to_owned(),
            name: name.to_owned(),
            worker,
            process: None,
            ids: map.privilege().ids().map_or((0, 0), |ids| (ids.uids, ids.gids)),
            cgroup: cgroup.as_ref().map(|cgroup| cgroup.path().to_owned()),
        };
        write_record(&self.record(owner), &record)?;
        let new = Holder::make(&map, cgroup.as_ref(), Some(&lock))?;
        record.process = Some(new.holder().process);
        write_record(&self.record(owner), &record)?;
        Ok(new.keep()?)
    }

    /// Goes on inside of a holder. None if it has ended, or is about to: then it is waited for.
    pub(super) fn enter(&self, holder: &Holder) -> Result<Option<Side>, HolderError> {
        let pid = holder.process.pid;
        match holder.enter() {
            Err(PrivilegeError::Ended { .. }) => {
                holder.end().map_err(|source| HolderError::End { pid, source })?;
                Ok(None)
            }
            entered => Ok(Some(entered?)),
        }
    }

    /// Goes on inside of the holder of an owner, whose lock is held: of the one that was found, if it runs, or of
    /// a new one.
    pub(super) fn enter_or_make(
        &self,
        found: Option<&Found>,
        owner: Owner<'_>,
    ) -> Result<Side, HolderError> {
        if let Some(holder) = found.and_then(|found| found.holder.as_ref())
            && let Some(side) = self.enter(holder)?
        {
            return Ok(side);
        }
        Ok(self.make(owner)?.enter()?)
    }

    /// Ends the holder of an owner, whose lock is held, and forgets the owner, if its job is over.
    pub fn end_if(&self, owner: &str, lock: FileLock, is_over: bool) -> Result<(), HolderError> {
        if is_over {
            if let Some(found) = self.find(owner) {
                found.end()?;
            }
            self.forget(owner, lock)?;
        }
        Ok(())
    }

    /// Forgets an owner, whose lock is held and whose holder has ended. The lock goes with it. This process must
    /// have no other thread.
    pub(super) fn forget(&self, owner: &str, lock: FileLock) -> Result<(), HolderError> {
        // Named volumes stay for the runner's next job.
        if !self.has_volumes(owner) {
            remove_owned(&self.disk.join(owner))?;
        }
        // The record goes last: as long as there is anything, it is found.
        remove_tree(&self.run.join(owner))?;
        Ok(lock.remove(&self.lock_file(owner))?)
    }

    /// Removes the disks of owners without a record, as after a boot. Files need to have their owners here.
    pub fn remove_forgotten(&self) -> Result<(), HolderError> {
        for owner in self.owners()? {
            // It is made before the one on the disk.
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

    /// Returns whether containers or a job of an owner are recorded.
    pub fn has_job(&self, owner: &str) -> bool {
        let run = self.run_of(owner);
        ["jobs", "containers"].iter().any(|name| {
            let entries = fs::read_dir(run.join(name)).into_iter().flatten().flatten();
            entries.into_iter().any(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        })
    }

    /// Returns where the records of an owner's containers and networks are.
    pub fn run_of(&self, owner: &str) -> PathBuf {
        self.run.join(owner).join("run")
    }

    /// Returns the place of a process that went on inside of an owner's holder, and the store's directory.
    pub(super) fn place(&self, owner: &str, inside: Inside) -> Place {
        Place {
            privilege: inside.privilege,
            has_cgroup: inside.has_cgroup,
            run: Some(self.run_of(owner)),
            disk: Some(self.disk.join(owner)),
        }
    }

    fn record(&self, owner: &str) -> PathBuf {
        self.run.join(owner).join("holder.json")
    }

    fn lock_of_holder(&self, owner: &str) -> PathBuf {
        self.run.join(owner).join("holder.lock")
    }

    /// Returns where images are for a process that may do this: layers that were unpacked without owners are
    /// of no use to others.
    pub(super) fn store_root(&self, privilege: Privilege) -> PathBuf {
        match privilege {
            Privilege::Single => self.store.join("single"),
            Privilege::Root | Privilege::Mapped(_) => self.store.clone(),
        }
    }
}

/// Goes on as user 0 of a user namespace in which the store's files have their owners, in the host's
/// network, as long as a command takes.
pub fn enter_store(store: &Store) -> Result<Side, HolderError> {
    paths::make_private(&store.run)?;
    make_private(&store.root)?;
    Ok(enter_new(&Map::of_process()?)?)
}

/// Removes a directory whose files may belong to any id of this user: where they have their owners, if what is in
/// it is not all this user's to remove.
fn remove_owned(directory: &Path) -> Result<(), HolderError> {
    match remove_tree(directory) {
        Err(error) if error.source.kind() == io::ErrorKind::PermissionDenied => {}
        removed => return Ok(removed?),
    }
    match enter_new(&Map::of_process()?)? {
        Side::Inside(_) => exit_at_once(i32::from(remove_tree(directory).is_err())),
        Side::Outside(attendant) => drop(attendant.wait(None, |_| ())),
    }
    // If that did not do it, this says what is left and why.
    Ok(remove_tree(directory)?)
}
