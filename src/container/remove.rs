//! Taking a container apart, whatever is left of it.

use std::time::Duration;

use super::disk;
use super::engine::{Engine, remove_tree};
use super::error::ContainerError;
use super::record::Record;
use crate::bundle;
use crate::rootfs;
use crate::sys::cgroup;

/// How long killed processes may take to be gone.
const TIMEOUT: Duration = Duration::from_secs(10);

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
        disk::remove(&record.disk)?;
        self.store.release(&record.id)?;
        // The record goes last: as long as there is anything, it says where.
        remove_tree(directory.path())
    }

    /// Removes containers, several at a time; returns the first error of those that failed.
    pub fn remove_all(&self, records: &[Record]) -> Result<(), ContainerError> {
        let results: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                records.iter().map(|record| scope.spawn(|| self.remove(record))).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("removing does not panic"))
                .collect()
        });
        results.into_iter().collect()
    }
}
