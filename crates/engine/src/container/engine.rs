//! The engine: its directories, and the operations on all its containers.

use std::collections::BTreeSet;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::disk;
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};

use oci_hooks_files::fs::{PathContext as _, PathError, make_private, names_in, replace_unsynced};
use oci_hooks_files::lock::{FileLock, LOCK_TIMEOUT};
use oci_hooks_host::cgroup::{self, AvailableCgroups};
use oci_hooks_host::privilege::Privilege;
use oci_hooks_host::trash::{Trash, TrashReport};
use oci_hooks_image::ImageStore;

use super::error::ContainerError;
use super::logs::{self, LogLine, LogTail, last_lines};
use super::monitor::MonitorProgram;
use super::record::{self, ContainerRecord, RecordDirectory};
use super::steps;
use crate::runtime::OciRuntime;
use crate::{bundle, rootfs};

/// Containers of one runtime and one store.
#[derive(Debug)]
pub struct Engine {
    pub store: ImageStore,
    /// The runtime for new containers. Existing containers keep the runtime in their record.
    pub runtime: OciRuntime,
    /// Directory that is cleared on reboot, such as `/run/oci-hooks`.
    pub run: PathBuf,
    /// Directory that is kept on reboot, such as `/var/lib/oci-hooks`; on the store's file system or on another.
    pub disk: PathBuf,
    /// Program that monitors containers whose output is kept.
    pub monitor: MonitorProgram,
    pub privilege: Privilege,
}

impl Engine {
    /// Returns the cgroups that containers can have.
    pub fn cgroups(&self) -> AvailableCgroups {
        AvailableCgroups::of(self.privilege)
    }

    /// Returns the records of all containers, the oldest first.
    pub fn containers(&self) -> Result<Vec<ContainerRecord>, ContainerError> {
        record::records(&self.run)
    }

    /// Returns the records of one owner's containers.
    pub fn containers_of(&self, owner: &str) -> Result<Vec<ContainerRecord>, ContainerError> {
        let mut containers = self.containers()?;
        containers.retain(|record| record.owner == owner);
        Ok(containers)
    }

    /// Returns the errors of reading unreadable records.
    pub fn unreadable_records(&self) -> Result<Vec<ContainerError>, ContainerError> {
        record::find_unreadable(&self.run)
    }

    /// Returns the record of the container with this id, this prefix of an id, or this name.
    pub fn find(&self, id: &str) -> Result<ContainerRecord, ContainerError> {
        let mut containers = self.containers()?;
        if let Some(at) = containers.iter().position(|record| record.id == id || record.name == id)
        {
            return Ok(containers.swap_remove(at));
        }
        containers.retain(|record| !id.is_empty() && record.id.starts_with(id));
        match containers.len() {
            0 => Err(ContainerError::Unknown { id: id.to_owned() }),
            1 => Ok(containers.swap_remove(0)),
            _ => Err(ContainerError::Ambiguous { id: id.to_owned() }),
        }
    }

    /// Returns the directory of a container's files that are cleared on reboot.
    pub fn directory(&self, id: &str) -> RecordDirectory {
        RecordDirectory::of(&self.run, id)
    }

    /// Returns the last lines of a container's output, the oldest first.
    pub fn logs(
        &self,
        record: &ContainerRecord,
        count: usize,
    ) -> Result<Vec<LogLine>, ContainerError> {
        Ok(last_lines(&self.directory(&record.id).log(), count)?)
    }

    /// Returns the end of a container's output, at most this many lines and bytes.
    pub fn log_tail(
        &self,
        record: &ContainerRecord,
        count: usize,
        bytes: u64,
    ) -> Result<LogTail, ContainerError> {
        Ok(logs::tail(&self.directory(&record.id).log(), count, bytes)?)
    }

    /// Returns the directory of a container's root file system and volumes.
    pub fn disk_of(&self, id: &str) -> PathBuf {
        self.disks().join(id)
    }

    /// Returns the directory of all containers' root file systems and volumes.
    pub(super) fn disks(&self) -> PathBuf {
        self.disk.join("containers")
    }

    /// Returns the init program, creating it if missing.
    ///
    /// It is below `disk`, because the file system of `run` is often mounted `noexec`.
    pub fn init_program(&self) -> Result<PathBuf, ContainerError> {
        let dir = self.disk.join("bin");
        let path = dir.join("init");
        // Compared as a whole: an update has a new program, and a partly written file is not usable.
        let is_there = || fs::read(&path).is_ok_and(|bytes| bytes == oci_hooks_init::PROGRAM);
        if is_there() {
            return Ok(path);
        }
        make_private(&dir)?;
        // Written by one process: replacing it again would unlink the file that another one mounts.
        let _lock = FileLock::acquire_exclusive(&dir.join("init.lock"), LOCK_TIMEOUT)?;
        if is_there() {
            return Ok(path);
        }
        replace_unsynced(&path, oci_hooks_init::PROGRAM, 0o555)?;
        Ok(path)
    }

    /// Returns the null device, for output that is discarded.
    ///
    /// It is a device of the engine's own if possible: crun changes the owner of a container's streams to the
    /// container's user, and all programs share the host's `/dev/null`.
    pub(super) fn null(&self) -> Result<File, ContainerError> {
        let dir = self.disk.join("bin");
        let path = dir.join("null");
        let open = |path: &Path| File::options().read(true).write(true).open(path);
        let hosts = Path::new("/dev/null");
        if !self.privilege.can_make_devices() {
            // The runtime cannot change the owner of the host's device either.
            return Ok(open(hosts).with_path("open", hosts)?);
        }
        if let Ok(null) = open(&path) {
            return Ok(null);
        }
        make_private(&dir)?;
        let mode = Mode::from_raw_mode(0o666);
        // Another process may create it at the same time.
        let _ = mknodat(CWD, &path, FileType::CharacterDevice, mode, makedev(1, 3));
        let _ = fs::set_permissions(&path, Permissions::from_mode(0o666));
        Ok(open(&path).or_else(|_| open(hosts)).with_path("open", hosts)?)
    }

    /// Returns the trash for files below `disk` that cannot be removed.
    pub fn trash(&self) -> Trash {
        self.store.trash().with_root(&self.disk)
    }

    /// Returns the trash for files below `run` that cannot be removed.
    pub fn run_trash(&self) -> Trash {
        self.store.trash().with_root(&self.run)
    }

    /// Tries again to remove the trash of containers and images.
    pub fn empty_trash(&self) -> Result<TrashReport, PathError> {
        let mut all = TrashReport::default();
        for trash in self.all_trash() {
            let TrashReport { removed, left } = trash.remove_entries()?;
            all.removed += removed;
            all.left.extend(left);
        }
        Ok(all)
    }

    fn all_trash(&self) -> Vec<Trash> {
        let mut all = vec![self.trash(), self.run_trash()];
        if self.store.options().root != self.disk {
            all.push(self.store.trash().clone());
        }
        all
    }

    /// Returns the path of a lock file. A process that creates a container holds a shared lock
    /// until the record exists: before that, the container looks like the leftover of a killed
    /// process.
    pub(super) fn orphans_lock(&self) -> PathBuf {
        self.run.join("containers.lock")
    }

    /// Removes containers whose record is missing or corrupt, and the runtime's state of removed containers.
    /// Returns their number.
    pub fn remove_unrecorded(&self) -> Result<usize, ContainerError> {
        let _nobody_makes_one = FileLock::acquire_exclusive(&self.orphans_lock(), LOCK_TIMEOUT)?;
        let orphans = record::orphans(&self.run)?;
        for id in &orphans {
            self.remove_bare(id)?;
        }
        self.release_unknown()?;
        // A process killed while it created a container may have created the socket last.
        for id in steps::names(&self.run)?.iter().filter(|id| !self.directory(id).path().exists()) {
            steps::remove(&self.run, id)?;
        }
        Ok(orphans.len() + self.remove_unknown()?)
    }

    /// Removes containers whose records were written by another version of this program, except running ones.
    /// Returns the number removed, and the reasons for keeping the others.
    pub fn remove_of_other_versions(&self) -> Result<(usize, Vec<String>), ContainerError> {
        let (mut removed, mut running) = (0, Vec::new());
        for id in record::find_other_versions(&self.run)? {
            if let Some(process) = self.directory(&id).process(&id) {
                let pid = process.pid;
                running.push(format!(
                    "container {id}, which another version of this program created, is still running (process {pid}), \
                     so neither it nor its job is removed: end that process, and prune again"
                ));
            } else {
                self.remove_bare(&id)?;
                removed += 1;
            }
        }
        Ok((removed, running))
    }

    /// Removes all resources that are found by the id of a container whose record or directory is missing or
    /// unreadable.
    pub fn remove_bare(&self, id: &str) -> Result<(), ContainerError> {
        let directory = self.directory(id);
        if is_id(id) {
            self.kill_unrecorded(id)?;
            self.delete_state(&self.runtime, id)?;
            // Other resources of the container ended with its last process.
            cgroup::remove_container_cgroup(id);
            steps::remove(&self.run, id)?;
            bundle::unmount(&directory.bundle())?;
            rootfs::unmount(&self.disk_of(id))?;
            disk::remove(&self.disk_of(id), &self.trash())?;
            self.store.release(id)?;
        }
        Ok(self.run_trash().remove(directory.path())?)
    }

    /// Releases the image store's leases of removed containers.
    fn release_unknown(&self) -> Result<(), ContainerError> {
        // The store's run directory may be another engine's.
        if self.store.options().run == self.run {
            for id in self.store.holders()?.iter().filter(|id| is_id(id)) {
                if !self.directory(id).path().exists() {
                    self.store.release(id)?;
                }
            }
        }
        Ok(())
    }

    /// Removes the runtime's state of containers without a directory: a runtime that was dying when
    /// its caller was killed may have written the state after the rest of the container was
    /// removed.
    fn remove_unknown(&self) -> Result<usize, ContainerError> {
        let root = &self.runtime.root;
        // Outside the run directory, there may be other engines' containers.
        let entries = match fs::read_dir(root) {
            Ok(entries) if root.starts_with(&self.run) => entries,
            _ => return Ok(0),
        };
        let ids = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let unknown: Vec<_> = ids.filter(|id| !self.directory(id).path().exists()).collect();
        for id in &unknown {
            self.kill_unrecorded(id)?;
            self.delete_state(&self.runtime, id)?;
        }
        Ok(unknown.len())
    }

    /// Removes orphans as [`remove_unrecorded`](Self::remove_unrecorded) does, and root file systems and volumes of
    /// containers whose records are gone, for example after a reboot. Returns the number of containers.
    pub fn remove_orphans(&self) -> Result<usize, ContainerError> {
        let mut removed = self.remove_unrecorded()?;
        let disks = self.disks();
        // A container has a directory, the file of its file system, or both.
        let id = |name: String| name.strip_suffix(disk::SUFFIX).map(str::to_owned).unwrap_or(name);
        let ids: BTreeSet<_> = names_in(&disks)?.into_iter().map(id).collect();
        for id in ids.iter().filter(|id| !self.directory(id).path().exists()) {
            let dir = disks.join(id);
            rootfs::unmount(&dir)?;
            disk::remove(&dir, &self.trash())?;
            removed += 1;
        }
        Ok(removed)
    }
}

/// Returns whether a name is a container id.
fn is_id(name: &str) -> bool {
    name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use oci_hooks_image::StoreOptions;
    use oci_hooks_testsupport::damage::RecordDamage;

    use super::super::record::tests::record;
    use super::*;

    #[test]
    fn container_with_a_corrupt_record_is_removed_unless_newer() {
        if !rustix::process::geteuid().is_root() {
            // Removal looks for mounts, which requires root.
            return;
        }
        for damage in RecordDamage::ALL {
            let dir = tempfile::tempdir().unwrap();
            let (root, run) = (dir.path().join("root"), dir.path().join("run"));
            let options = StoreOptions::new(&root, &run);
            let engine = Engine {
                store: ImageStore::open(options).unwrap(),
                runtime: OciRuntime::new("/nonexistent".into(), run.join("runtime")),
                run: run.clone(),
                disk: root,
                monitor: MonitorProgram { path: "/nonexistent".into(), arguments: Vec::new() },
                privilege: Privilege::Root,
            };
            let ids = ["a", "b"].map(|digit| digit.repeat(64));
            for id in &ids {
                engine.directory(id).create(&record(id)).unwrap();
                fs::create_dir_all(engine.disk_of(id).join("upper")).unwrap();
                fs::create_dir_all(run.join("leases").join(id)).unwrap();
            }
            let there = || {
                let dirs = [run.join("containers"), engine.disks(), run.join("leases")];
                dirs.map(|dir| fs::read_dir(dir).unwrap().count())
            };
            damage.inflict(&engine.directory(&ids[1]).path().join("record.json"));
            assert_eq!(engine.unreadable_records().unwrap().len(), 1, "{damage:?}");
            assert_eq!(engine.containers().unwrap().len(), 1, "{damage:?}");
            engine.remove_orphans().unwrap();
            let left = if damage == RecordDamage::OtherVersion { [2; 3] } else { [1; 3] };
            assert_eq!(there(), left, "{damage:?}");
            engine.remove_bare(&ids[1]).unwrap();
            assert_eq!(there(), [1; 3], "{damage:?}");
        }
    }
}
