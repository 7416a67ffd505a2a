//! Job records on disk: one for each runner with a job, so that the next call finds the leftovers of a killed
//! call.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use oci_hooks_engine::container::{ContainerError, read_json_if_there, write_record};
use oci_hooks_files::fs::{entries_in, make_private, names_in};
use oci_hooks_files::lock::{FileLock, LONG_LOCK_TIMEOUT};
use oci_hooks_host::identity::ProcessIdentity;
use oci_hooks_host::removal::remove_tree;
use serde::{Deserialize, Serialize};

use container_hook_job::HookError;
use container_hook_job::runner::CallingRunner;

/// File name of the record. Each record has its own directory, which is removed with any temporary file that a
/// killed writer left.
const RECORD: &str = "job.json";

const LOCK_SUFFIX: &str = ".lock";

/// The held lock of a runner's job. When it is dropped, the lock file of a runner without a job is removed:
/// ephemeral runners have unique names, so their files would pile up.
#[derive(Debug)]
pub struct JobLock {
    /// Set until this value is dropped.
    lock: Option<FileLock>,
    path: PathBuf,
    /// Directory of the job's record.
    record: PathBuf,
}

impl Drop for JobLock {
    fn drop(&mut self) {
        let is_missing = fs::symlink_metadata(&self.record)
            .is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
        if let Some(lock) = self.lock.take().filter(|_| is_missing) {
            // `prune` tries again.
            let _ = lock.remove(&self.path);
        }
    }
}

/// The record of a job, written before its containers and network are created.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobRecord {
    /// Owner of the job: [`CallingRunner::owner`].
    pub owner: String,
    pub runner: String,
    pub network: String,
    /// Containers that other containers reach by name.
    pub peers: Vec<Peer>,
    /// Worker process of the runner; the job is over when it has exited.
    pub worker: Option<ProcessIdentity>,
    /// Set for the network of a single container step, in a job without other containers.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_step: bool,
    /// Directories that containers could write; their ownership is restored after the job.
    pub writable: WritableDirectories,
}

/// The host names and addresses of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// Host names, the display name first.
    pub names: Vec<String>,
    pub addresses: Vec<IpAddr>,
}

/// Directories of a runner that containers can write, and their owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WritableDirectories {
    /// User and group ID of the owner.
    pub user: (u32, u32),
    pub directories: Vec<PathBuf>,
}

impl JobRecord {
    fn new(
        runner: &CallingRunner,
        network: &str,
        peers: &[Peer],
        writable: WritableDirectories,
    ) -> Self {
        JobRecord {
            owner: runner.owner(),
            runner: runner.name.clone(),
            network: network.to_owned(),
            peers: peers.to_vec(),
            worker: runner.worker,
            is_step: false,
            writable,
        }
    }
}

/// The records of all jobs.
#[derive(Debug, Default)]
pub struct AllJobs {
    pub known: Vec<JobRecord>,
    /// Owners of unreadable records, with the errors.
    pub unreadable: Vec<(String, ContainerError)>,
}

/// The job records on this machine.
pub struct JobRecords {
    dir: PathBuf,
}

impl JobRecords {
    pub(super) fn new(run: &Path) -> Self {
        JobRecords { dir: run.join("jobs") }
    }

    /// Takes the lock of a runner's job. Waits up to [`LONG_LOCK_TIMEOUT`] for other calls of the
    /// runner: a killed call may have children that are still dying.
    pub(super) fn lock(&self, owner: &str) -> Result<JobLock, HookError> {
        self.lock_within(owner, LONG_LOCK_TIMEOUT)
    }

    /// Takes the lock of a runner's job; waits at most `time` for other calls of the runner.
    pub(super) fn lock_within(&self, owner: &str, time: Duration) -> Result<JobLock, HookError> {
        make_private(&self.dir)?;
        let path = self.dir.join(format!("{owner}{LOCK_SUFFIX}"));
        let lock = FileLock::acquire_removable(&path, time)?;
        Ok(JobLock { lock: Some(lock), path, record: self.dir.join(owner) })
    }

    /// Removes the lock files that killed calls left without a job.
    pub(super) fn remove_unused_locks(&self) -> Result<(), HookError> {
        for name in names_in(&self.dir)? {
            let Some(owner) = name.strip_suffix(LOCK_SUFFIX) else { continue };
            // A call that holds the lock removes it itself.
            let _ = self.lock_within(owner, Duration::ZERO);
        }
        Ok(())
    }

    /// Records a job that is about to be created, or updates its record.
    pub(super) fn write(
        &self,
        runner: &CallingRunner,
        network: &str,
        peers: &[Peer],
        writable: WritableDirectories,
    ) -> Result<(), HookError> {
        self.record(&JobRecord::new(runner, network, peers, writable))
    }

    /// Records a container step that is about to be created in a job without other containers.
    pub(super) fn write_step(
        &self,
        runner: &CallingRunner,
        network: &str,
        writable: WritableDirectories,
    ) -> Result<(), HookError> {
        self.record(&JobRecord { is_step: true, ..JobRecord::new(runner, network, &[], writable) })
    }

    fn record(&self, job: &JobRecord) -> Result<(), HookError> {
        make_private(&self.dir.join(&job.owner))?;
        Ok(write_record(&self.path(&job.owner), job)?)
    }

    /// Returns the job of a runner, if it has one.
    pub(super) fn read(&self, owner: &str) -> Result<Option<JobRecord>, ContainerError> {
        read_json_if_there(&self.path(owner))
    }

    /// Removes the record of a job that was cleaned up.
    pub(super) fn remove(&self, owner: &str) -> Result<(), HookError> {
        Ok(remove_tree(&self.dir.join(owner))?)
    }

    /// Returns the jobs of all runners, and the unreadable records.
    pub(super) fn all_jobs(&self) -> Result<AllJobs, HookError> {
        let mut all = AllJobs::default();
        let is_dir = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
        for entry in entries_in(&self.dir)?.into_iter().filter(is_dir) {
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
    use container_hook_job::testing::runner;
    use oci_hooks_testsupport::damage::RecordDamage;

    use super::*;

    #[test]
    fn corrupt_job_record_does_not_hinder_other_jobs() {
        for damage in RecordDamage::ALL {
            let run = tempfile::tempdir().unwrap();
            let jobs = JobRecords::new(run.path());
            let owner = runner().owner();
            let write = || {
                jobs.write(
                    &runner(),
                    "n",
                    &[],
                    WritableDirectories { user: (0, 0), directories: Vec::new() },
                )
            };
            write().unwrap();
            fs::create_dir(run.path().join("jobs/other")).unwrap();
            fs::copy(jobs.path(&owner), jobs.path("other")).unwrap();
            damage.inflict(&jobs.path(&owner));
            let AllJobs { known, unreadable } = jobs.all_jobs().unwrap();
            assert_eq!((known.len(), unreadable.len()), (1, 1), "{damage:?}");
            assert_eq!(unreadable[0].0, owner);
            assert_eq!(unreadable[0].1.is_of_other_version(), damage == RecordDamage::OtherVersion);
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
        let jobs = JobRecords::new(run.path());
        let owner = runner().owner();
        let _lock = jobs.lock(&owner).unwrap();
        assert_eq!(jobs.read(&owner).unwrap(), None);
        let writable = WritableDirectories {
            user: (1000, 1000),
            directories: vec!["/home/runner/_work".into()],
        };
        jobs.write(&runner(), "n", &[], writable).unwrap();
        assert_eq!(jobs.read(&owner).unwrap().unwrap().network, "n");
        assert_eq!(jobs.all_jobs().unwrap().known.len(), 1);
        jobs.remove(&owner).unwrap();
        jobs.remove(&owner).unwrap();
        assert_eq!(jobs.all_jobs().unwrap().known, []);
    }

    #[test]
    fn the_lock_file_of_a_runner_without_a_job_is_removed() {
        let run = tempfile::tempdir().unwrap();
        let jobs = JobRecords::new(run.path());
        let owner = runner().owner();
        let files = || fs::read_dir(run.path().join("jobs")).unwrap().count();
        let lock = jobs.lock(&owner).unwrap();
        jobs.remove_unused_locks().unwrap();
        assert_eq!(files(), 1, "the lock is held");
        let writable = WritableDirectories { user: (1000, 1000), directories: Vec::new() };
        jobs.write(&runner(), "n", &[], writable).unwrap();
        drop(lock);
        assert_eq!(files(), 2, "the lock and the record");
        let lock = jobs.lock(&owner).unwrap();
        jobs.remove(&owner).unwrap();
        drop(lock);
        assert_eq!(files(), 0);
        // As a killed call leaves it.
        fs::write(run.path().join("jobs/other.lock"), "").unwrap();
        jobs.remove_unused_locks().unwrap();
        assert_eq!(files(), 0);
    }

    #[test]
    fn one_call_at_a_time_has_a_lock_whose_file_is_removed() {
        use std::sync::atomic::{AtomicUsize, Ordering};
        let run = tempfile::tempdir().unwrap();
        let jobs = JobRecords::new(run.path());
        let holders = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let lock = jobs.lock("owner").unwrap();
                        assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0);
                        holders.fetch_sub(1, Ordering::SeqCst);
                        drop(lock);
                    }
                });
            }
        });
        assert_eq!(fs::read_dir(run.path().join("jobs")).unwrap().count(), 0);
    }
}
