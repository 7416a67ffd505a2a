//! Taking a container apart, whatever is left of it.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tracing::info_span;

use super::disk;
use super::engine::Engine;
use super::error::ContainerError;
use super::record::Record;
use super::steps;
use crate::bundle;
use crate::rootfs;
use crate::runtime::Runtime;
use crate::sys::fs::PathContext as _;
use crate::sys::identity::Identity;
use crate::sys::processes::rooted_in;
use crate::sys::thread::{Beside, beside};
use crate::sys::{cgroup, mount};

/// How long killed processes may take to be gone.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How many containers are removed at once: each takes descriptors, of which there may be few.
const AT_ONCE: usize = 4;

/// Kills the processes of a container that has no cgroup. Returns whether all ended.
fn kill_rooted_in(id: &str) -> Result<bool, ContainerError> {
    loop {
        let processes = rooted_in(id).at("list", Path::new("/proc"))?;
        if processes.is_empty() {
            return Ok(true);
        }
        // One may have made others before it was killed.
        for process in processes {
            if process.kill(TIMEOUT).is_err() {
                return Ok(false);
            }
        }
    }
}

impl Engine {
    /// Kills all processes of a container.
    fn kill_processes(&self, record: &Record) -> Result<(), ContainerError> {
        let unkillable = || ContainerError::Unkillable { id: record.id.clone(), timeout: TIMEOUT };
        // Killed here and not by the runtime: runc looks only every 100 ms whether it is gone.
        if let Some(process) =
            record.process.or_else(|| self.directory(&record.id).process(&record.id))
        {
            process.kill(TIMEOUT).map_err(|_| unkillable())?;
        }
        // Those of a container that shares the processes of others do not end with its first one.
        let is_dead = if record.cgroup.is_empty() {
            kill_rooted_in(&record.id)?
        } else {
            cgroup::kill(&record.cgroup)
        };
        if is_dead { Ok(()) } else { Err(unkillable()) }
    }

    /// Removes what a runtime has of a container. One that was killed early has made files by which it does not
    /// know the container, and leaves them.
    fn delete_state(&self, runtime: &Runtime, id: &str) -> Result<(), ContainerError> {
        let state = runtime.root.join(id);
        if state.exists() {
            runtime.delete(id)?;
            self.remove_state(&state)?;
        }
        Ok(())
    }

    /// Removes the directory that a runtime has of a container.
    pub(super) fn remove_state(&self, state: &Path) -> Result<(), ContainerError> {
        unmount_state(state)?;
        Ok(self.run_trash().remove(state)?)
    }

    /// Kills what makes a container for somebody who was killed: what the runtime started in turn, or a
    /// script around it, does not die with the caller, and would go on after everything else has gone.
    pub(super) fn kill_makers(runtime: &Runtime, id: &str) -> Result<(), ContainerError> {
        let unkillable = || ContainerError::Unkillable { id: id.to_owned(), timeout: TIMEOUT };
        let words = [runtime.root.as_os_str(), OsStr::new("run"), OsStr::new(id)];
        // One that was about to start another has done so when it is dead.
        loop {
            let makers = Identity::with_words(&words).at("list", Path::new("/proc"))?;
            if makers.is_empty() {
                return Ok(());
            }
            for maker in makers {
                maker.kill(TIMEOUT).map_err(|_| unkillable())?;
            }
        }
    }

    fn kill_all(&self, records: &[Record]) -> Result<(), ContainerError> {
        let kill = |record: &Record| {
            if record.process.is_none() {
                Self::kill_makers(&record.runtime, &record.id)?;
            }
            self.kill_processes(record)
        };
        let killed: Vec<_> = records.iter().map(kill).collect();
        killed.into_iter().collect()
    }

    /// Kills a container and removes everything of it. Each step takes it that an earlier process
    /// was killed while doing the same, so this may be called again and again.
    pub fn remove(&self, record: &Record) -> Result<(), ContainerError> {
        let _span = info_span!("remove", container = record.id).entered();
        if record.process.is_none() {
            Self::kill_makers(&record.runtime, &record.id)?;
        }
        self.take_apart(record)
    }

    /// Removes a container as [`Engine::remove`] does, of which it is known that nobody makes it any more.
    pub(super) fn take_apart(&self, record: &Record) -> Result<(), ContainerError> {
        self.kill_processes(record)?;
        steps::remove(&self.run, &record.id)?;
        let directory = self.directory(&record.id);
        self.delete_state(&record.runtime, &record.id)?;
        if !record.cgroup.is_empty() && !cgroup::remove(&record.cgroup) {
            return Err(ContainerError::Unkillable { id: record.id.clone(), timeout: TIMEOUT });
        }
        bundle::unmount(&directory.bundle())?;
        rootfs::unmount(&record.disk)?;
        disk::remove(&record.disk, &self.trash())?;
        self.store.release(&record.id)?;
        // The record goes last: as long as there is anything, it says where.
        Ok(self.run_trash().remove(directory.path())?)
    }

    /// Removes containers as [`Engine::remove_all`] does, and meanwhile, once all are dead, what only they
    /// used, such as a network: the kernel takes longer to forget a firewall's rules than a runtime to
    /// delete a container.
    pub fn remove_all_with<T: Send>(
        &self,
        records: &[Record],
        others: impl FnOnce() -> T + Send,
    ) -> Result<T, ContainerError> {
        if let Err(error) = self.kill_all(records) {
            return Err(self.remove_all(records).err().unwrap_or(error));
        }
        std::thread::scope(|scope| {
            let others = beside(scope, others);
            let removed = self.remove_all(records);
            let others = others.join();
            removed.map(|()| others)
        })
    }

    /// Removes containers, several at a time; all that can be, and returns the first error of the others.
    pub fn remove_all(&self, records: &[Record]) -> Result<(), ContainerError> {
        let next = AtomicUsize::new(0);
        let some = || {
            let mut result = Ok(());
            while let Some(record) = records.get(next.fetch_add(1, Ordering::Relaxed)) {
                result = result.and(self.remove(record));
            }
            result
        };
        std::thread::scope(|scope| {
            let at_once = records.iter().take(AT_ONCE);
            let threads: Vec<_> = at_once.map(|_| beside(scope, some)).collect();
            threads.into_iter().map(Beside::join).fold(Ok(()), Result::and)
        })
    }
}

/// Takes away what a runtime mounted in its directory of a container: runc mounts itself on a file there, for an
/// instant in which it may be killed.
fn unmount_state(state: &Path) -> Result<(), ContainerError> {
    let entries = match fs::read_dir(state) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.at("list", state)?,
    };
    for entry in entries.flatten() {
        mount::unmount(&entry.path())?;
    }
    Ok(())
}

#[test]
fn what_a_killed_runtime_mounted_on_a_file_of_its_own_is_unmounted() {
    if !rustix::process::geteuid().is_root() {
        // Nobody else can mount.
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("runc.AbCdEf");
    fs::write(&file, "").unwrap();
    rustix::mount::mount_bind("/bin/sh", &file).unwrap();
    assert!(fs::remove_file(&file).is_err());
    unmount_state(dir.path()).unwrap();
    fs::remove_file(&file).unwrap();
    unmount_state(&dir.path().join("none")).unwrap();
}
