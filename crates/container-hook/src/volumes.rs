//! Lists and removes the named volumes of runners, with the containers that use them.

use std::path::{Path, PathBuf};

use container_hook_job::HookError;
use container_hook_job::runner::CallingRunner;
use jiff::Timestamp;
use oci_hooks_engine::bundle::{remove_unfinished, remove_volume, volume_users, volumes_in};
use oci_hooks_engine::container::{
    ContainerError, Engine, OwnerVolumes, RecordDirectory, owners_of_volumes, read_json_if_there,
    write_record,
};
use oci_hooks_files::error::chain;
use oci_hooks_files::fs::make_private;
use oci_hooks_files::lock::BULK_LOCK_TIMEOUT;
use oci_hooks_host::trash::Trash;
use oci_hooks_host::usage::disk_bytes;
use serde::{Deserialize, Serialize};

use super::job::{JobLock, JobRecords};

/// The runner's name and work directory, kept with an owner's volumes for display.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct VolumesRecord {
    runner: String,
    work: PathBuf,
}

/// Records the owner of a runner's volumes, before the first is created.
pub fn record(engine: &Engine, runner: &CallingRunner) -> Result<(), HookError> {
    let path = OwnerVolumes::new(&engine.disk, &runner.owner()).record();
    let record = VolumesRecord { runner: runner.name.clone(), work: runner.work().to_owned() };
    if read_json_if_there(&path).is_ok_and(|found| found.as_ref() == Some(&record)) {
        return Ok(());
    }
    make_private(path.parent().unwrap_or(&path))?;
    Ok(write_record(&path, &record)?)
}

/// A named volume of a runner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunnerVolume {
    pub name: String,
    /// Owner: [`CallingRunner::owner`].
    pub owner: String,
    /// Name of the runner, if it is recorded.
    pub runner: Option<String>,
    /// Work directory of the runner, if it is recorded.
    pub work: Option<PathBuf>,
    pub path: PathBuf,
    pub size_bytes: u64,
    /// Time at which a container was last created with the volume.
    pub used: Timestamp,
    /// Containers that use the volume.
    pub containers: Vec<VolumeUser>,
}

/// A container that uses a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeUser {
    pub id: String,
    /// Role and name of the container, if its record can be read.
    pub role: Option<String>,
    pub name: Option<String>,
}

/// The result of removing volumes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RemovedVolumes {
    pub removed: Vec<RunnerVolume>,
    /// Volumes that containers use, which are kept.
    pub in_use: Vec<RunnerVolume>,
    /// Errors of volumes that were kept, and of directories that were moved aside instead of removed.
    pub problems: Vec<String>,
}

/// The named volumes of runners on a disk.
#[derive(Clone, Copy, Debug)]
pub struct RunnerVolumes<'a> {
    /// Directory of containers' root file systems and volumes.
    pub disk: &'a Path,
    /// Directory of container state that is cleared on reboot.
    pub run: &'a Path,
}

impl RunnerVolumes<'_> {
    /// Returns the ids of runners that have a directory for named volumes.
    pub fn owners(&self) -> Result<Vec<String>, HookError> {
        Ok(owners_of_volumes(self.disk)?)
    }

    /// Returns all volumes, grouped by runner, and the errors of volumes that cannot be listed.
    pub fn list(&self) -> Result<(Vec<RunnerVolume>, Vec<String>), HookError> {
        let (mut all, mut problems) = (Vec::new(), Vec::new());
        for owner in self.owners()? {
            match self.list_of(&owner) {
                Ok(volumes) => all.extend(volumes),
                Err(error) => problems.push(chain(&error)),
            }
        }
        Ok((all, problems))
    }

    fn list_of(&self, owner: &str) -> Result<Vec<RunnerVolume>, HookError> {
        let volumes = OwnerVolumes::new(self.disk, owner);
        let _lock = match volumes.is_unmounted()? {
            true => Some(self.lock(owner)?),
            false => None,
        };
        volumes.run_with_volumes(|dir| self.list_volumes(owner, &volumes, dir))
    }

    /// Removes the selected volumes of an owner that no container uses.
    pub fn remove(
        &self,
        owner: &str,
        is_selected: impl Fn(&RunnerVolume) -> bool + Sync,
    ) -> Result<RemovedVolumes, HookError> {
        let trash = Trash::of(self.disk);
        let volumes = OwnerVolumes::new(self.disk, owner);
        // While the lock is held, the runner starts no container, so an unused volume stays unused.
        let _lock = self.lock(owner)?;
        let mut all = RemovedVolumes::default();
        let is_empty = volumes.run_with_volumes(|dir| {
            // Includes volumes whose removal was interrupted.
            remove_unfinished(dir)?;
            for volume in self.list_volumes(owner, &volumes, dir)?.into_iter().filter(&is_selected)
            {
                if !volume.containers.is_empty() {
                    all.in_use.push(volume);
                    continue;
                }
                match remove_volume(&volume.path, &trash) {
                    Ok(()) => all.removed.push(volume),
                    Err(error) => all.problems.push(chain(&error)),
                }
            }
            Ok::<_, HookError>(volumes_in(dir)?.is_empty())
        })?;
        all.problems.extend(trash.take_set_aside().iter().map(|aside| chain(aside)));
        if is_empty {
            volumes.remove()?;
        }
        Ok(all)
    }

    /// Waits for calls of the runner that create or remove containers, and blocks further ones.
    fn lock(&self, owner: &str) -> Result<JobLock, HookError> {
        JobRecords::new(self.run).lock_within(owner, BULK_LOCK_TIMEOUT)
    }

    fn list_volumes(
        &self,
        owner: &str,
        volumes: &OwnerVolumes,
        dir: &Path,
    ) -> Result<Vec<RunnerVolume>, HookError> {
        // The volumes are listed even if the record is unreadable.
        let record: Option<VolumesRecord> = read_json_if_there(&volumes.record()).ok().flatten();
        let (runner, work) = record.map(|record| (record.runner, record.work)).unzip();
        let mut found = Vec::new();
        for name in volumes_in(dir)? {
            let path = dir.join(&name);
            let (users, used) = volume_users(&path).map_err(ContainerError::from)?;
            found.push(RunnerVolume {
                name,
                owner: owner.to_owned(),
                runner: runner.clone(),
                work: work.clone(),
                size_bytes: disk_bytes(&path)?,
                path,
                used: Timestamp::try_from(used).unwrap_or(Timestamp::MAX),
                containers: users.iter().map(|user| self.user(user)).collect(),
            });
        }
        Ok(found)
    }

    fn user(&self, record: &Path) -> VolumeUser {
        let id = record.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let record = RecordDirectory::of(self.run, &id).read().ok();
        let (role, name) = record.map(|it| (it.role.name().to_owned(), it.name)).unzip();
        VolumeUser { id, role, name }
    }
}
