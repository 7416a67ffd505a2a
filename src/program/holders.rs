//! The holders of an ordinary user's jobs: one for each owner of containers, found by every call that has to
//! do with them.
//!
//! ```text
//! RUN/KIND/OWNER.lock          held while a holder is found, made or ended
//! RUN/KIND/OWNER/holder.json   which process it is
//! RUN/KIND/OWNER/run/          records of its containers and networks
//! ROOT/KIND/OWNER/             root file systems and volumes of its containers
//! ```

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::paths::{self, PrivateError};
use super::place::Place;
use super::sections::Store;
use crate::container::{ContainerError, read_json_if_there, write_record};
use crate::sys::fs::{PathContext as _, PathError, make_private};
use crate::sys::identity::Identity;
use crate::sys::lock::FileLock;
use crate::sys::privilege::cgroup::Delegated;
use crate::sys::privilege::{
    Holder, Ids, Inside, Map, Privilege, PrivilegeError, Side, enter_new, exit_at_once,
};
use crate::sys::removal::remove_tree;

/// Why there is no holder.
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
}

/// What is known of a holder, from before it is made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HolderRecord {
    /// Whose containers are in it: a runner's, or an instance.
    pub owner: String,
    /// What people call the owner.
    pub name: String,
    /// The process on whose behalf there is a job; it is over when that has ended.
    pub worker: Option<Identity>,
    /// The holder; none until it is ready.
    pub process: Option<Identity>,
    /// How many user and group ids it has.
    pub ids: (u32, u32),
    pub cgroup: Option<PathBuf>,
}

impl HolderRecord {
    /// Returns the holder, if it runs.
    pub fn holder(&self) -> Option<Holder> {
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

/// The holders of a user.
#[derive(Clone, Debug)]
pub struct Holders {
    store: PathBuf,
    run: PathBuf,
    disk: PathBuf,
}

impl Holders {
    /// Returns those of a kind, such as `jobs`, whose images are in a store; makes its directories, for the
    /// user alone.
    pub fn new(store: &Store, kind: &str) -> Result<Self, HolderError> {
        paths::make_private(&store.run)?;
        let holders = Holders::existing(store, kind);
        make_private(&holders.run)?;
        make_private(&holders.disk)?;
        Ok(holders)
    }

    /// Returns those of a kind whose images are in a store, of which there need be none.
    pub fn existing(store: &Store, kind: &str) -> Self {
        let below = |dir: &Path| dir.join(kind);
        Holders { store: store.root.clone(), run: below(&store.run), disk: below(&store.root) }
    }

    /// Waits until no other call finds, makes or ends the holder of an owner.
    pub fn lock(&self, owner: &str) -> Result<FileLock, HolderError> {
        Ok(FileLock::passing(&self.lock_file(owner))?)
    }

    fn lock_file(&self, owner: &str) -> PathBuf {
        self.run.join(format!("{owner}.lock"))
    }

    /// Returns what is known of the holder of an owner; none if it has none.
    pub fn find(&self, owner: &str) -> Result<Option<HolderRecord>, HolderError> {
        Ok(read_json_if_there(&self.record(owner))?)
    }

    /// Returns what is known of all, and why the records of others cannot be read.
    pub fn all(&self) -> Result<(Vec<HolderRecord>, Vec<HolderError>), HolderError> {
        let (mut known, mut unreadable) = (Vec::new(), Vec::new());
        for owner in self.owners()? {
            match self.find(&owner) {
                Ok(record) => known.extend(record),
                Err(error) => unreadable.push(error),
            }
        }
        Ok((known, unreadable))
    }

    /// Returns the owners who have a holder or what one left, on the disk too.
    pub fn owners(&self) -> Result<Vec<String>, HolderError> {
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
    pub fn make(
        &self,
        owner: &str,
        name: &str,
        worker: Option<Identity>,
    ) -> Result<Holder, HolderError> {
        make_private(&self.run.join(owner).join("run"))?;
        make_private(&self.disk.join(owner))?;
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
        let new = Holder::make(&map, cgroup.as_ref())?;
        record.process = Some(new.holder().process);
        write_record(&self.record(owner), &record)?;
        Ok(new.keep()?)
    }

    /// Goes on inside of a holder. None if it has ended, or is about to: then it is waited for.
    pub fn enter(&self, holder: &Holder) -> Result<Option<Side>, HolderError> {
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
    pub fn enter_or_make(
        &self,
        found: Option<&HolderRecord>,
        owner: &str,
        name: &str,
        worker: Option<Identity>,
    ) -> Result<Side, HolderError> {
        if let Some(holder) = found.and_then(HolderRecord::holder)
            && let Some(side) = self.enter(&holder)?
        {
            return Ok(side);
        }
        Ok(self.make(owner, name, worker)?.enter()?)
    }

    /// Ends the holder of an owner, whose lock is held, with all that runs there. Its files stay.
    pub fn end(&self, record: &HolderRecord) -> Result<(), HolderError> {
        let ended = record.holder().map_or(Ok(()), |holder| holder.end());
        let pid = record.process.map_or(0, |process| process.pid);
        ended.map_err(|source| HolderError::End { pid, source })
    }

    /// Forgets an owner, whose lock is held and whose holder has ended. The lock goes with it. This process must
    /// have no other thread.
    pub fn forget(&self, owner: &str, lock: FileLock) -> Result<(), HolderError> {
        let disk = self.disk.join(owner);
        // Named volumes stay for the runner's next job.
        let has_volumes =
            fs::read_dir(disk.join("volumes")).is_ok_and(|mut all| all.next().is_some());
        if !has_volumes {
            remove_owned(&disk)?;
        }
        // The record goes last: as long as there is anything, it is found.
        remove_tree(&self.run.join(owner))?;
        Ok(lock.remove(&self.lock_file(owner))?)
    }

    /// Removes the disks of owners of whom nothing is recorded, as after a boot. To be called where their
    /// files have their owners.
    pub fn remove_forgotten(&self) -> Result<(), HolderError> {
        for owner in self.owners()? {
            // It is made before the one on the disk.
            if !self.run.join(&owner).exists() {
                remove_tree(&self.disk.join(&owner))?;
            }
        }
        Ok(())
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
    pub fn place(&self, owner: &str, inside: Inside) -> Place {
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

    /// Returns where images are for a process that may do this: layers that were unpacked without owners are
    /// of no use to others.
    pub fn store_root(&self, privilege: Privilege) -> PathBuf {
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
