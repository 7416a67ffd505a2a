//! Namespaces of rootless containers, and entering them.
//!
//! Containers belong to an owner: a GitHub runner, or a GARM instance. For root, all containers are in the namespaces
//! of this process. For a rootless user, each owner has user, mount, PID and network namespaces, which a pause process
//! keeps ([`PauseProcesses`]): a copy of this process enters them and continues there, and this process waits for the copy
//! ([`EnterOutcome`]).

mod pause_processes;

use std::fs::File;
use std::io::{self, Seek as _};

use serde::Serialize;
use serde::de::DeserializeOwned;

use oci_hooks_cli::exit::CliExit;
use oci_hooks_files::error::{chain, has_timed_out};
use oci_hooks_files::lock::{BULK_LOCK_TIMEOUT, LONG_LOCK_TIMEOUT};
use oci_hooks_files::record::NewerRecords;
use oci_hooks_files::spawn::memory_file;
use oci_hooks_host::identity::ProcessIdentity;
use oci_hooks_host::privilege::{
    ChildHandle, ForkSide, IdMaps, InsideProcess, Privilege, PrivilegeError, enter_new,
    exit_at_once,
};
pub use pause_processes::{FoundPauseProcess, PauseError, PauseProcesses, PauseRecord};

use super::checks::user::nesting::missing_in_container;
use super::checks::user::service::missing_in_unit;
use super::sections::{StoreSection, StoreView};

/// Exit code of a process killed by SIGKILL.
const KILLED: CliExit = CliExit::Code(128 + 9);

/// Errors of working in the namespaces of an owner.
#[derive(Debug, thiserror::Error)]
pub enum RootlessError {
    #[error(transparent)]
    PauseProcess(#[from] PauseError),
    #[error("{0}")]
    Inside(String),
    #[error("no answer from the copy of this program in the namespaces of {owner}")]
    NoAnswer { owner: String, source: io::Error },
}

/// Result of entering namespaces.
#[derive(Debug)]
#[must_use]
pub enum EnterOutcome {
    /// This process is the copy in the namespaces, with the store as seen from there.
    Inside(Box<StoreSection>),
    /// The copy in the namespaces exited with this code.
    Ended(CliExit),
}

/// Owner of containers: a GitHub runner, or a GARM instance.
#[derive(Clone, Copy, Debug)]
pub struct ContainerOwner<'a> {
    pub id: &'a str,
    pub name: &'a str,
    /// Process that the containers work for, such as the runner's; the owner's job is over when it has exited.
    pub worker: Option<ProcessIdentity>,
}

/// The namespaces of an owner that a process enters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamespaceEntry {
    /// New namespaces; a running pause process is stopped first.
    New,
    /// Namespaces of the running pause process, or new ones.
    Current,
    /// Like `Current`; if the pause process is killed meanwhile, a new copy of this process runs in
    /// new namespaces.
    Cleanup,
    /// Like `Current`, with the owner locked until the copy of this process exits.
    Exclusive,
}

/// All owners of one kind.
#[derive(Clone, Debug)]
pub struct ContainerOwners {
    store: StoreSection,
    /// None for root.
    pause_processes: Option<PauseProcesses>,
    /// Waits for the copy of this process, and forwards signals to it.
    attend: fn(ChildHandle) -> CliExit,
}

impl ContainerOwners {
    /// Returns the owners of a kind, such as `jobs`, with their images in `store`.
    pub fn new(store: &StoreSection, kind: &str, attend: fn(ChildHandle) -> CliExit) -> Self {
        let pause_processes =
            (!Privilege::is_root_of_host()).then(|| PauseProcesses::new(store, kind));
        ContainerOwners { store: store.clone(), pause_processes, attend }
    }

    /// Returns the pause processes of a rootless user's owners; none for root.
    pub fn pause_processes(&self) -> Option<&PauseProcesses> {
        self.pause_processes.as_ref()
    }

    /// Enters a user namespace that maps the owners of the store's files, in a copy of this
    /// process. The network namespace stays the host's. Root enters no namespace.
    pub fn enter_store(&self) -> Result<EnterOutcome, RootlessError> {
        let Some(pause_processes) = &self.pause_processes else { return Ok(self.stay_inside()) };
        match pause_processes::enter_store(&self.store)? {
            ForkSide::Inside(inside) => {
                let mut store = self.store.clone();
                store.root = pause_processes.store_root(inside.privilege);
                store.place.privilege = inside.privilege;
                store.place.has_cgroup = inside.has_cgroup;
                Ok(EnterOutcome::Inside(Box::new(store)))
            }
            ForkSide::Outside(child) => Ok(EnterOutcome::Ended((self.attend)(child))),
        }
    }

    /// Enters the namespaces of an owner in a copy of this process. When the copy has exited, this
    /// process stops the owner's pause process if `is_over` returns true. Root enters no
    /// namespaces, and makes no copy.
    pub fn enter(
        &self,
        owner: ContainerOwner<'_>,
        entry: NamespaceEntry,
        is_over: impl Fn(&PauseProcesses) -> bool,
    ) -> Result<EnterOutcome, RootlessError> {
        let Some(pause_processes) = &self.pause_processes else { return Ok(self.stay_inside()) };
        pause_processes.make_directories(&self.store)?;
        let mut anew = entry == NamespaceEntry::New;
        loop {
            let lock = pause_processes.lock(owner.id, LONG_LOCK_TIMEOUT)?;
            let mut found = pause_processes.find(owner.id);
            if anew && let Some(found) = found.take() {
                found.end()?;
            }
            let child = match pause_processes.enter_or_make(found.as_ref(), owner)? {
                ForkSide::Inside(inside) => {
                    let store = self.store_inside(pause_processes, owner.id, inside);
                    return Ok(EnterOutcome::Inside(Box::new(store)));
                }
                ForkSide::Outside(child) => child,
            };
            let lock = (entry == NamespaceEntry::Exclusive).then_some(lock);
            let ended = (self.attend)(child);
            // When the pause process is killed, the kernel kills all processes in its PID namespace. The cleanup is
            // repeated in new namespaces; the result of a step or of a new job is lost.
            if entry == NamespaceEntry::Cleanup && ended == KILLED && !anew {
                anew = true;
                continue;
            }
            let lock =
                lock.map_or_else(|| pause_processes.lock(owner.id, LONG_LOCK_TIMEOUT), Ok)?;
            pause_processes.end_if(owner.id, lock, is_over(pause_processes))?;
            return Ok(EnterOutcome::Ended(ended));
        }
    }

    /// Returns the store of each owner with records, as seen from outside of its namespaces.
    pub fn stores(&self) -> Result<Vec<StoreSection>, RootlessError> {
        let mut all = match &self.pause_processes {
            None => vec![self.store.clone()],
            Some(pause_processes) => {
                let StoreView { privilege, .. } = self.store.place;
                let inside = InsideProcess { privilege, has_cgroup: false };
                let owners = pause_processes.owners()?.into_iter();
                owners.map(|owner| self.store_inside(pause_processes, &owner, inside)).collect()
            }
        };
        all.retain(|store| store.container_run().exists());
        Ok(all)
    }

    /// Calls `work` in the namespaces of each running pause process, and returns the results.
    pub fn run_in_each<T: Serialize + DeserializeOwned>(
        &self,
        work: impl Fn(&StoreSection) -> Result<T, String>,
    ) -> Result<Vec<T>, RootlessError> {
        let Some(pause_processes) = &self.pause_processes else {
            return Ok(vec![self.work_here(&work)?]);
        };
        let mut all = Vec::new();
        for (owner, found) in pause_processes.find_all()? {
            if let Some(pause_process) = &found.pause_process {
                all.extend(self.run_in_copy(
                    pause_processes,
                    &owner,
                    || pause_processes.enter(pause_process),
                    &work,
                )?);
            }
        }
        Ok(all)
    }

    /// Calls `work` in the namespaces of an owner, which are created if necessary, and returns the result. The caller
    /// holds the owner's lock.
    pub fn run_in_owner<T: Serialize + DeserializeOwned>(
        &self,
        pause_processes: &PauseProcesses,
        owner: ContainerOwner<'_>,
        work: impl Fn(&StoreSection) -> Result<T, String>,
    ) -> Result<T, RootlessError> {
        let enter = || {
            pause_processes.enter_or_make(pause_processes.find(owner.id).as_ref(), owner).map(Some)
        };
        let done = self.run_in_copy(pause_processes, owner.id, enter, &work)?;
        done.ok_or_else(|| no_answer_error(owner.id)(io::ErrorKind::UnexpectedEof.into()))
    }

    /// Calls `work` for each owner whose job is over, in the owner's namespaces or in new ones, and
    /// then stops the pause process. Returns the results, and the errors of owners whose state is
    /// unknown.
    pub fn run_in_abandoned<T: Serialize + DeserializeOwned>(
        &self,
        newer: NewerRecords,
        work: impl Fn(&StoreSection) -> Result<T, String>,
    ) -> Result<(Vec<T>, Vec<String>), RootlessError> {
        let Some(pause_processes) = &self.pause_processes else {
            return Ok((vec![self.work_here(&work)?], Vec::new()));
        };
        pause_processes.make_directories(&self.store)?;
        let (mut all, mut unreadable) = (Vec::new(), Vec::new());
        for owner in pause_processes.owners()? {
            let lock = match pause_processes.lock(&owner, BULK_LOCK_TIMEOUT) {
                // Another call for the owner is running, or stopped.
                Err(error) if has_timed_out(&error) => {
                    unreadable.push(chain(&error));
                    continue;
                }
                lock => lock?,
            };
            let found = match pause_processes
                .find(&owner)
                .map(|found| if_job_ended(&owner, found, newer))
            {
                None => None,
                Some(Ok(Some(found))) => Some(found),
                Some(Ok(None)) => continue,
                Some(Err(error)) => {
                    unreadable.push(chain(&error));
                    continue;
                }
            };
            all.extend(self.clean_up(pause_processes, &owner, found.as_ref(), &work)?);
            pause_processes.end_if(&owner, lock, !pause_processes.has_job(&owner))?;
        }
        Ok((all, unreadable))
    }

    /// Calls `work` as [`ContainerOwners::run_in_abandoned`] does, but only for owners with the
    /// same name as `owner` and another id.
    pub fn run_in_predecessors<T: Serialize + DeserializeOwned>(
        &self,
        owner: ContainerOwner<'_>,
        work: impl Fn(&StoreSection) -> Result<T, String>,
    ) -> Result<(), RootlessError> {
        let Some(pause_processes) = &self.pause_processes else { return Ok(()) };
        let is_predecessor = |record: &PauseRecord| {
            record.name == owner.name && record.owner != owner.id && record.is_over()
        };
        // `prune` reports unreadable records.
        for PauseRecord { owner, .. } in
            pause_processes.records()?.into_iter().filter(is_predecessor)
        {
            let lock = match pause_processes.lock(&owner, BULK_LOCK_TIMEOUT) {
                // Another call is stopped, or removes the same owner: the rest is left to `prune`.
                Err(error) if has_timed_out(&error) => continue,
                lock => lock?,
            };
            // The owner may have a new job meanwhile.
            let found = pause_processes.find(&owner);
            let Some(found) = found.filter(|it| it.record.as_ref().is_ok_and(is_predecessor))
            else {
                continue;
            };
            self.clean_up(pause_processes, &owner, Some(&found), &work)?;
            pause_processes.end_if(&owner, lock, !pause_processes.has_job(&owner))?;
        }
        Ok(())
    }

    /// Calls `work` for each owner with volumes, in a user namespace that maps the owners of the
    /// volumes' files, and returns the results.
    pub fn run_in_volumes<T: Serialize + DeserializeOwned>(
        &self,
        work: impl Fn(&StoreSection) -> Result<T, String>,
    ) -> Result<Vec<T>, RootlessError> {
        let Some(pause_processes) = &self.pause_processes else {
            return Ok(vec![self.work_here(&work)?]);
        };
        let mut all = Vec::new();
        for owner in
            pause_processes.owners()?.iter().filter(|owner| pause_processes.has_volumes(owner))
        {
            all.extend(self.run_in_copy(pause_processes, owner, enter_for_files, &work)?);
        }
        Ok(all)
    }

    /// Calls `work` for the volumes of an owner as [`ContainerOwners::run_in_volumes`] does, and returns the result.
    /// Removes the owner's directories if it has no pause process and no job.
    pub fn run_in_owner_volumes<T: Serialize + DeserializeOwned>(
        &self,
        owner: &str,
        work: impl Fn(&StoreSection) -> Result<T, String>,
    ) -> Result<Option<T>, RootlessError> {
        let Some(pause_processes) = &self.pause_processes else {
            return Ok(Some(self.work_here(&work)?));
        };
        pause_processes.make_directories(&self.store)?;
        let lock = pause_processes.lock(owner, BULK_LOCK_TIMEOUT)?;
        let done = self.run_in_copy(pause_processes, owner, enter_for_files, &work)?;
        let has_pause_process =
            pause_processes.find(owner).is_some_and(|found| found.pause_process.is_some());
        if !has_pause_process && !pause_processes.has_job(owner) {
            pause_processes.forget(owner, lock)?;
        }
        Ok(done)
    }

    /// Returns the pause process of an owner, if it is running.
    pub fn pause_process(&self, owner: &str) -> Option<ProcessIdentity> {
        let pause_process = self.pause_processes.as_ref()?.find(owner)?.pause_process?;
        Some(pause_process.process)
    }

    fn stay_inside(&self) -> EnterOutcome {
        EnterOutcome::Inside(Box::new(self.store.clone()))
    }

    fn work_here<T>(
        &self,
        work: &impl Fn(&StoreSection) -> Result<T, String>,
    ) -> Result<T, RootlessError> {
        work(&self.store).map_err(RootlessError::Inside)
    }

    fn store_inside(
        &self,
        pause_processes: &PauseProcesses,
        owner: &str,
        inside: InsideProcess,
    ) -> StoreSection {
        let mut store = self.store.clone();
        store.root = pause_processes.store_root(inside.privilege);
        store.place = pause_processes.place(owner, inside);
        store
    }

    /// Calls `work` in the namespaces of an owner or in new ones, and returns the result. The caller holds the owner's
    /// lock.
    fn clean_up<T: Serialize + DeserializeOwned>(
        &self,
        pause_processes: &PauseProcesses,
        owner: &str,
        found: Option<&FoundPauseProcess>,
        work: &impl Fn(&StoreSection) -> Result<T, String>,
    ) -> Result<Option<T>, RootlessError> {
        let record = found.and_then(|found| found.record.as_ref().ok());
        let name = record.map_or(owner, |record| &record.name);
        let enter = || {
            pause_processes
                .enter_or_make(found, ContainerOwner { id: owner, name, worker: None })
                .map(Some)
        };
        match self.run_in_copy(pause_processes, owner, enter, work) {
            // If a pause process ends, the kernel kills the copy of this process in its namespaces.
            Err(RootlessError::NoAnswer { .. }) => {
                self.run_in_copy(pause_processes, owner, enter, work)
            }
            done => done,
        }
    }

    /// Calls `work` in a copy of this process that enters namespaces, and returns the result; none if the namespaces
    /// are gone.
    fn run_in_copy<T: Serialize + DeserializeOwned>(
        &self,
        pause_processes: &PauseProcesses,
        owner: &str,
        enter: impl FnOnce() -> Result<Option<ForkSide>, PauseError>,
        work: &impl Fn(&StoreSection) -> Result<T, String>,
    ) -> Result<Option<T>, RootlessError> {
        let mut answer = File::from(memory_file("answer", b"").map_err(no_answer_error(owner))?);
        match enter()? {
            None => return Ok(None),
            Some(ForkSide::Inside(inside)) => {
                let store = self.store_inside(pause_processes, owner, inside);
                let written = serde_json::to_writer(&answer, &work(&store));
                exit_at_once(i32::from(written.is_err()));
            }
            Some(ForkSide::Outside(child)) => drop((self.attend)(child)),
        }
        answer.rewind().map_err(no_answer_error(owner))?;
        let result: Result<T, String> = serde_json::from_reader(&answer)
            .map_err(|error| no_answer_error(owner)(error.into()))?;
        result.map(Some).map_err(RootlessError::Inside)
    }
}

/// Returns a hint about the privilege that this process lacks in its container or service, if an error of a rootless
/// user is a denied operation. `namespace_error` is the same error if it is one of creating or entering namespaces.
pub fn missing_requirement(
    error: &(dyn std::error::Error + 'static),
    namespace_error: Option<&PrivilegeError>,
) -> Option<String> {
    if Privilege::is_root_of_host() || !is_denied_by_kernel(&chain(error), namespace_error) {
        return None;
    }
    let is_of_setup = matches!(namespace_error, Some(PrivilegeError::Setup { .. }));
    let of_unit = || is_of_setup.then(missing_in_unit).flatten();
    missing_in_container().or_else(of_unit)
}

/// Returns whether an error's text is that of an operation for which a process lacks a privilege. Files other than those
/// of the kernel are inaccessible because of their own mode.
fn is_denied_by_kernel(text: &str, namespace_error: Option<&PrivilegeError>) -> bool {
    // The texts of errno values, because OCI runtimes and newuidmap report errors only as text.
    let contains = |parts: &[&str]| parts.iter().any(|part| text.contains(part));
    let is_of_kernel = match namespace_error {
        Some(PrivilegeError::Path(_)) => contains(&["/dev/", "/proc/", "/sys/"]),
        None => contains(&["/dev/", "/proc/", "/sys/", "mount"]),
        Some(_) => true,
    };
    contains(&["peration not permitted", "unction not implemented"])
        || is_of_kernel && text.contains("ermission denied")
}

/// Returns `found` if the job of the pause process is over, or if the record is unreadable and no
/// pause process is running; `None` if the job is running.
///
/// # Errors
///
/// Fails if the record cannot be read while the pause process runs, or if a newer version wrote it and `newer` keeps
/// such records.
fn if_job_ended(
    owner: &str,
    found: FoundPauseProcess,
    newer: NewerRecords,
) -> Result<Option<FoundPauseProcess>, PauseError> {
    let is_kept = found.is_newer() && newer == NewerRecords::Keep;
    match (&found.record, &found.pause_process) {
        (Ok(record), _) => Ok(record.is_over().then_some(found)),
        (Err(_), None) if !is_kept => Ok(Some(found)),
        (Err(_), Some(pause_process)) if !is_kept => {
            let (owner, pid) = (owner.to_owned(), pause_process.process.pid);
            found.record.map_err(|error| PauseError::Unclear {
                owner,
                pid,
                source: Box::new(error),
            })?;
            Ok(None)
        }
        (Err(_), _) => found.record.map(|_| None),
    }
}

/// Enters a new user namespace with the id mapping of the current user.
fn enter_for_files() -> Result<Option<ForkSide>, PauseError> {
    Ok(Some(enter_new(&IdMaps::of_process()?)?))
}

fn no_answer_error(owner: &str) -> impl Fn(io::Error) -> RootlessError {
    let owner = owner.to_owned();
    move |source| RootlessError::NoAnswer { owner: owner.clone(), source }
}

#[cfg(test)]
mod tests {
    use oci_hooks_files::fs::PathError;
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn inaccessible_files_are_no_lack_of_privilege() {
        let file = |path: &str, errno: Errno| PathError::new("open", path.as_ref(), errno);
        for (path, errno, expected) in [
            ("/dev/net/tun", Errno::ACCESS, true),
            ("/srv/run/jobs", Errno::ACCESS, false),
            ("/srv/a", Errno::PERM, true),
            ("/srv/a", Errno::NOENT, false),
        ] {
            let error = file(path, errno);
            assert_eq!(is_denied_by_kernel(&chain(&error), None), expected, "{error}");
        }
        let (uid, action) = (7, "work".to_owned());
        for (error, expected) in [
            (PrivilegeError::Namespace { uid, source: Errno::NOSYS.into() }, true),
            (PrivilegeError::Setup { uid, action, source: Errno::ACCESS.into() }, true),
            (PrivilegeError::Enter { pid: 1, source: Errno::NOENT.into() }, false),
            (PrivilegeError::Path(file("/proc/self/uid_map", Errno::ACCESS)), true),
            (PrivilegeError::Path(file("/srv/a", Errno::ACCESS)), false),
        ] {
            assert_eq!(is_denied_by_kernel(&chain(&error), Some(&error)), expected, "{error}");
        }
    }
}
