//! The state directory of a server: files of jobs, jobs of an earlier server, and cleanup after a crash.

use std::fs::{self, DirBuilder};
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use oci_hooks_files::beneath::ConfinedRoot;
use oci_hooks_files::fs::{
    PathContext as _, PathError, create_without_waiting, random_u64, read_if_there,
};
use oci_hooks_files::lock::FileLock;
use oci_hooks_host::removal::remove_tree;
use oci_hooks_host::trash::{Trash, TrashedDirectory};

use super::super::engine::{RecordedProcesses, run_within};
use super::super::socket::{SocketError, private_directory};
use super::descriptors::DescriptorBudget;
use super::event::JobSnapshot;
use super::kept::{self, EarlierJob, EarlierJobError};

/// Maximum number of characters of a job id that are used in the name of the job's directory.
const NAME_CHARS: usize = 40;

/// Maximum number of jobs of an earlier server that are kept, which bounds memory use: a job of the
/// same user may have created any number.
const MAX_KEPT_JOBS: usize = 10_000;

/// Maximum number of results of all kept jobs together.
const MAX_KEPT_RESULTS: usize = 1_000_000;

/// Maximum number of errors in [`EarlierJobs::damaged`].
const MAX_DAMAGED: usize = 100;

/// File with the unique id of the current boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// An error with the state directory.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The directory cannot be made private.
    #[error(transparent)]
    Directory(#[from] SocketError),
    /// Another server uses the directory.
    #[error("state directory {} is in use by another server: use another --state-dir", path.display())]
    InUse { path: PathBuf },
    /// A file cannot be used.
    #[error(transparent)]
    Path(#[from] PathError),
}

/// The state directory of a server. On drop, the status, log and results of jobs stay, for the next server.
#[derive(Debug)]
pub struct StateDir {
    root: PathBuf,
    earlier: EarlierJobs,
    trash: Trash,
    _lock: FileLock,
}

/// Jobs of an earlier server, as found in the state directory.
#[derive(Debug, Default)]
struct EarlierJobs {
    kept: Vec<EarlierJob>,
    /// Number of jobs that had not ended when their server did, or that have no record.
    leftovers: usize,
    /// Errors because of which jobs were not kept but removed, and errors in removing files.
    damaged: Vec<EarlierJobError>,
}

impl EarlierJobs {
    fn report(&mut self, error: EarlierJobError) {
        if self.damaged.len() < MAX_DAMAGED {
            self.damaged.push(error);
        }
    }
}

/// The directory of one job. It is removed on drop unless it contains a record of the job.
#[derive(Debug)]
pub struct JobDir {
    root: PathBuf,
    is_recorded: bool,
}

impl StateDir {
    /// Opens or creates a state directory. Kills the processes of a crashed server's jobs, and
    /// finds the jobs of an earlier server.
    pub fn open(root: &Path) -> Result<Self, StateError> {
        private_directory(root)?;
        // Absolute, as jobs have other working directories.
        let root = fs::canonicalize(root).with_path("resolve", root)?;
        let Some(lock) = FileLock::try_exclusive(&root.join("lock"))? else {
            return Err(StateError::InUse { path: root });
        };
        let trash = Trash::of(&root);
        // A job of this user may have created anything at this path.
        let _ = fs::remove_file(root.join("trash"));
        // Removes files that an earlier server could not remove.
        trash.remove_entries()?;
        let earlier = find_earlier_jobs(&root, &trash)?;
        let boot = root.join("boot");
        // A job of this user may have created anything at this path.
        let _ = fs::remove_file(&boot);
        let file = create_without_waiting(&boot, 0o600);
        file.and_then(|mut file| file.write_all(&boot_id())).with_path("write", &boot)?;
        Ok(StateDir { root, earlier, trash, _lock: lock })
    }

    /// Returns the number of jobs that had not ended when an earlier server did, or that have no
    /// record.
    pub fn leftovers(&self) -> usize {
        self.earlier.leftovers
    }

    /// Returns errors because of which jobs of an earlier server were not kept but removed, and
    /// errors in removing files.
    pub fn damaged(&self) -> &[EarlierJobError] {
        &self.earlier.damaged
    }

    /// Returns the jobs of an earlier server that were not closed; all have ended.
    pub(super) fn take_kept(&mut self) -> Vec<EarlierJob> {
        std::mem::take(&mut self.earlier.kept)
    }

    /// Returns files of earlier jobs that could not be removed and were moved to the trash.
    pub fn set_aside(&self) -> Vec<TrashedDirectory> {
        self.trash.take_set_aside()
    }

    /// Creates the directory of a job.
    pub(super) fn make(&self, id: &str) -> Result<JobDir, PathError> {
        // The number makes the name unique, also beside jobs of earlier servers; the rest is for readability.
        let number = random_u64();
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let plain: String =
            id.chars().take(NAME_CHARS).map(|c| if is_plain(c) { c } else { '_' }).collect();
        let root = self.root.join("jobs").join(format!("{number:016x}-{plain}"));
        let dir = JobDir { root, is_recorded: false };
        for path in [&dir.root, &dir.scratch(), &dir.variables()] {
            DirBuilder::new().mode(0o700).create(path).with_path("make", path)?;
        }
        Ok(dir)
    }
}

impl Drop for StateDir {
    fn drop(&mut self) {
        let jobs = self.root.join("jobs");
        if private_directory(&jobs).is_err() {
            // A job of this user may have created anything at this path, or locked the directory.
            let _ = self.trash.remove(&jobs);
        }
        let entries = fs::read_dir(&jobs).into_iter().flatten().flatten();
        for job in entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            let dir = JobDir { root: job.path(), is_recorded: true };
            // Without a record, no later server knows the job.
            if !dir.record().exists() || dir.remove_secrets(&self.trash).is_err() {
                // The next server removes leftover files.
                let _ = self.trash.remove(&dir.root);
            }
        }
        // Not empty if jobs were not closed.
        let _ = fs::remove_dir(&jobs);
        let _ = fs::remove_file(self.root.join("boot"));
    }
}

impl JobDir {
    /// Returns the scratch directory of the engine.
    pub fn scratch(&self) -> PathBuf {
        self.root.join("scratch")
    }

    /// Returns the directory of file variables.
    pub fn variables(&self) -> PathBuf {
        self.root.join("variables")
    }

    /// Returns the path of the log.
    pub fn log(&self) -> PathBuf {
        self.root.join("log")
    }

    /// Returns the path of the results.
    pub fn results(&self) -> PathBuf {
        self.root.join("results")
    }

    /// Returns the path of the record.
    pub fn record(&self) -> PathBuf {
        self.root.join("job.json")
    }

    /// Writes the record of a job that starts. From now on, the directory stays on drop.
    pub fn keep(&mut self, state: &JobSnapshot) {
        self.is_recorded = kept::write_record(&self.record(), state);
    }

    /// Returns whether the record was written and not removed.
    pub fn is_recorded(&self) -> bool {
        self.is_recorded
    }

    /// Removes the record, so that no later server knows the job, and the directory on drop.
    pub fn discard(&mut self) {
        self.is_recorded = false;
        // If it cannot be removed now, it is removed with the other files.
        let _ = fs::remove_file(self.record());
    }

    /// Removes the scratch files and the file variables, which only a running job needs. They may
    /// contain secrets.
    pub fn remove_secrets(&self, trash: &Trash) -> Result<(), PathError> {
        trash.remove(&self.scratch()).and(trash.remove(&self.variables()))
    }
}

impl Drop for JobDir {
    fn drop(&mut self) {
        if !self.is_recorded {
            // The next server removes leftover files.
            let _ = remove_tree(&self.root);
        }
    }
}

/// Kills processes of jobs whose server crashed, and opens the files of jobs of an earlier server.
fn find_earlier_jobs(root: &Path, trash: &Trash) -> Result<EarlierJobs, StateError> {
    let path = root.join("jobs");
    if private_directory(&path).is_err() {
        // A job of this user may have created anything at this path.
        trash.remove(&path)?;
        private_directory(&path)?;
    }
    let jobs = ConfinedRoot::new(&path)?;
    // After a reboot, pids refer to other processes.
    let boot = read_if_there(&root.join("boot"), 64).ok().flatten();
    let same_boot = boot.as_ref().is_some_and(|boot| !boot.is_empty() && *boot == boot_id());
    let reason = match boot {
        Some(_) if !same_boot => "the machine was restarted",
        _ => "its server ended",
    };
    let mut earlier = EarlierJobs::default();
    let max_jobs = DescriptorBudget::of_process(0).kept_jobs().min(MAX_KEPT_JOBS);
    let mut max_results = MAX_KEPT_RESULTS;
    if same_boot {
        kill_recorded(&path)?;
    }
    for entry in fs::read_dir(&path).with_path("list", &path)? {
        let path = entry.with_path("list", &path)?.path();
        let dir = JobDir { root: path.clone(), is_recorded: true };
        let opened = match earlier.kept.len() < max_jobs {
            true => EarlierJob::open(&jobs, dir, trash, max_results),
            false => {
                let text = format!("the limit of {max_jobs} jobs of earlier servers is reached");
                let error = io::Error::other(text);
                Err(PathError::new("keep", &path, error).into())
            }
        };
        match opened {
            Ok(Some(mut job)) => {
                max_results -= job.results.count();
                if !job.state.is_finished() {
                    job.lose(reason);
                    earlier.leftovers += 1;
                }
                earlier.kept.push(job);
                continue;
            }
            Ok(None) => earlier.leftovers += 1,
            Err(error) => earlier.report(error),
        }
        if let Err(error) = trash.remove(&path) {
            earlier.report(error.into());
        }
    }
    Ok(earlier)
}

/// Kills the processes of all jobs below a directory, with one search for all records: a search takes long, and a job of
/// this user may have written any number of records.
fn kill_recorded(jobs: &Path) -> Result<(), PathError> {
    let mut processes = RecordedProcesses::default();
    for entry in fs::read_dir(jobs).with_path("list", jobs)? {
        let root = entry.with_path("list", jobs)?.path();
        processes.add(&JobDir { root, is_recorded: true }.scratch());
    }
    processes.kill();
    Ok(())
}

/// Returns the boot id; empty if the kernel does not provide it.
fn boot_id() -> Vec<u8> {
    fs::read(BOOT_ID).unwrap_or_default()
}

/// Directories created for one job, the outermost first. On drop, empty ones are removed, unless
/// [`keep`](Self::keep) was called.
#[derive(Debug, Default)]
pub struct CreatedDirs {
    paths: Vec<PathBuf>,
}

impl CreatedDirs {
    /// Creates a directory and its missing parents. The error contains the path that failed.
    fn make(path: &Path) -> Result<Self, (PathBuf, io::Error)> {
        let mut created = CreatedDirs::default();
        let mut missing = Vec::new();
        for path in path.ancestors() {
            match fs::metadata(path) {
                Ok(meta) if meta.is_dir() => break,
                Ok(_) => return Err((path.to_path_buf(), io::ErrorKind::NotADirectory.into())),
                Err(error) if error.kind() == io::ErrorKind::NotFound => missing.push(path),
                // A parent is not a directory; the loop finds it further up.
                Err(error) if error.kind() == io::ErrorKind::NotADirectory => {}
                Err(error) => return Err((path.to_path_buf(), error)),
            }
        }
        for path in missing.into_iter().rev() {
            match DirBuilder::new().mode(0o700).create(path) {
                Ok(()) => created.paths.push(path.to_path_buf()),
                // Another job has created it.
                Err(_) if path.is_dir() => {}
                Err(error) => return Err((path.to_path_buf(), error)),
            }
        }
        Ok(created)
    }

    /// Creates directories like [`make`](Self::make), but fails after the time `limit`; directories
    /// that are created later are removed.
    pub fn make_within(path: &Path, limit: Duration) -> Result<Self, (PathBuf, io::Error)> {
        let theirs = path.to_path_buf();
        let made = run_within(limit, move || Self::make(&theirs));
        made.unwrap_or_else(|error| Err((path.to_path_buf(), error)))
    }

    pub(super) fn keep(mut self) {
        self.paths.clear();
    }
}

impl Drop for CreatedDirs {
    fn drop(&mut self) {
        for path in self.paths.iter().rev() {
            // Fails if it is not empty: another job may use it.
            let _ = fs::remove_dir(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::os::unix::process::CommandExt as _;
    use std::process::{Child, Command};
    use std::time::SystemTime;

    use oci_hooks_files::error::chain;
    use oci_hooks_host::identity::ProcessIdentity;
    use rustix::fs::{CWD, FileType, Mode};

    use super::super::super::wire::proto::step_result::Status;
    use super::*;

    #[test]
    fn job_directories_are_private_and_below_the_root_for_any_id() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(&dir.path().join("state")).unwrap();
        let long = "x".repeat(5000);
        let ids = ["1", "1", "../x", "a/b", "/etc", "..", "\0", "ü", &long];
        let jobs = ids.map(|id| state.make(id).unwrap());
        for job in &jobs {
            assert_eq!(job.root.parent().unwrap(), state.root.join("jobs"));
            assert_eq!(job.root.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        }
        assert_eq!(fs::read_dir(state.root.join("jobs")).unwrap().count(), 9);
        drop(jobs);
        let root = state.root.clone();
        drop(state);
        assert!(!root.join("jobs").exists());
    }

    /// Creates the directory of a job with this state, as a killed server leaves it.
    fn create_job(root: &Path, id: &str, end: Option<SystemTime>) -> PathBuf {
        let state = StateDir::open(root).unwrap();
        let mut dir = state.make(id).unwrap();
        let status = if end.is_some() { Status::Success } else { Status::Running };
        dir.keep(&JobSnapshot {
            id: id.to_owned(),
            status,
            message: String::new(),
            exit_code: 0,
            start: Some(SystemTime::UNIX_EPOCH),
            end,
        });
        fs::write(dir.log(), "line\n").unwrap();
        fs::write(dir.results(), "").unwrap();
        drop(state);
        fs::create_dir(dir.variables()).unwrap();
        fs::write(dir.variables().join("KEY"), "secret").unwrap();
        dir.root.clone()
    }

    #[test]
    fn jobs_of_an_earlier_server_are_found_without_their_secrets() {
        let dir = tempfile::tempdir().unwrap();
        create_job(dir.path(), "ended", Some(SystemTime::UNIX_EPOCH));
        create_job(dir.path(), "lost", None);
        fs::write(dir.path().join("boot"), "another").unwrap();
        let mut state = StateDir::open(dir.path()).unwrap();
        assert_eq!((state.leftovers(), state.damaged().len()), (1, 0));
        let mut kept = state.take_kept();
        kept.sort_by(|a, b| a.state.id.cmp(&b.state.id));
        let [ended, lost] = &kept[..] else { panic!("{kept:?}") };
        assert_eq!((&*ended.state.id, ended.state.status), ("ended", Status::Success));
        assert_eq!(ended.state.end, Some(SystemTime::UNIX_EPOCH));
        assert_eq!((&*lost.state.id, lost.state.status), ("lost", Status::Failure));
        assert_eq!(lost.state.message, "job lost: the machine was restarted while it ran");
        for job in &kept {
            assert_eq!(job.log.length(), 5);
            assert!(!job.dir.variables().exists() && !job.dir.scratch().exists());
        }
    }

    /// The name of a file, and a function that replaces it.
    type Damage<'a> = (&'a str, &'a dyn Fn(&Path));

    #[test]
    fn damaged_jobs_are_reported_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let secret = dir.path().join("secret");
        fs::write(&secret, "secret").unwrap();
        let pipe = |path: &Path| {
            rustix::fs::mknodat(CWD, path, FileType::Fifo, Mode::RWXU, 0).unwrap();
        };
        let no_id = r#"{"id": "", "status": "failure", "message": "", "exit_code": 1}"#;
        let no_status = r#"{"id": "a", "status": "running", "message": "", "exit_code": 0,
            "end": {"secs_since_epoch": 1, "nanos_since_epoch": 0}}"#;
        let damages: [Damage<'_>; 13] = [
            ("job.json", &|path| fs::write(path, "").unwrap()),
            ("job.json", &|path| fs::write(path, "{\"id\": \"a\"}").unwrap()),
            ("job.json", &|path| fs::write(path, no_id).unwrap()),
            ("job.json", &|path| fs::write(path, no_status).unwrap()),
            ("job.json", &|path| fs::write(path, "[".repeat(60_000)).unwrap()),
            ("job.json", &|path| fs::File::create(path).unwrap().set_len(1 << 40).unwrap()),
            ("job.json", &|path| fs::create_dir(path).unwrap()),
            ("job.json", &|path| symlink(&secret, path).unwrap()),
            ("job.json", &pipe),
            ("log", &|_| {}),
            ("log", &|path| symlink(&secret, path).unwrap()),
            ("log", &pipe),
            ("results", &|path| fs::create_dir(path).unwrap()),
        ];
        let root = dir.path().join("state");
        for (number, (name, damage)) in damages.into_iter().enumerate() {
            let job = create_job(&root, "1", Some(SystemTime::UNIX_EPOCH));
            fs::remove_file(job.join(name)).unwrap();
            damage(&job.join(name));
            let mut state = StateDir::open(&root).unwrap();
            assert!(state.take_kept().is_empty(), "{number}: {name}");
            let [error] = state.damaged() else { panic!("{number}: {:?}", state.damaged()) };
            assert!(chain(error).contains(name), "{number}: {error}");
            assert!(!job.exists(), "{number}: {name}");
        }
        assert!(secret.exists());
    }

    #[test]
    fn other_files_in_place_of_jobs_do_not_block_the_start() {
        let dir = tempfile::tempdir().unwrap();
        let other = dir.path().join("other");
        fs::create_dir_all(other.join("scratch")).unwrap();
        let root = dir.path().join("state");
        create_job(&root, "1", None);
        fs::write(root.join("jobs/file"), "").unwrap();
        symlink(&other, root.join("jobs/link")).unwrap();
        let state = StateDir::open(&root).unwrap();
        assert_eq!((state.leftovers(), state.damaged().len()), (1, 2));
        drop(state);
        fs::remove_dir_all(root.join("jobs")).unwrap();
        symlink(&other, root.join("jobs")).unwrap();
        StateDir::open(&root).unwrap();
        assert!(other.join("scratch").is_dir());
    }

    #[test]
    fn end_of_a_server_removes_secrets_in_locked_directories_and_follows_no_links() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("state");
        let job = create_job(&root, "1", Some(SystemTime::UNIX_EPOCH));
        let state = StateDir::open(&root).unwrap();
        fs::create_dir(job.join("variables")).unwrap();
        fs::set_permissions(&job, fs::Permissions::from_mode(0o000)).unwrap();
        drop(state);
        let _ = fs::set_permissions(&job, fs::Permissions::from_mode(0o700));
        assert!(!job.join("variables").exists());

        let other = dir.path().join("other");
        fs::create_dir_all(other.join("1/scratch")).unwrap();
        let state = StateDir::open(&root).unwrap();
        remove_tree(&root.join("jobs")).unwrap();
        symlink(&other, root.join("jobs")).unwrap();
        fs::write(root.join("trash"), "").unwrap();
        drop(state);
        assert!(other.join("1/scratch").is_dir());
        StateDir::open(&root).unwrap();
    }

    #[test]
    fn directory_belongs_to_one_server() {
        let dir = tempfile::tempdir().unwrap();
        let _state = StateDir::open(dir.path()).unwrap();
        assert!(matches!(StateDir::open(dir.path()), Err(StateError::InUse { .. })));
    }

    /// Creates the leftovers of a killed server: a job with a running process.
    fn create_leftovers(root: &Path, boot: &[u8]) -> Child {
        let mut sleep = Command::new("sleep");
        let child = sleep.arg("100").process_group(0).spawn().unwrap();
        let scratch = root.join("jobs/0-x/scratch");
        fs::create_dir_all(&scratch).unwrap();
        let ProcessIdentity { pid, start } = ProcessIdentity::of(child.id()).unwrap();
        fs::write(scratch.join("groups"), format!("{pid} {start}\n")).unwrap();
        fs::write(root.join("boot"), boot).unwrap();
        child
    }

    #[test]
    fn leftovers_of_a_killed_server_are_stopped_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let mut child = create_leftovers(dir.path(), &boot_id());
        let state = StateDir::open(dir.path()).unwrap();
        assert_eq!(state.leftovers(), 1);
        assert!(!child.wait().unwrap().success());
        assert_eq!(fs::read_dir(dir.path().join("jobs")).unwrap().count(), 0);
    }

    #[test]
    fn recorded_processes_are_ignored_after_a_reboot() {
        let dir = tempfile::tempdir().unwrap();
        let mut child = create_leftovers(dir.path(), b"another");
        StateDir::open(dir.path()).unwrap();
        assert!(ProcessIdentity::of(child.id()).unwrap().is_running());
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn created_directories_are_removed_unless_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b/c");
        let created = CreatedDirs::make(&path).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        drop(created);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        CreatedDirs::make(&path).unwrap().keep();
        drop(CreatedDirs::make(&path).unwrap());
        assert!(path.is_dir());
    }

    #[test]
    fn file_is_not_accepted_as_a_directory() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("f");
        fs::write(&file, "").unwrap();
        for path in [file.clone(), file.join("x")] {
            let (at, error) = CreatedDirs::make(&path).unwrap_err();
            assert_eq!(
                (at, error.kind()),
                (file.clone(), io::ErrorKind::NotADirectory),
                "{path:?}"
            );
        }
    }
}
