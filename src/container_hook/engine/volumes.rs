//! Lists and removes the named volumes of runners, with the containers that use them.

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::job::Jobs;
use crate::bundle::{remove_unfinished, remove_volume, volume_users, volumes_in};
use crate::container::{
    ContainerError, Directory, Engine, VolumesOf, owners_of_volumes, read_json_if_there,
    write_record,
};
use crate::container_hook::error::HookError;
use crate::container_hook::runner::Runner;
use crate::sys::error::chain;
use crate::sys::fs::make_private;
use crate::sys::lock::{FileLock, PASSING_BY};
use crate::sys::trash::Trash;
use crate::sys::usage::disk_bytes;

/// Whose volumes those of an owner are, for people; it is kept with them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct VolumesRecord {
    runner: String,
    work: PathBuf,
}

/// Records whose volumes a runner's are, before there are any.
pub fn record(engine: &Engine, runner: &Runner) -> Result<(), HookError> {
    let path = VolumesOf::new(&engine.disk, &runner.owner()).record();
    let record = VolumesRecord { runner: runner.name.clone(), work: runner.work().to_owned() };
    if read_json_if_there(&path).is_ok_and(|found| found.as_ref() == Some(&record)) {
        return Ok(());
    }
    make_private(path.parent().unwrap_or(&path))?;
    Ok(write_record(&path, &record)?)
}

/// A named volume of a runner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RunnerVolume {
    pub name: String,
    /// Whose it is: [`Runner::owner`].
    pub owner: String,
    /// The runner's name and its work directory, if they are recorded.
    pub runner: Option<String>,
    pub work: Option<PathBuf>,
    pub path: PathBuf,
    pub size_bytes: u64,
    /// When a container was given it last.
    pub used: Timestamp,
    /// The containers that have it.
    pub containers: Vec<VolumeUser>,
}

/// A container that has a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct VolumeUser {
    pub id: String,
    /// What it is in its job and its name, if its record can be read.
    pub role: Option<String>,
    pub name: Option<String>,
}

/// What became of volumes that were to be removed.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RemovedVolumes {
    pub removed: Vec<RunnerVolume>,
    /// Those that containers have.
    pub in_use: Vec<RunnerVolume>,
    /// What could not be removed and was moved out of the way, and why others stay.
    pub problems: Vec<String>,
}

/// The named volumes of runners on a disk.
#[derive(Clone, Copy, Debug)]
pub struct RunnerVolumes<'a> {
    /// Where root file systems and volumes of containers are.
    pub disk: &'a Path,
    /// Where containers keep what does not outlive a boot.
    pub run: &'a Path,
}

impl RunnerVolumes<'_> {
    /// Returns the owners of volumes, or of what is left of some.
    pub fn owners(&self) -> Result<Vec<String>, HookError> {
        Ok(owners_of_volumes(self.disk)?)
    }

    /// Returns all volumes, those of one runner after the other, and why others cannot be listed.
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
        let volumes = VolumesOf::new(self.disk, owner);
        let _lock = match volumes.is_unmounted()? {
            true => Some(self.lock(owner)?),
            false => None,
        };
        volumes.within(|dir| self.found(owner, &volumes, dir))
    }

    /// Removes the volumes of an owner that are selected and no container has.
    pub fn remove(
        &self,
        owner: &str,
        is_selected: impl Fn(&RunnerVolume) -> bool + Sync,
    ) -> Result<RemovedVolumes, HookError> {
        let trash = Trash::of(self.disk);
        let volumes = VolumesOf::new(self.disk, owner);
        // As long as nobody begins a container, nobody gets a volume that has none.
        let _lock = self.lock(owner)?;
        let mut all = RemovedVolumes::default();
        let is_empty = volumes.within(|dir| {
            // What was not removed to the end, too.
            remove_unfinished(dir)?;
            for volume in self.found(owner, &volumes, dir)?.into_iter().filter(&is_selected) {
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

    /// Waits for calls of the runner that begin or remove containers, and keeps others from it.
    fn lock(&self, owner: &str) -> Result<FileLock, HookError> {
        Jobs::new(self.run).lock_within(owner, PASSING_BY)
    }

    /// Returns the volumes in a directory.
    fn found(
        &self,
        owner: &str,
        volumes: &VolumesOf,
        dir: &Path,
    ) -> Result<Vec<RunnerVolume>, HookError> {
        // One that cannot be read keeps nobody from the volumes.
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
        let record = Directory::of(self.run, &id).read().ok();
        let (role, name) = record.map(|it| (it.role.name().to_owned(), it.name)).unzip();
        VolumeUser { id, role, name }
    }
}
