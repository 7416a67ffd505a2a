//! The named volumes of an owner, which outlive containers. Limited volumes share a file system, which is
//! mounted while there is a job.
//!
//! The caller keeps other processes from mounting or unmounting volumes of the same owner.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::{fs, io};

use oci_hooks_files::fs::{PathContext as _, PathError, entries_in, make_private, remove_if_there};
use oci_hooks_host::mount::{run_in_new_namespace, unmount};
use oci_hooks_host::removal::remove_tree;

use super::disk::{self, DiskLifetime};
use super::engine::Engine;
use super::error::ContainerError;

/// Suffix of an unfinished file system.
const UNFINISHED: &str = "new";

impl Engine {
    /// Returns the directory of an owner's named volumes.
    pub fn volumes_of(&self, owner: &str) -> PathBuf {
        volumes_dir(&self.disk).join(owner)
    }

    /// Limits an owner's named volumes to a total size, from the first volume on. Volumes that are limited
    /// already are mounted, with or without a requested limit.
    ///
    /// # Errors
    ///
    /// Fails if there are volumes without a limit or with another one.
    pub fn mount_volumes(
        &self,
        owner: &str,
        limit_bytes: Option<u64>,
    ) -> Result<(), ContainerError> {
        let dir = self.volumes_of(owner);
        let file = disk::file(&dir);
        let size_bytes = match fs::metadata(&file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            found => Some(found.with_path("look up", &file)?.len()),
        };
        match (size_bytes, limit_bytes) {
            (None, None) => return Ok(()),
            (None, Some(limit_bytes)) => {
                self.check_limit("named volumes", limit_bytes)?;
                make(&dir, &file, limit_bytes)?;
            }
            (Some(size_bytes), Some(limit_bytes)) if size_bytes != limit_bytes => {
                return Err(ContainerError::VolumesSize { path: file, size_bytes, limit_bytes });
            }
            _ => {}
        }
        make_private(&dir)?;
        if is_mounted(&dir)? {
            return Ok(());
        }
        disk::mount(&dir, DiskLifetime::Kept)
    }

    /// Checks that this process can use loop devices, which a size limit requires. `what` is for messages.
    pub(super) fn check_limit(
        &self,
        what: &'static str,
        limit_bytes: u64,
    ) -> Result<(), ContainerError> {
        if self.privilege.has_loop_devices() {
            return Ok(());
        }
        Err(ContainerError::NoLoopDevices { what, limit_bytes })
    }

    /// Unmounts the file system that [`Self::mount_volumes`] mounted, if any.
    pub fn unmount_volumes(&self, owner: &str) -> Result<(), PathError> {
        unmount(&self.volumes_of(owner))
    }

    /// Returns whether an owner's named volumes are limited, mounted and full.
    pub fn are_volumes_full(&self, owner: &str) -> bool {
        let dir = self.volumes_of(owner);
        disk::file(&dir).exists() && is_mounted(&dir).unwrap_or_default() && disk::is_full(&dir)
    }
}

fn volumes_dir(disk: &Path) -> PathBuf {
    disk.join("volumes")
}

/// Returns the owners that have named volumes below an engine's directory `disk`, sorted.
pub fn owners_of_volumes(disk: &Path) -> Result<Vec<String>, PathError> {
    let mut owners = Vec::new();
    for entry in entries_in(&volumes_dir(disk))? {
        let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        owners.extend(entry.file_name().into_string().ok().filter(|_| is_directory));
    }
    owners.sort();
    Ok(owners)
}

/// The named volumes of an owner below an engine's directory `disk`, also while the owner has no job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerVolumes {
    dir: PathBuf,
}

impl OwnerVolumes {
    /// Returns the volumes of an owner, who need not have any.
    pub fn new(disk: &Path, owner: &str) -> Self {
        OwnerVolumes { dir: volumes_dir(disk).join(owner) }
    }

    /// Returns the file that records the owner of the volumes.
    pub fn record(&self) -> PathBuf {
        let mut name = self.dir.as_os_str().to_owned();
        name.push(".json");
        name.into()
    }

    /// Returns whether the volumes are on a file system that is not mounted.
    pub fn is_unmounted(&self) -> Result<bool, PathError> {
        Ok(disk::file(&self.dir).exists() && !is_mounted(&self.dir)?)
    }

    /// Calls `work` with the directory of the volumes. An unmounted file system is mounted for this call
    /// only; the caller keeps other processes from mounting it meanwhile.
    pub fn run_with_volumes<T: Send, E: From<PathError> + From<ContainerError> + Send>(
        &self,
        work: impl FnOnce(&Path) -> Result<T, E> + Send,
    ) -> Result<T, E> {
        if !self.is_unmounted()? {
            return work(&self.dir);
        }
        run_in_new_namespace(|| {
            disk::mount(&self.dir, DiskLifetime::Kept)?;
            let done = work(&self.dir);
            unmount(&self.dir)?;
            done
        })
    }

    /// Removes the remains of volumes: the directory, the file system, the record.
    pub fn remove(&self) -> Result<(), PathError> {
        unmount(&self.dir)?;
        // The record is removed last: it names the owner of all remaining files.
        for path in [disk::file(&self.dir), self.dir.clone(), self.record()] {
            remove_tree(&path)?;
        }
        Ok(())
    }
}

/// Creates the file system of a directory, whose file gets its name when it is finished.
fn make(dir: &Path, file: &Path, limit_bytes: u64) -> Result<(), ContainerError> {
    make_private(dir)?;
    if fs::read_dir(dir).with_path("list", dir)?.next().is_some() {
        return Err(ContainerError::VolumesUnlimited { path: dir.to_owned(), limit_bytes });
    }
    let new = dir.with_extension(UNFINISHED);
    remove_if_there(&new)?;
    disk::write(&new, limit_bytes, DiskLifetime::Kept)?;
    Ok(fs::rename(&new, file).with_path("rename", &new)?)
}

fn is_mounted(dir: &Path) -> Result<bool, PathError> {
    let parent = dir.parent().unwrap_or(dir);
    let device =
        |path: &Path| fs::metadata(path).with_path("look up", path).map(|found| found.dev());
    Ok(device(dir)? != device(parent)?)
}
