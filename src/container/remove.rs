//! Taking a container apart, whatever is left of it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use super::disk;
use super::engine::Engine;
use super::error::ContainerError;
use super::record::Record;
use crate::bundle;
use crate::rootfs;
use crate::sys::cgroup;

/// How long killed processes may take to be gone.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How many containers are removed at once: each takes descriptors, of which there may be few.
const AT_ONCE: usize = 4;

impl Engine {
    /// Kills a container and removes everything of it. Each step takes it that an earlier process
    /// was killed while doing the same, so this may be called again and again.
    pub fn remove(&self, record: &Record) -> Result<(), ContainerError> {
        let directory = self.directory(&record.id);
        // Killed here and not by the runtime: runc looks only every 100 ms whether it is gone.
        if let Some(process) = record.process.or_else(|| directory.process()) {
            process.kill(TIMEOUT).map_err(|_| ContainerError::Unkillable {
                id: record.id.clone(),
                timeout: TIMEOUT,
            })?;
        }
        if record.runtime.root.join(&record.id).exists() {
            record.runtime.delete(&record.id)?;
        }
        if !cgroup::remove(&record.cgroup) {
            return Err(ContainerError::Unkillable { id: record.id.clone(), timeout: TIMEOUT });
        }
        bundle::unmount(&directory.bundle())?;
        rootfs::unmount(&record.disk)?;
        disk::remove(&record.disk, &self.trash())?;
        self.store.release(&record.id)?;
        // The record goes last: as long as there is anything, it says where.
        Ok(self.run_trash().remove(directory.path())?)
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
            let threads: Vec<_> = records.iter().take(AT_ONCE).map(|_| scope.spawn(some)).collect();
            let join =
                |thread: ScopedJoinHandle<'_, _>| thread.join().expect("removing does not panic");
            threads.into_iter().map(join).fold(Ok(()), Result::and)
        })
    }
}
