//! Results of a job's steps, in the order in which they ended: stored on disk, since each may be large
//! and all are kept until the job is removed.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use prost::Message as _;
use tokio::sync::watch;

use super::super::wire::proto::StepResult;

/// The stored results of a job's steps.
#[derive(Debug)]
pub(super) struct Results {
    file: File,
    ends: Mutex<Vec<u64>>,
    count: watch::Sender<usize>,
}

impl Results {
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).mode(0o600).open(path)?;
        Ok(Results { file, ends: Mutex::default(), count: watch::Sender::new(0) })
    }

    /// Appends a result to the file.
    pub(super) fn push(&self, result: &StepResult) -> io::Result<()> {
        let bytes = result.encode_to_vec();
        let mut ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        let start = ends.last().copied().unwrap_or(0);
        self.file.write_all_at(&bytes, start)?;
        ends.push(start + bytes.len() as u64);
        self.count.send_replace(ends.len());
        Ok(())
    }

    /// Returns a result; `None` if that step has not ended.
    pub(super) fn get(&self, index: usize) -> io::Result<Option<StepResult>> {
        let (start, end) = {
            let ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(end) = ends.get(index).copied() else { return Ok(None) };
            (index.checked_sub(1).map_or(0, |before| ends[before]), end)
        };
        let length = usize::try_from(end - start).map_err(io::Error::other)?;
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, start)?;
        Ok(Some(StepResult::decode(&*bytes)?))
    }

    /// Returns a receiver of the number of results.
    pub(super) fn watch(&self) -> watch::Receiver<usize> {
        self.count.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_read_as_they_were_written() {
        let dir = tempfile::tempdir().unwrap();
        let results = Results::create(&dir.path().join("r")).unwrap();
        let all: Vec<_> = (0..5)
            .map(|i| StepResult {
                exports: [("x".to_owned(), "y".repeat(i * 1000))].into(),
                ..StepResult::default()
            })
            .collect();
        for result in &all {
            results.push(result).unwrap();
        }
        assert_eq!(*results.watch().borrow(), 5);
        for (index, result) in all.iter().enumerate() {
            assert_eq!(results.get(index).unwrap().as_ref(), Some(result));
        }
        assert_eq!(results.get(5).unwrap(), None);
    }
}
