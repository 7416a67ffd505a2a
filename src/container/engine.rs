//! The engine: where everything is, and what is done with all of it.

use std::collections::BTreeSet;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::disk;
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};

use super::error::ContainerError;
use super::logs::{self, LogLine, LogTail, last_lines};
use super::monitor::MonitorProgram;
use super::record::{self, Directory, Record};
use super::steps;
use crate::bundle;
use crate::image::Store;
use crate::rootfs;
use crate::runtime::Runtime;
use crate::sys::cgroup::{self, Cgroups};
use crate::sys::fs::{
    Durability, FileAt, PathContext as _, PathError, ReplaceOptions, Symlinks, make_private,
};
use crate::sys::init;
use crate::sys::lock::{BRIEF, FileLock};
use crate::sys::privilege::Privilege;
use crate::sys::trash::{Emptied, Trash};

/// Containers on one runtime, with one store.
#[derive(Debug)]
pub struct Engine {
    pub store: Store,
    /// The runtime for new containers. Existing containers keep the runtime in their record.
    pub runtime: Runtime,
    /// What does not outlive a boot, as `/run/oci-hooks`.
    pub run: PathBuf,
    /// What does, as `/var/lib/oci-hooks`; on the same disk as the store, or not.
    pub disk: PathBuf,
    /// The program that stays with containers whose output is kept.
    pub monitor: MonitorProgram,
    /// What this process may do.
    pub privilege: Privilege,
}

impl Engine {
    /// Returns the cgroups that containers can have.
    pub fn cgroups(&self) -> Cgroups {
        Cgroups::of(self.privilege)
    }

    /// Returns the records of all containers, the oldest first.
    pub fn containers(&self) -> Result<Vec<Record>, ContainerError> {
        record::records(&self.run)
    }

    /// Returns those of one owner.
    pub fn containers_of(&self, owner: &str) -> Result<Vec<Record>, ContainerError> {
        let mut containers = self.containers()?;
        containers.retain(|record| record.owner == owner);
        Ok(containers)
    }

    /// Returns why records of containers cannot be read, if any cannot.
    pub fn unreadable(&self) -> Result<Vec<ContainerError>, ContainerError> {
        record::unreadable(&self.run)
    }

    /// Returns the record of the container with this id, this beginning of an id, or this name.
    pub fn find(&self, id: &str) -> Result<Record, ContainerError> {
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

    /// Returns the files of a container.
    pub fn directory(&self, id: &str) -> Directory {
        Directory::of(&self.run, id)
    }

    /// Returns the last lines of what a container wrote, the oldest first.
    pub fn logs(&self, record: &Record, count: usize) -> Result<Vec<LogLine>, ContainerError> {
        Ok(last_lines(&self.directory(&record.id).log(), count)?)
    }

    /// Returns the end of what a container wrote: so many lines and bytes at most.
    pub fn log_tail(
        &self,
        record: &Record,
        count: usize,
        bytes: u64,
    ) -> Result<LogTail, ContainerError> {
        Ok(logs::tail(&self.directory(&record.id).log(), count, bytes)?)
    }

    /// Returns where the root file system and the volumes of a container are.
    pub fn disk_of(&self, id: &str) -> PathBuf {
        self.disks().join(id)
    }

    /// Returns where the root file systems and volumes of all containers are.
    pub(super) fn disks(&self) -> PathBuf {
        self.disk.join("containers")
    }

    /// Returns the init program, made if it is not there yet.
    ///
    /// It is on the disk and not in the run directory, which is often mounted `noexec`.
    pub fn init_program(&self) -> Result<PathBuf, ContainerError> {
        let dir = self.disk.join("bin");
        let path = dir.join("init");
        // Compared whole: an update of ours brings a new one, and a half-written one is none.
        let is_there = || fs::read(&path).is_ok_and(|bytes| bytes == init::PROGRAM);
        if is_there() {
            return Ok(path);
        }
        make_private(&dir)?;
        // One process writes the program: another that has opened it is about to mount it.
        let _lock = FileLock::exclusive(&dir.join("init.lock"), BRIEF)?;
        if is_there() {
            return Ok(path);
        }
        let options = ReplaceOptions {
            mode: Some(0o555),
            durability: Durability::Unsynced,
            ..ReplaceOptions::default()
        };
        FileAt::open(&path, Symlinks::Refuse)?.replace(init::PROGRAM, &options)?;
        Ok(path)
    }

    /// Returns where what nobody wants to see is written to.
    ///
    /// It is a device of our own where there can be one: crun makes the streams of a container belong
    /// to its user, and the host's `/dev/null` is one file for all.
    pub(super) fn null(&self) -> Result<File, ContainerError> {
        let dir = self.disk.join("bin");
        let path = dir.join("null");
        let open = |path: &Path| File::options().read(true).write(true).open(path);
        let hosts = Path::new("/dev/null");
        if !self.privilege.can_make_devices() {
            // Nor can a runtime change whose the host's is.
            return Ok(open(hosts).at("open", hosts)?);
        }
        if let Ok(null) = open(&path) {
            return Ok(null);
        }
        make_private(&dir)?;
        let mode = Mode::from_raw_mode(0o666);
        // Another process may make it at the same time.
        let _ = mknodat(CWD, &path, FileType::CharacterDevice, mode, makedev(1, 3));
        let _ = fs::set_permissions(&path, Permissions::from_mode(0o666));
        Ok(open(&path).or_else(|_| open(hosts)).at("open", hosts)?)
    }

    /// Returns where what cannot be removed of the disk is set aside.
    pub fn trash(&self) -> Trash {
        self.store.trash().also_of(&self.disk)
    }

    /// Returns where what cannot be removed of the run directory is set aside.
    pub fn run_trash(&self) -> Trash {
        self.store.trash().also_of(&self.run)
    }

    /// Tries again to remove what was set aside, of containers and of images.
    pub fn empty_trash(&self) -> Result<Emptied, PathError> {
        let mut all = Emptied::default();
        for trash in self.all_trash() {
            let Emptied { removed, left } = trash.empty()?;
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

    /// Whoever makes a container shares this lock until there is a record: before that, what it
    /// made looks as if it had been killed.
    pub(super) fn orphans_lock(&self) -> PathBuf {
        self.run.join("containers.lock")
    }

    /// Removes the directories of containers whose makers were killed before there was a record, and
    /// what runtimes have of containers that are gone. Returns how many.
    pub fn remove_unrecorded(&self) -> Result<usize, ContainerError> {
        let _nobody_makes_one = FileLock::exclusive(&self.orphans_lock(), BRIEF)?;
        let orphans = record::orphans(&self.run)?;
        for id in &orphans {
            self.remove_bare(id)?;
        }
        self.release_unknown()?;
        // A container that was about to be made when its maker was killed may have made one last.
        for id in steps::names(&self.run)?.iter().filter(|id| !self.directory(id).path().exists()) {
            steps::remove(&self.run, id)?;
        }
        Ok(orphans.len() + self.remove_unknown()?)
    }

    /// Removes the containers whose records another version of this program wrote, but for those that run.
    /// Returns how many, and why the others stay.
    pub fn remove_of_other_versions(&self) -> Result<(usize, Vec<String>), ContainerError> {
        let (mut removed, mut running) = (0, Vec::new());
        for id in record::of_other_versions(&self.run)? {
            if let Some(process) = self.directory(&id).process(&id) {
                let pid = process.pid;
                running.push(format!(
                    "container {id} of another version still runs (process {pid}), so that it and its job \
                     stay: end that process, and prune again"
                ));
            } else {
                self.remove_bare(&id)?;
                removed += 1;
            }
        }
        Ok((removed, running))
    }

    /// Removes a container whose record is missing or cannot be read, as far as its id leads.
    pub fn remove_bare(&self, id: &str) -> Result<(), ContainerError> {
        let directory = self.directory(id);
        if is_id(id) && directory.path().is_dir() {
            Self::kill_makers(&self.runtime, id)?;
            if self.runtime.root.join(id).exists() {
                // It may not know what it was killed over.
                let _ = self.runtime.delete(id);
            }
            self.remove_state(&self.runtime.root.join(id))?;
            // What it made elsewhere has gone with its last process.
            cgroup::remove_of(id);
            steps::remove(&self.run, id)?;
            bundle::unmount(&directory.bundle())?;
            rootfs::unmount(&self.disk_of(id))?;
            disk::remove(&self.disk_of(id), &self.trash())?;
            self.store.release(id)?;
        }
        Ok(self.run_trash().remove(directory.path())?)
    }

    /// Gives back what is leased for containers that are gone.
    fn release_unknown(&self) -> Result<(), ContainerError> {
        // Elsewhere there may be others'.
        if self.store.options().run == self.run {
            for id in self.store.holders()?.iter().filter(|id| is_id(id)) {
                if !self.directory(id).path().exists() {
                    self.store.release(id)?;
                }
            }
        }
        Ok(())
    }

    /// Removes what the runtime has of containers that nobody else knows: one that was about to die when
    /// its caller was killed may have come after everything else of its container had gone.
    fn remove_unknown(&self) -> Result<usize, ContainerError> {
        let root = &self.runtime.root;
        // Elsewhere there may be others'.
        let entries = match fs::read_dir(root) {
            Ok(entries) if root.starts_with(&self.run) => entries,
            _ => return Ok(0),
        };
        let ids = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let unknown: Vec<_> = ids.filter(|id| !self.directory(id).path().exists()).collect();
        for id in &unknown {
            Self::kill_makers(&self.runtime, id)?;
            // It may not know what it was killed over.
            let _ = self.runtime.delete(id);
            self.remove_state(&root.join(id))?;
        }
        Ok(unknown.len())
    }

    /// Removes what containers left on the disk whose records are gone: those of an earlier boot.
    /// Returns how many.
    pub fn remove_orphans(&self) -> Result<usize, ContainerError> {
        let mut removed = self.remove_unrecorded()?;
        let disks = self.disks();
        let entries = match fs::read_dir(&disks) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(removed),
            entries => entries.at("list", &disks)?,
        };
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        // A directory may have a file beside it, or that be left alone.
        let id = |name: String| name.strip_suffix(disk::SUFFIX).map(str::to_owned).unwrap_or(name);
        let ids: BTreeSet<_> = names.map(id).collect();
        for id in ids.iter().filter(|id| !self.directory(id).path().exists()) {
            let dir = disks.join(id);
            rootfs::unmount(&dir)?;
            disk::remove(&dir, &self.trash())?;
            removed += 1;
        }
        Ok(removed)
    }
}

/// Returns whether a name is one that containers get.
fn is_id(name: &str) -> bool {
    name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::record;
    use super::*;
    use crate::image::StoreOptions;
    use crate::sys::tests::Damage;

    #[test]
    fn a_container_whose_record_is_damaged_goes_but_not_one_of_another_version() {
        if !rustix::process::geteuid().is_root() {
            // Its mounts are looked for.
            return;
        }
        for damage in Damage::ALL {
            let dir = tempfile::tempdir().unwrap();
            let (root, run) = (dir.path().join("root"), dir.path().join("run"));
            let options = StoreOptions::new(&root, &run);
            let engine = Engine {
                store: Store::open(options).unwrap(),
                runtime: Runtime::new("/nonexistent".into(), run.join("runtime")),
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
            assert_eq!(engine.unreadable().unwrap().len(), 1, "{damage:?}");
            assert_eq!(engine.containers().unwrap().len(), 1, "{damage:?}");
            engine.remove_orphans().unwrap();
            let left = if damage == Damage::OtherVersion { [2; 3] } else { [1; 3] };
            assert_eq!(there(), left, "{damage:?}");
            engine.remove_bare(&ids[1]).unwrap();
            assert_eq!(there(), [1; 3], "{damage:?}");
        }
    }
}
