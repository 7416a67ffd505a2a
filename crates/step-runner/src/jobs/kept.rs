//! Jobs of an earlier server: their records, logs and results on disk.
//!
//! A job of the same user may have changed any of these files.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;
use std::time::SystemTime;

use oci_hooks_files::beneath::ConfinedRoot;
use oci_hooks_files::error::chain;
use oci_hooks_files::fs::{PathContext as _, PathError, READ_FLAGS, replace_unsynced};
use oci_hooks_files::record::{self, RecordError};
use oci_hooks_host::trash::Trash;
use rustix::fs::Mode;
use tracing::debug;

use super::super::log::LogReader;
use super::super::wire::proto::step_result::Status;
use super::event::{JobSnapshot, MAX_ID_BYTES};
use super::results::ResultStore;
use super::state::JobDir;

/// Maximum number of bytes that are read of a record. The id and the message of a job are escaped
/// in it, which lengthens them.
const MAX_RECORD_BYTES: u64 = 64 << 10;

/// Maximum length of the message in a record; those that a server writes are shorter.
const MAX_MESSAGE_BYTES: usize = 16 << 10;

/// A job of an earlier server, which has ended.
#[derive(Debug)]
pub struct EarlierJob {
    pub dir: JobDir,
    pub state: JobSnapshot,
    pub log: LogReader,
    pub results: ResultStore,
}

/// An error in opening the files of a job of an earlier server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EarlierJobError {
    #[error(transparent)]
    Path(#[from] PathError),
    #[error(transparent)]
    Record(#[from] RecordError),
}

impl EarlierJob {
    /// Opens the files of a job, and removes those that only a running job needs. Returns `None`
    /// for a job without a record, such as one that was not started.
    pub fn open(
        jobs: &ConfinedRoot,
        dir: JobDir,
        trash: &Trash,
        max_results: usize,
    ) -> Result<Option<Self>, EarlierJobError> {
        let path = dir.record();
        let record = match open_file(jobs, &path) {
            Err(error) if error.source.kind() == io::ErrorKind::NotFound => return Ok(None),
            record => record?,
        };
        let mut text = Vec::new();
        record.take(MAX_RECORD_BYTES).read_to_end(&mut text).with_path("read", &path)?;
        let state: JobSnapshot = record::decode(&path, &text)?;
        check_state(&state).with_path("use", &path)?;
        let path = dir.log();
        let log = LogReader::of_ended(open_file(jobs, &path)?, &path)?;
        let path = dir.results();
        let results = open_file(jobs, &path)?;
        let results = ResultStore::of_ended(results, max_results).with_path("read", &path)?;
        // The directory is not a symbolic link: files in it were opened.
        dir.remove_secrets(trash)?;
        Ok(Some(EarlierJob { dir, state, log, results }))
    }

    /// Marks a job as failed, in memory and in its record, because it ran when its server ended.
    pub fn lose(&mut self, reason: &str) {
        let JobSnapshot { status, message, exit_code, end, .. } = &mut self.state;
        *status = Status::Failure;
        *message = format!("job lost: {reason} while it ran");
        *exit_code = 1;
        *end = Some(SystemTime::now());
        write_record(&self.dir.record(), &self.state);
    }
}

/// Checks the state in a record: the lengths of id and message, as one response contains them for
/// all jobs, and that an ended job has a final status, for which clients wait.
fn check_state(state: &JobSnapshot) -> io::Result<()> {
    let JobSnapshot { id, status, message, .. } = state;
    let is_final = !matches!(status, Status::Unspecified | Status::Running);
    if id.is_empty() || id.len() > MAX_ID_BYTES {
        Err(io::Error::other("the id of the job is invalid"))
    } else if message.len() > MAX_MESSAGE_BYTES {
        Err(io::Error::other("the message of the job is too long"))
    } else if state.is_finished() && !is_final {
        Err(io::Error::other("the job has ended without a status"))
    } else {
        Ok(())
    }
}

/// Opens a file of a job for reading. Fails if the path contains symbolic links, or leads to
/// anything but a regular file.
fn open_file(jobs: &ConfinedRoot, path: &Path) -> Result<File, PathError> {
    let below = path.strip_prefix(jobs.path()).expect("directories of jobs are below it");
    let file = File::from(jobs.open(below, READ_FLAGS, Mode::empty())?);
    match file.metadata().with_path("inspect", path)?.is_file() {
        true => Ok(file),
        false => Err(PathError::new("use", path, io::Error::other("it is not a regular file"))),
    }
}

/// Writes the state of a job to its record. Returns whether that succeeded: if not, the job continues, but a later
/// server does not know its state.
pub fn write_record(path: &Path, state: &JobSnapshot) -> bool {
    let written = replace_unsynced(path, &record::encode(state), 0o600);
    if let Err(error) = &written {
        debug!(path = %path.display(), error = %chain(error), "job not recorded");
    }
    written.is_ok()
}
