//! The named volumes of an owner, which outlive containers; if they are limited, on a file system of their
//! own for all of them, which is mounted while there is a job.
//!
//! Whoever mounts or unmounts them sees to it that nobody else does so for the same owner.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::disk::{self, Life};
use super::engine::Engine;
use super::error::ContainerError;
use crate::sys::fs::{PathContext as _, PathError, make_private};
use crate::sys::mount::{unmount, within_new};
use crate::sys::removal::remove_tree;

/// What the name of a file system ends in that is not finished.
const UNFINISHED: &str = "new";

impl Engine {
    /// Returns the directory of an owner's named volumes.
    pub fn volumes_of(&self, owner: &str) -> PathBuf {
        all(&self.disk).join(owner)
    }

    /// Limits an owner's named volumes to so many bytes together, from the first of them on. If they are
    /// limited already, they are made available, whether a limit is given or not.
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
            found => Some(found.at("look up", &file)?.len()),
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
        disk::mount(&dir, Life::Kept)
    }

    /// Checks that what is limited can be.
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

    /// Takes away what [`Self::mount_volumes`] mounted, if anything.
    pub fn unmount_volumes(&self, owner: &str) -> Result<(), PathError> {
        unmount(&self.volumes_of(owner))
    }

    /// Returns whether an owner's named volumes are limited, available, and full.
    pub fn are_volumes_full(&self, owner: &str) -> bool {
        let dir = self.volumes_of(owner);
        disk::file(&dir).exists() && is_mounted(&dir).unwrap_or_default() && disk::is_full(&dir)
    }
}

fn all(disk: &Path) -> PathBuf {
    disk.join("volumes")
}

/// Returns the owners who have named volumes on a disk, sorted.
pub fn owners_of_volumes(disk: &Path) -> Result<Vec<String>, PathError> {
    let all = all(disk);
    let entries = match fs::read_dir(&all) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.at("list", &all)?,
    };
    let mut owners = Vec::new();
    for entry in entries {
        let entry = entry.at("list", &all)?;
        let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        owners.extend(entry.file_name().into_string().ok().filter(|_| is_directory));
    }
    owners.sort();
    Ok(owners)
}

/// The named volumes of an owner on a disk, whether there is a job or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumesOf {
    dir: PathBuf,
}

impl VolumesOf {
    /// Returns those of an owner, of which there need be none.
    pub fn new(disk: &Path, owner: &str) -> Self {
        VolumesOf { dir: all(disk).join(owner) }
    }

    /// Returns the file in which it is recorded whose they are.
    pub fn record(&self) -> PathBuf {
        let mut name = self.dir.as_os_str().to_owned();
        name.push(".json");
        name.into()
    }

    /// Returns whether they are on a file system that would have to be mounted.
    pub fn is_unmounted(&self) -> Result<bool, PathError> {
        Ok(disk::file(&self.dir).exists() && !is_mounted(&self.dir)?)
    }

    /// Returns what `work` returns, given their directory: if they are on a file system that is not mounted, it
    /// is, for this call alone. Nobody else may mount them meanwhile.
    pub fn within<T: Send, E: From<PathError> + From<ContainerError> + Send>(
        &self,
        work: impl FnOnce(&Path) -> Result<T, E> + Send,
    ) -> Result<T, E> {
        if !self.is_unmounted()? {
            return work(&self.dir);
        }
        within_new(|| {
            disk::mount(&self.dir, Life::Kept)?;
            let done = work(&self.dir);
            unmount(&self.dir)?;
            done
        })
    }

    /// Removes what is left when there are no volumes any more: the directory, the file system, the record.
    pub fn remove(&self) -> Result<(), PathError> {
        unmount(&self.dir)?;
        // The record goes last: as long as there is anything, it is known whose it is.
        for path in [disk::file(&self.dir), self.dir.clone(), self.record()] {
            remove_tree(&path)?;
        }
        Ok(())
    }
}

/// Makes the file system of a directory, which takes its name when it is finished.
fn make(dir: &Path, file: &Path, limit_bytes: u64) -> Result<(), ContainerError> {
    make_private(dir)?;
    if fs::read_dir(dir).at("list", dir)?.next().is_some() {
        return Err(ContainerError::VolumesUnlimited { path: dir.to_owned(), limit_bytes });
    }
    let new = dir.with_extension(UNFINISHED);
    match fs::remove_file(&new) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        removed => removed.at("remove", &new)?,
    }
    disk::write(&new, limit_bytes, Life::Kept)?;
    Ok(fs::rename(&new, file).at("rename", &new)?)
}

fn is_mounted(dir: &Path) -> Result<bool, PathError> {
    let parent = dir.parent().unwrap_or(dir);
    let device = |path: &Path| fs::metadata(path).at("look up", path).map(|found| found.dev());
    Ok(device(dir)? != device(parent)?)
}
