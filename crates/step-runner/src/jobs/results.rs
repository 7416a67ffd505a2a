//! The results of a job's steps, in a file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use oci_hooks_files::fs::{PathError, create_private};
use prost::{Message as _, decode_length_delimiter, length_delimiter_len};
use tokio::sync::watch;

use super::super::wire::proto::StepResult;

/// Maximum number of results that are read for a job of an earlier server: a job of the same user
/// may have changed the file.
const MAX_KEPT: usize = 100_000;

/// Maximum size in bytes of each result of an earlier server's job.
const MAX_KEPT_BYTES: usize = 64 << 20;

/// Maximum size in bytes of the encoded length that precedes each result.
const MAX_LENGTH_BYTES: usize = 10;

/// The stored results of a job's steps.
#[derive(Debug)]
pub struct ResultStore {
    file: File,
    ends: Mutex<Vec<u64>>,
    count: watch::Sender<usize>,
}

impl ResultStore {
    pub(super) fn create(path: &Path) -> Result<Self, PathError> {
        let file = create_private(path)?;
        Ok(ResultStore { file, ends: Mutex::default(), count: watch::Sender::new(0) })
    }

    /// Finds the complete results in the file of a job that has ended: the first `limit`, and at
    /// most [`MAX_KEPT`].
    pub(super) fn of_ended(file: File, limit: usize) -> io::Result<Self> {
        let size = file.metadata()?.len();
        let mut ends = Vec::new();
        let mut end = 0;
        while ends.len() < limit.min(MAX_KEPT) {
            let mut head = [0; MAX_LENGTH_BYTES];
            let read = file.read_at(&mut head, end)?;
            let Ok(length @ 1..=MAX_KEPT_BYTES) = decode_length_delimiter(&head[..read]) else {
                break;
            };
            end += (length_delimiter_len(length) + length) as u64;
            if end > size {
                break;
            }
            ends.push(end);
        }
        let count = watch::Sender::new(ends.len());
        Ok(ResultStore { file, ends: Mutex::new(ends), count })
    }

    pub(super) fn push(&self, result: &StepResult) -> io::Result<()> {
        let bytes = result.encode_length_delimited_to_vec();
        let mut ends = self.ends();
        let start = ends.last().copied().unwrap_or(0);
        self.file.write_all_at(&bytes, start)?;
        ends.push(start + bytes.len() as u64);
        self.count.send_replace(ends.len());
        Ok(())
    }

    /// Returns the result at an index; `None` if fewer steps have ended.
    pub(super) fn get(&self, index: usize) -> io::Result<Option<StepResult>> {
        let (start, end) = {
            let ends = self.ends();
            let Some(end) = ends.get(index).copied() else { return Ok(None) };
            (index.checked_sub(1).map_or(0, |before| ends[before]), end)
        };
        let length = usize::try_from(end - start).map_err(io::Error::other)?;
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, start)?;
        Ok(Some(StepResult::decode_length_delimited(&*bytes)?))
    }

    pub(super) fn count(&self) -> usize {
        self.ends().len()
    }

    /// Returns a receiver that is notified when the number of results changes.
    pub(super) fn watch(&self) -> watch::Receiver<usize> {
        self.count.subscribe()
    }

    fn ends(&self) -> MutexGuard<'_, Vec<u64>> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_results_are_read_back_by_this_server_and_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r");
        let results = ResultStore::create(&path).unwrap();
        let all: Vec<_> = (1..6)
            .map(|i| StepResult {
                exports: [("x".to_owned(), "y".repeat(i * 1000))].into(),
                ..StepResult::default()
            })
            .collect();
        for result in &all {
            results.push(result).unwrap();
        }
        let open = |limit| ResultStore::of_ended(File::open(&path).unwrap(), limit).unwrap();
        assert_eq!(open(3).count(), 3);
        let next = open(MAX_KEPT);
        for results in [results, next] {
            assert_eq!(*results.watch().borrow(), 5);
            for (index, result) in all.iter().enumerate() {
                assert_eq!(results.get(index).unwrap().as_ref(), Some(result));
            }
            assert_eq!(results.get(5).unwrap(), None);
        }
    }

    #[test]
    fn damaged_results_end_before_the_first_damage() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r");
        let result = StepResult { status: 2, ..StepResult::default() };
        let results = ResultStore::create(&path).unwrap();
        results.push(&result).unwrap();
        let whole = std::fs::read(&path).unwrap();
        // Truncated, too long, or a hole.
        let damages: [&[u8]; 4] = [&whole[..1], &[0xff; 10], &[0x80; 3], &[0; 1000]];
        for damage in damages {
            std::fs::write(&path, [&whole, damage].concat()).unwrap();
            let results = ResultStore::of_ended(File::open(&path).unwrap(), MAX_KEPT).unwrap();
            assert_eq!(*results.watch().borrow(), 1, "{damage:?}");
            assert_eq!(results.get(0).unwrap().as_ref(), Some(&result));
        }
        File::options().write(true).open(&path).unwrap().set_len(1 << 40).unwrap();
        ResultStore::of_ended(File::open(&path).unwrap(), MAX_KEPT).unwrap();
    }
}
