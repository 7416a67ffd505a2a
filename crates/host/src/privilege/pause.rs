//! The pause process of a job, as in Podman: the init process of the job's PID namespace, which also has the job's
//! user, mount, network and IPC namespaces. All processes of the job are below it: when it ends for any reason, the
//! kernel ends the job.
//!
//! The pause process only reaps orphans. Only the user who created it and root of the host can enter its namespaces.
//!
//! A pause process locks a file in its own working directory, so that it can be found if its record is unreadable or
//! forged: the kernel knows which process has the lock. Locks of fcntl(2) belong to a process: they are not inherited,
//! cannot be taken for another process, and are released when the process ends. If the file was removed or replaced,
//! the process is found by its working directory. The directory is in the user's run directory, which is mounted in no
//! container, and no process of a job is the init process of a PID namespace directly below the user's.

use std::fs::{File, OpenOptions};
use std::io::{self, PipeReader, PipeWriter, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use oci_hooks_files::fs::{PathContext as _, PathError};
use oci_hooks_files::spawn::collect_ended;
use rustix::fs::{CWD, FlockOperation, Mode, OFlags, fcntl_lock, openat};
use rustix::io::Errno;
use rustix::process::{
    Flock, FlockType, Signal, chdir, fchdir, fcntl_getlk, geteuid, set_parent_process_death_signal,
    setsid,
};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};
use tracing::debug;

use super::Privilege;
use super::cgroup::{self, JobCgroup};
use super::clone::{
    block_child_signal, check_single_thread, close_others, exit_at_once, fork_with, use_root,
    wait_for_child_signal,
};
use super::error::PrivilegeError;
use super::map::IdMaps;
use super::ranges::MappedIds;
use super::setup::{self, SetupFailure, failure};
use crate::identity::ProcessIdentity;
use crate::processes::{self, ProcessSnapshot, read_lossy};
use crate::removal::remove_tree;

/// Time that a killed pause process may take to end with all processes below it.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Command name (`comm`) of a pause process in lists of processes.
const NAME: &std::ffi::CStr = c"pause-process";

/// A pause process that is running or has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PauseProcess {
    pub process: ProcessIdentity,
    pub privilege: Privilege,
    /// The cgroup of the job in the host's namespaces, if a cgroup was delegated to the user.
    pub cgroup: Option<PathBuf>,
}

/// A new pause process, which ends when this value is dropped or this process ends, unless it is [kept](Self::keep).
#[derive(Debug)]
#[must_use = "the pause process ends as soon as this is dropped"]
pub struct NewPauseProcess {
    pause_process: PauseProcess,
    go: Option<PipeWriter>,
}

/// File in the directory of a pause process that the process locks.
const LOCK: &str = "pause.lock";

/// Message to the pause process: first that the id maps are written, and later that the pause process is recorded.
const GO: &[u8] = b"1";

impl PauseProcess {
    /// Creates a pause process with these ids, and optionally in a cgroup and with a directory, by which
    /// [`of_directory`](Self::of_directory) finds it. The calling process must have no other thread.
    pub fn make(
        map: &IdMaps,
        cgroup: Option<&JobCgroup>,
        directory: Option<&Path>,
    ) -> Result<NewPauseProcess, PrivilegeError> {
        let uid = geteuid().as_raw();
        check_single_thread()?;
        let directory = directory.map(PauseDirectory::of).transpose()?;
        let failed = |source| PrivilegeError::Namespace { uid, source };
        let (wait, go) = io::pipe().map_err(failed)?;
        let (mut answer, tell) = io::pipe().map_err(failed)?;
        let namespaces = libc::CLONE_NEWUSER
            | libc::CLONE_NEWNS
            | libc::CLONE_NEWPID
            | libc::CLONE_NEWNET
            | libc::CLONE_NEWIPC;
        let Some(pid) = fork_with(namespaces).map_err(failed)? else {
            drop((go, answer));
            hold(wait, tell, cgroup, directory.as_ref());
        };
        drop((wait, tell));
        let pid = pid.as_raw_pid().cast_unsigned();
        let process = ProcessIdentity::of(pid).ok_or(PrivilegeError::Ended { pid })?;
        let path = cgroup.map(|cgroup| cgroup.path().to_owned());
        let pause_process = PauseProcess { process, privilege: map.privilege(), cgroup: path };
        let mut new = NewPauseProcess { pause_process, go: Some(go) };
        map.write(pid)?;
        // If the pause process has ended, its answer below has the reason, or is empty.
        let _ = new.send_go();
        let mut said = String::new();
        answer.read_to_string(&mut said).map_err(failed)?;
        debug!(pid, said, "made the pause process of a job");
        if said != READY {
            return Err(setup_error(uid, &said));
        }
        Ok(new)
    }

    /// Kills the pause process, and with it all processes, mounts and networks of the job, and removes its cgroup. Not
    /// an error if the pause process has already ended.
    pub fn end(&self) -> io::Result<()> {
        debug!(pid = self.process.pid, "end the pause process of a job");
        self.process.kill(TIMEOUT)?;
        self.cgroup.as_deref().map_or(Ok(()), cgroup::remove)
    }

    /// Returns whether the pause process runs.
    pub fn is_running(&self) -> bool {
        self.process.is_running()
    }
}

impl NewPauseProcess {
    /// Returns the process, privilege and cgroup of the pause process.
    pub fn pause_process(&self) -> &PauseProcess {
        &self.pause_process
    }

    /// Keeps the pause process running when this process ends.
    pub fn keep(mut self) -> Result<PauseProcess, PrivilegeError> {
        let pid = self.pause_process.process.pid;
        self.send_go().map_err(|_| PrivilegeError::Ended { pid })?;
        self.go = None;
        Ok(self.pause_process.clone())
    }

    fn send_go(&mut self) -> io::Result<()> {
        self.go.as_mut().map_or(Ok(()), |go| go.write_all(GO))
    }
}

impl Drop for NewPauseProcess {
    fn drop(&mut self) {
        if self.go.is_some() {
            // The pause process has no children yet.
            let _ = self.pause_process.end();
        }
    }
}

/// Answer of a pause process that is ready.
const READY: &str = "ready";

/// Parses the answer of a process that failed to set itself up: an action, and the error number.
pub fn setup_error(uid: u32, said: &str) -> PrivilegeError {
    let (action, number) = said.split_once('\n').unwrap_or(("start a process", ""));
    let source = number.parse().map_or_else(
        |_| io::Error::other("it ended without an answer, perhaps because it was killed"),
        io::Error::from_raw_os_error,
    );
    PrivilegeError::Setup { uid, action: action.to_owned(), source }
}

/// Runs the pause process until it is killed.
fn hold(
    mut wait: PipeReader,
    mut tell: PipeWriter,
    cgroup: Option<&JobCgroup>,
    directory: Option<&PauseDirectory>,
) -> ! {
    let mut byte = [0];
    if wait.read_exact(&mut byte).is_err() {
        exit_at_once(1);
    }
    match set_up_process(cgroup, directory) {
        Ok(()) => drop(tell.write_all(READY.as_bytes())),
        Err((action, error)) => {
            let number = error.raw_os_error().unwrap_or_default();
            let _ = tell.write_all(format!("{action}\n{number}").as_bytes());
            exit_at_once(1);
        }
    }
    drop(tell);
    // The creating process died before it recorded the pause process, or gave up.
    if wait.read_exact(&mut byte).is_err() {
        exit_at_once(1);
    }
    let _ = set_parent_process_death_signal(None);
    drop(wait);
    close_others(directory.map(|directory| &directory.lock));
    loop {
        collect_ended();
        wait_for_child_signal();
    }
}

/// Becomes root of the namespaces, and prepares them for containers.
fn set_up_process(
    cgroup: Option<&JobCgroup>,
    directory: Option<&PauseDirectory>,
) -> Result<(), SetupFailure> {
    block_child_signal();
    use_root().map_err(|error| ("become root".to_owned(), error))?;
    // After setting the ids, which clears the parent death signal.
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(failure("set the parent death signal"))?;
    setsid().map_err(failure("create a session"))?;
    directory
        .map_or_else(|| chdir("/"), |directory| fchdir(&directory.opened))
        .map_err(failure("change its working directory"))?;
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let null: OwnedFd =
        openat(CWD, "/dev/null", flags, Mode::empty()).map_err(failure("open /dev/null"))?;
    dup2_stdin(&null).map_err(failure("redirect standard input to /dev/null"))?;
    dup2_stdout(&null).map_err(failure("redirect standard output to /dev/null"))?;
    dup2_stderr(&null).map_err(failure("redirect standard error to /dev/null"))?;
    let _ = rustix::thread::set_name(NAME);
    directory
        .map_or(Ok(()), |directory| lock_file(&directory.lock))
        .map_err(failure("lock pause.lock"))?;
    setup::set_up_namespaces(Path::new("/"))?;
    cgroup
        .map_or(Ok(()), JobCgroup::set_up_as_root)
        .map_err(|error| (format!("{} {}", error.action, error.path.display()), error.source))
}

/// Number of tries to find the owner of a lock while it changes.
const ATTEMPTS: usize = 10;

/// The directory of a new pause process.
struct PauseDirectory {
    opened: File,
    lock: File,
}

impl PauseDirectory {
    /// Opens a directory, and creates the file to lock in it, which replaces that of an earlier pause process.
    fn of(path: &Path) -> Result<Self, PathError> {
        let opened = File::open(path).with_path("open", path)?;
        let lock = path.join(LOCK);
        remove_tree(&lock)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        Ok(PauseDirectory { opened, lock: options.open(&lock).with_path("create", &lock)? })
    }
}

/// Locks a file for this process until it closes the file.
fn lock_file(file: &File) -> Result<(), Errno> {
    fcntl_lock(file, FlockOperation::NonBlockingLockExclusive)
}

impl PauseProcess {
    /// Returns the pause process of a directory; `None` if none is running.
    pub fn of_directory(path: &Path) -> Option<Self> {
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
        let mut options = OpenOptions::new();
        let lock = options.read(true).custom_flags(flags).open(path.join(LOCK)).ok();
        let locking = lock.and_then(|lock| owner(&lock)).and_then(PauseProcess::of_process);
        // Other processes are not inspected: their working directory may be on a file system of the job that hangs.
        let first = || {
            let is_first =
                |pid: &u32| is_first_of_namespace(&PathBuf::from(format!("/proc/{pid}")));
            ProcessSnapshot::ids().filter(is_first).filter_map(ProcessIdentity::of)
        };
        locking.or_else(|| working_in(path, first())?.find_map(PauseProcess::of_process))
    }

    /// Returns a process as a pause process; `None` if it is not a running one.
    fn of_process(process: ProcessIdentity) -> Option<Self> {
        let proc = PathBuf::from(format!("/proc/{}", process.pid));
        let privilege = match MappedIds::of_namespace(&proc).ok()?? {
            MappedIds::SINGLE => Privilege::Single,
            ids => Privilege::Mapped(ids),
        };
        let cgroup = cgroup::job_cgroup(&proc);
        let is_pause_process = is_first_of_namespace(&proc);
        // Checked last, to notice if the PID was reused meanwhile.
        (is_pause_process && process.is_running()).then_some(PauseProcess {
            process,
            privilege,
            cgroup,
        })
    }
}

/// Selects the processes with this working directory; `None` if the directory does not exist.
fn working_in(
    path: &Path,
    processes: impl Iterator<Item = ProcessIdentity>,
) -> Option<impl Iterator<Item = ProcessIdentity>> {
    let file_of = |path: &Path| std::fs::metadata(path).ok().map(|it| (it.dev(), it.ino()));
    let wanted = file_of(path)?;
    Some(processes.filter(move |process| {
        file_of(&PathBuf::from(format!("/proc/{}/cwd", process.pid))) == Some(wanted)
    }))
}

/// Returns the process that has locked a file, if it is in this PID namespace.
fn owner(file: &File) -> Option<ProcessIdentity> {
    let asked = || {
        let lock = fcntl_getlk(file, &Flock::from(FlockType::WriteLock)).ok()??;
        u32::try_from(lock.pid?.as_raw_nonzero().get()).ok()
    };
    for _ in 0..ATTEMPTS {
        let process = ProcessIdentity::of(asked()?);
        // The same PID had the lock before and after, so it was not reused in between.
        if let Some(process) = process
            && asked()? == process.pid
        {
            return Some(process);
        }
    }
    None
}

/// Returns whether a process is the init process of a PID namespace just below that of this process.
fn is_first_of_namespace(proc: &Path) -> bool {
    processes::is_first_of_namespace(&read_lossy(proc.join("status")).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn process_that_locks_the_file_is_found() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(PauseProcess::of_directory(dir.path()), None);
        let file = PauseDirectory::of(dir.path()).unwrap().lock;
        assert_eq!(owner(&file), None);
        // In another process: F_GETLK does not report a process's own locks.
        let script = "open(F, '+<', $ARGV[0]); $lock = pack('ssx4qqix4', F_WRLCK); \
                      fcntl(F, F_SETLK, $lock) or die $!; \
                      syswrite(STDOUT, 'held'); <STDIN>";
        let mut perl = Command::new("perl");
        perl.args(["-MFcntl", "-e", script, LOCK]).current_dir(&dir);
        let mut perl = perl.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        perl.stdout.as_mut().unwrap().read_exact(&mut [0; 4]).unwrap();
        let process = ProcessIdentity::of(perl.id());
        assert_eq!(owner(&file), process);
        lock_file(&file).unwrap_err();
        let others = [ProcessIdentity::of(std::process::id()), process].into_iter().flatten();
        assert!(working_in(dir.path(), others).unwrap().eq(process));
        assert_eq!(PauseProcess::of_directory(dir.path()), None, "it is first in no namespace");
        // A process that still locks the old file does no harm.
        let new = PauseDirectory::of(dir.path()).unwrap().lock;
        lock_file(&new).unwrap();
        drop(perl.stdin.take());
        perl.wait().unwrap();
        assert_eq!(owner(&file), None);
    }

    #[test]
    fn link_in_place_of_the_lock_file_is_no_lock() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(LOCK);
        std::os::unix::fs::symlink("/dev/null", &path).unwrap();
        assert_eq!(PauseProcess::of_directory(dir.path()), None);
        PauseDirectory::of(dir.path()).unwrap();
        assert!(path.symlink_metadata().unwrap().is_file());
    }
}
