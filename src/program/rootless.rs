//! The namespaces of an ordinary user's containers, and the one way into them.
//!
//! An owner is what containers belong to: a runner of GitHub, or an instance of GARM. For root, the containers
//! of all owners are where this process is. For an ordinary user, each owner has user, mount, PID and network
//! namespaces, which a holder keeps ([`Holders`]): a copy of this process enters them and goes on there, and
//! this process waits for it ([`Entered`]).

mod holders;

use std::fs::File;
use std::io::{self, Seek as _};

use serde::Serialize;
use serde::de::DeserializeOwned;

pub use holders::{Found, HolderError, HolderRecord, Holders};

use super::exit::Exit;
use super::sections::{Place, Store};
use crate::sys::error::{chain, has_timed_out};
use crate::sys::identity::Identity;
use crate::sys::lock::{LONG, PASSING_BY};
use crate::sys::privilege::{
    Attendant, Inside, Map, Privilege, Side, enter_new, exit_at_once, missing_in_container,
};
use crate::sys::record::NewerRecords;
use crate::sys::spawn::memory_file;

/// The exit code of a process that SIGKILL ended.
const KILLED: Exit = Exit::Code(128 + 9);

/// Why nothing could be done where an owner's containers are.
#[derive(Debug, thiserror::Error)]
pub enum RootlessError {
    #[error(transparent)]
    Holder(#[from] HolderError),
    #[error("{0}")]
    Inside(String),
    #[error("no answer came from the namespaces of {owner}")]
    NoAnswer { owner: String, source: io::Error },
}

/// What became of a process that is to go on where containers are.
#[derive(Debug)]
#[must_use]
pub enum Entered {
    /// It goes on, with a store for that place.
    Inside(Box<Store>),
    /// A copy went on inside, and ended with this code.
    Ended(Exit),
}

/// What containers belong to.
#[derive(Clone, Copy, Debug)]
pub struct Owner<'a> {
    pub id: &'a str,
    /// The name that users know.
    pub name: &'a str,
    /// The process that the containers work for; the owner's job is over when it has ended.
    pub worker: Option<Identity>,
}

/// Which namespaces of an owner a process enters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// New ones; a holder that runs is ended first.
    New,
    /// Those of the holder that runs, or new ones.
    Current,
    /// The same, and once more new ones if the holder is killed meanwhile.
    Cleanup,
    /// Those of the holder that runs, or new ones, while other calls wait.
    Exclusive,
}

/// All owners of one kind.
#[derive(Clone, Debug)]
pub struct Owners {
    store: Store,
    /// None for root.
    holders: Option<Holders>,
    /// Waits for a copy of this process, and passes signals on to it.
    attend: fn(Attendant) -> Exit,
}

impl Owners {
    /// Returns the owners of a kind, such as `jobs`, whose images are in a store.
    pub fn new(store: &Store, kind: &str, attend: fn(Attendant) -> Exit) -> Self {
        let holders = (!Privilege::is_root_of_host()).then(|| Holders::new(store, kind));
        Owners { store: store.clone(), holders, attend }
    }

    /// Returns the holders of an ordinary user's owners; none for root.
    pub fn holders(&self) -> Option<&Holders> {
        self.holders.as_ref()
    }

    /// Goes on where the files of images have their owners, in the network of the host.
    pub fn enter_store(&self) -> Result<Entered, RootlessError> {
        let Some(holders) = &self.holders else { return Ok(self.here()) };
        match holders::enter_store(&self.store)? {
            Side::Inside(inside) => {
                let mut store = self.store.clone();
                store.root = holders.store_root(inside.privilege);
                store.place.privilege = inside.privilege;
                store.place.has_cgroup = inside.has_cgroup;
                Ok(Entered::Inside(Box::new(store)))
            }
            Side::Outside(attendant) => Ok(Entered::Ended((self.attend)(attendant))),
        }
    }

    /// Goes on where an owner's containers are. Outside, the holder is ended afterwards if `is_over`.
    pub fn enter(
        &self,
        owner: Owner<'_>,
        entry: Entry,
        is_over: impl Fn(&Holders) -> bool,
    ) -> Result<Entered, RootlessError> {
        let Some(holders) = &self.holders else { return Ok(self.here()) };
        holders.make_directories(&self.store)?;
        let mut anew = entry == Entry::New;
        loop {
            let lock = holders.lock(owner.id, LONG)?;
            let mut found = holders.find(owner.id);
            if anew && let Some(found) = found.take() {
                found.end()?;
            }
            let attendant = match holders.enter_or_make(found.as_ref(), owner)? {
                Side::Inside(inside) => {
                    let store = self.store_inside(holders, owner.id, inside);
                    return Ok(Entered::Inside(Box::new(store)));
                }
                Side::Outside(attendant) => attendant,
            };
            let lock = (entry == Entry::Exclusive).then_some(lock);
            let ended = (self.attend)(attendant);
            // A holder that is killed takes the processes inside along. What they left is removed from new
            // namespaces; the result of a step or of a new job is lost.
            if entry == Entry::Cleanup && ended == KILLED && !anew {
                anew = true;
                continue;
            }
            let lock = lock.map_or_else(|| holders.lock(owner.id, LONG), Ok)?;
            holders.end_if(owner.id, lock, is_over(holders))?;
            return Ok(Entered::Ended(ended));
        }
    }

    /// Returns the store of each owner that has records, as this process sees it from outside.
    pub fn stores(&self) -> Result<Vec<Store>, RootlessError> {
        let mut all = match &self.holders {
            None => vec![self.store.clone()],
            Some(holders) => {
                let Place { privilege, .. } = self.store.place;
                let inside = Inside { privilege, has_cgroup: false };
                let owners = holders.owners()?.into_iter();
                owners.map(|owner| self.store_inside(holders, &owner, inside)).collect()
            }
        };
        all.retain(|store| store.container_run().exists());
        Ok(all)
    }

    /// Returns what `work` returns in the namespaces of each holder that runs.
    pub fn in_each<T: Serialize + DeserializeOwned>(
        &self,
        work: impl Fn(&Store) -> Result<T, String>,
    ) -> Result<Vec<T>, RootlessError> {
        let Some(holders) = &self.holders else { return Ok(vec![self.work_here(&work)?]) };
        let mut all = Vec::new();
        for (owner, found) in holders.all()? {
            if let Some(holder) = &found.holder {
                all.extend(self.within(holders, &owner, || holders.enter(holder), &work)?);
            }
        }
        Ok(all)
    }

    /// Returns what `work` returns in the namespaces of an owner, whose lock is held; they are made if there are
    /// none.
    pub fn in_owner<T: Serialize + DeserializeOwned>(
        &self,
        holders: &Holders,
        owner: Owner<'_>,
        work: impl Fn(&Store) -> Result<T, String>,
    ) -> Result<T, RootlessError> {
        let enter = || holders.enter_or_make(holders.find(owner.id).as_ref(), owner).map(Some);
        let done = self.within(holders, owner.id, enter, &work)?;
        done.ok_or_else(|| no_answer(owner.id)(io::ErrorKind::UnexpectedEof.into()))
    }

    /// Returns what `work` returns for each owner whose job is over, in its namespaces or in new ones, which end
    /// afterwards; and why that cannot be told of others.
    pub fn in_abandoned<T: Serialize + DeserializeOwned>(
        &self,
        newer: NewerRecords,
        work: impl Fn(&Store) -> Result<T, String>,
    ) -> Result<(Vec<T>, Vec<String>), RootlessError> {
        let Some(holders) = &self.holders else {
            return Ok((vec![self.work_here(&work)?], Vec::new()));
        };
        holders.make_directories(&self.store)?;
        let (mut all, mut unreadable) = (Vec::new(), Vec::new());
        for owner in holders.owners()? {
            let lock = match holders.lock(&owner, PASSING_BY) {
                // A call of the owner is at work, or stopped.
                Err(error) if has_timed_out(&error) => {
                    unreadable.push(chain(&error));
                    continue;
                }
                lock => lock?,
            };
            let found = match holders.find(&owner).map(|found| over(&owner, found, newer)) {
                None => None,
                Some(Ok(Some(found))) => Some(found),
                Some(Ok(None)) => continue,
                Some(Err(error)) => {
                    unreadable.push(chain(&error));
                    continue;
                }
            };
            all.extend(self.clean_up(holders, &owner, found.as_ref(), &work)?);
            holders.end_if(&owner, lock, !holders.has_job(&owner))?;
        }
        Ok((all, unreadable))
    }

    /// Calls `work` as [`Owners::in_abandoned`] does, for other owners with the same name only.
    pub fn in_predecessors<T: Serialize + DeserializeOwned>(
        &self,
        owner: Owner<'_>,
        work: impl Fn(&Store) -> Result<T, String>,
    ) -> Result<(), RootlessError> {
        let Some(holders) = &self.holders else { return Ok(()) };
        let is_predecessor = |record: &HolderRecord| {
            record.name == owner.name && record.owner != owner.id && record.is_over()
        };
        // `prune` reports records that cannot be read.
        for HolderRecord { owner, .. } in holders.records()?.into_iter().filter(is_predecessor) {
            let lock = match holders.lock(&owner, PASSING_BY) {
                // A call is stopped, or removes the same: the rest is left to `prune`.
                Err(error) if has_timed_out(&error) => continue,
                lock => lock?,
            };
            // It may have another job meanwhile.
            let found = holders.find(&owner);
            let Some(found) = found.filter(|it| it.record.as_ref().is_ok_and(is_predecessor))
            else {
                continue;
            };
            self.clean_up(holders, &owner, Some(&found), &work)?;
            holders.end_if(&owner, lock, !holders.has_job(&owner))?;
        }
        Ok(())
    }

    /// Returns what `work` returns for each owner with volumes, where their files have their owners.
    pub fn in_volumes<T: Serialize + DeserializeOwned>(
        &self,
        work: impl Fn(&Store) -> Result<T, String>,
    ) -> Result<Vec<T>, RootlessError> {
        let Some(holders) = &self.holders else { return Ok(vec![self.work_here(&work)?]) };
        let mut all = Vec::new();
        for owner in holders.owners()?.iter().filter(|owner| holders.has_volumes(owner)) {
            all.extend(self.within(holders, owner, enter_for_files, &work)?);
        }
        Ok(all)
    }

    /// Returns what `work` returns where the files of an owner's volumes have their owners. Forgets the owner if
    /// nothing else is left of it.
    pub fn in_volumes_of<T: Serialize + DeserializeOwned>(
        &self,
        owner: &str,
        work: impl Fn(&Store) -> Result<T, String>,
    ) -> Result<Option<T>, RootlessError> {
        let Some(holders) = &self.holders else { return Ok(Some(self.work_here(&work)?)) };
        holders.make_directories(&self.store)?;
        let lock = holders.lock(owner, PASSING_BY)?;
        let done = self.within(holders, owner, enter_for_files, &work)?;
        let has_holder = holders.find(owner).is_some_and(|found| found.holder.is_some());
        if !has_holder && !holders.has_job(owner) {
            holders.forget(owner, lock)?;
        }
        Ok(done)
    }

    /// Returns the process that keeps an owner's namespaces, if it runs.
    pub fn holder(&self, owner: &str) -> Option<Identity> {
        let holder = self.holders.as_ref()?.find(owner)?.holder?;
        Some(holder.process)
    }

    fn here(&self) -> Entered {
        Entered::Inside(Box::new(self.store.clone()))
    }

    fn work_here<T>(
        &self,
        work: &impl Fn(&Store) -> Result<T, String>,
    ) -> Result<T, RootlessError> {
        work(&self.store).map_err(RootlessError::Inside)
    }

    fn store_inside(&self, holders: &Holders, owner: &str, inside: Inside) -> Store {
        let mut store = self.store.clone();
        store.root = holders.store_root(inside.privilege);
        store.place = holders.place(owner, inside);
        store
    }

    /// Returns what `work` returns for an owner, whose lock is held, in its namespaces or in new ones.
    fn clean_up<T: Serialize + DeserializeOwned>(
        &self,
        holders: &Holders,
        owner: &str,
        found: Option<&Found>,
        work: &impl Fn(&Store) -> Result<T, String>,
    ) -> Result<Option<T>, RootlessError> {
        let record = found.and_then(|found| found.record.as_ref().ok());
        let name = record.map_or(owner, |record| &record.name);
        let enter =
            || holders.enter_or_make(found, Owner { id: owner, name, worker: None }).map(Some);
        self.within(holders, owner, enter, work)
    }

    /// Returns what `work` returns in a copy of this process that enters namespaces; none if they have ended.
    fn within<T: Serialize + DeserializeOwned>(
        &self,
        holders: &Holders,
        owner: &str,
        enter: impl FnOnce() -> Result<Option<Side>, HolderError>,
        work: &impl Fn(&Store) -> Result<T, String>,
    ) -> Result<Option<T>, RootlessError> {
        let mut answer = File::from(memory_file("answer", b"").map_err(no_answer(owner))?);
        match enter()? {
            None => return Ok(None),
            Some(Side::Inside(inside)) => {
                let store = self.store_inside(holders, owner, inside);
                let written = serde_json::to_writer(&answer, &work(&store));
                exit_at_once(i32::from(written.is_err()));
            }
            Some(Side::Outside(attendant)) => drop((self.attend)(attendant)),
        }
        answer.rewind().map_err(no_answer(owner))?;
        let result: Result<T, String> =
            serde_json::from_reader(&answer).map_err(|error| no_answer(owner)(error.into()))?;
        result.map(Some).map_err(RootlessError::Inside)
    }
}

/// Returns what a container that this process runs in lacks, if an error says that something was denied to an
/// ordinary user.
pub fn lacking(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    let denied =
        ["not permitted", "ermission denied", "not implemented", "cannot execute newuidmap"];
    let text = chain(error);
    let is_denied = denied.iter().any(|words| text.contains(words));
    if is_denied && !Privilege::is_root_of_host() { missing_in_container() } else { None }
}

/// Returns what was found of a holder if its job is over, and nothing if the job goes on.
///
/// # Errors
///
/// Fails if that cannot be told.
fn over(owner: &str, found: Found, newer: NewerRecords) -> Result<Option<Found>, HolderError> {
    let is_kept = found.is_newer() && newer == NewerRecords::Keep;
    match (&found.record, &found.holder) {
        (Ok(record), _) => Ok(record.is_over().then_some(found)),
        (Err(_), None) if !is_kept => Ok(Some(found)),
        (Err(_), Some(holder)) if !is_kept => {
            let (owner, pid) = (owner.to_owned(), holder.process.pid);
            found.record.map_err(|error| HolderError::Unclear {
                owner,
                pid,
                source: Box::new(error),
            })?;
            Ok(None)
        }
        (Err(_), _) => found.record.map(|_| None),
    }
}

/// Goes on where the files of this user have their owners.
fn enter_for_files() -> Result<Option<Side>, HolderError> {
    Ok(Some(enter_new(&Map::of_process()?)?))
}

fn no_answer(owner: &str) -> impl Fn(io::Error) -> RootlessError {
    let owner = owner.to_owned();
    move |source| RootlessError::NoAnswer { owner: owner.clone(), source }
}
