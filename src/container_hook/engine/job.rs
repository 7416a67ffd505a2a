//! Jobs on disk: one record for each runner with a job, so that the next call finds what a killed
//! one left.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::container::{ContainerError, read_json_if_there, write_record};
use crate::container_hook::error::HookError;
use crate::container_hook::runner::Runner;
use crate::sys::fs::{PathContext as _, make_private};
use crate::sys::identity::Identity;
use crate::sys::lock::{FileLock, LONG};
use crate::sys::removal::remove_tree;

/// The record, in a directory of its own: what a process leaves there that is killed while it writes
/// goes with it.
const RECORD: &str = "job.json";

/// What is known of a job, from before anything of it is made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Whose it is: [`Runner::owner`].
    pub owner: String,
    pub runner: String,
    pub network: String,
    /// Its containers that others reach by name.
    pub peers: Vec<Peer>,
    /// The runner's worker: the job is over when it is gone.
    pub worker: Option<Identity>,
    /// Whether it is the network of one container step, in a job that has no other containers.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_step: bool,
    /// The directories that containers could write to, which are given back to their user.
    pub lent: Lent,
}

/// A container as others see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Peer {
    /// Its names, the one to show first.
    pub names: Vec<String>,
    pub addresses: Vec<IpAddr>,
}

/// Directories of a runner, and whose they are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Lent {
    /// The ids of the user and their group.
    pub user: (u32, u32),
    pub directories: Vec<PathBuf>,
}

impl Job {
    fn new(runner: &Runner, network: &str, peers: &[Peer], lent: Lent) -> Self {
        Job {
            owner: runner.owner(),
            runner: runner.name.clone(),
            network: network.to_owned(),
            peers: peers.to_vec(),
            worker: runner.worker,
            is_step: false,
            lent,
        }
    }
}

/// What is known of all jobs.
#[derive(Debug, Default)]
pub struct AllJobs {
    pub known: Vec<Job>,
    /// Whose records nobody can read, and why.
    pub unreadable: Vec<(String, ContainerError)>,
}

/// The jobs on this machine.
pub struct Jobs {
    dir: PathBuf,
}

impl Jobs {
    pub(super) fn new(run: &Path) -> Self {
        Jobs { dir: run.join("jobs") }
    }

    /// Waits for other calls of the same runner: a killed one may have children that still die.
    pub(super) fn lock(&self, owner: &str) -> Result<FileLock, HookError> {
        self.lock_within(owner, LONG)
    }

    /// Waits so long for other calls of the same runner.
    pub(super) fn lock_within(&self, owner: &str, time: Duration) -> Result<FileLock, HookError> {
        make_private(&self.dir)?;
        Ok(FileLock::exclusive(&self.dir.join(format!("{owner}.lock")), time)?)
    }

    /// Records a job that is about to be made, or more of it.
    pub(super) fn write(
        &self,
        runner: &Runner,
        network: &str,
        peers: &[Peer],
        lent: Lent,
    ) -> Result<(), HookError> {
        self.record(&Job::new(runner, network, peers, lent))
    }

    /// Records a container step that is about to be made in a job without other containers.
    pub(super) fn write_step(
        &self,
        runner: &Runner,
        network: &str,
        lent: Lent,
    ) -> Result<(), HookError> {
        self.record(&Job { is_step: true, ..Job::new(runner, network, &[], lent) })
    }

    fn record(&self, job: &Job) -> Result<(), HookError> {
        make_private(&self.dir.join(&job.owner))?;
        Ok(write_record(&self.path(&job.owner), job)?)
    }

    /// Returns the job of a runner; none if it has none.
    pub(super) fn read(&self, owner: &str) -> Result<Option<Job>, ContainerError> {
        read_json_if_there(&self.path(owner))
    }

    /// Forgets a job of which nothing is left.
    pub(super) fn remove(&self, owner: &str) -> Result<(), HookError> {
        Ok(remove_tree(&self.dir.join(owner))?)
    }

    /// Returns the jobs of all runners, broken records apart.
    pub(super) fn all(&self) -> Result<AllJobs, HookError> {
        let mut all = AllJobs::default();
        let entries = match fs::read_dir(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(all),
            entries => entries.at("list", &self.dir)?,
        };
        let is_dir = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
        for entry in entries.flatten().filter(is_dir) {
            match read_json_if_there(&entry.path().join(RECORD)) {
                Ok(job) => all.known.extend(job),
                Err(error) if error.is_unreadable_record() => {
                    let owner = entry.file_name().to_string_lossy().into_owned();
                    all.unreadable.push((owner, error));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(all)
    }

    fn path(&self, owner: &str) -> PathBuf {
        self.dir.join(owner).join(RECORD)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::container_hook::runner::tests::runner;
    use crate::sys::tests::Damage;

    #[test]
    fn a_job_whose_record_cannot_be_read_is_in_nobodys_way() {
        for damage in Damage::ALL {
            let run = tempfile::tempdir().unwrap();
            let jobs = Jobs::new(run.path());
            let owner = runner().owner();
            let write =
                || jobs.write(&runner(), "n", &[], Lent { user: (0, 0), directories: Vec::new() });
            write().unwrap();
            fs::create_dir(run.path().join("jobs/other")).unwrap();
            fs::copy(jobs.path(&owner), jobs.path("other")).unwrap();
            damage.inflict(&jobs.path(&owner));
            let AllJobs { known, unreadable } = jobs.all().unwrap();
            assert_eq!((known.len(), unreadable.len()), (1, 1), "{damage:?}");
            assert_eq!(unreadable[0].0, owner);
            assert_eq!(unreadable[0].1.is_of_other_version(), damage == Damage::OtherVersion);
            let error = jobs.read(&owner).unwrap_err();
            assert!(error.to_string().contains("job.json"), "{error}");
            jobs.remove(&owner).unwrap();
            write().unwrap();
            assert_eq!(jobs.read(&owner).unwrap().unwrap().network, "n");
        }
    }

    #[test]
    fn a_job_is_found_until_it_is_removed() {
        let run = tempfile::tempdir().unwrap();
        let jobs = Jobs::new(run.path());
        let owner = runner().owner();
        let _lock = jobs.lock(&owner).unwrap();
        assert_eq!(jobs.read(&owner).unwrap(), None);
        let lent = Lent { user: (1000, 1000), directories: vec!["/home/runner/_work".into()] };
        jobs.write(&runner(), "n", &[], lent).unwrap();
        assert_eq!(jobs.read(&owner).unwrap().unwrap().network, "n");
        assert_eq!(jobs.all().unwrap().known.len(), 1);
        jobs.remove(&owner).unwrap();
        jobs.remove(&owner).unwrap();
        assert_eq!(jobs.all().unwrap().known, []);
    }
}
