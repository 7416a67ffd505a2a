//! The holder of a job: the first process of a process namespace that has the job's user, mount, network
//! and IPC namespaces. All of the job is below it: when it ends, however, the kernel ends the job.
//!
//! It does nothing but collect processes whose parents are gone. Whoever is the user that made it can
//! enter it, and nobody else but root of the host.
//!
//! A holder locks a file, so that it is found if its record cannot be read or believed: the kernel says which
//! process has the lock. Locks of fcntl(2) belong to a process. Nobody inherits them, nobody takes them in
//! another's name, and they go when the process ends. The file is in the user's run directory, which no
//! container has.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{CWD, FlockOperation, Mode, OFlags, fcntl_lock, openat};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    Flock, FlockType, Signal, chdir, fcntl_getlk, geteuid, set_parent_process_death_signal, setsid,
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
use super::map::Map;
use super::ranges::Ids;
use super::world::{self, Failure, failure};
use crate::sys::error::chain;
use crate::sys::fs::{PathContext as _, PathError};
use crate::sys::identity::Identity;
use crate::sys::removal::remove_tree;
use crate::sys::spawn::collect_ended;

/// How long a killed holder may take to end with all that is below it.
const TIMEOUT: Duration = Duration::from_secs(20);

/// What the kernel calls a holder in lists of processes, in place of the program that made it.
const NAME: &std::ffi::CStr = c"job-holder";

/// A holder that runs, or did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    pub process: Identity,
    pub privilege: Privilege,
    /// The cgroup of the job as the host sees it, if one was delegated to the user.
    pub cgroup: Option<PathBuf>,
}

/// A holder that ends with this value, or with this process, unless it is [kept](Self::keep).
#[derive(Debug)]
#[must_use = "the holder ends as soon as this is dropped"]
pub struct NewHolder {
    holder: Holder,
    go: Option<File>,
}

/// What is told by one byte: that the maps are written, and later that the holder is recorded.
const GO: &[u8] = b"1";

impl Holder {
    /// Makes one, with these ids, in this cgroup if there is one. It locks a file, if there is one, that was
    /// [made](super::make_lock) for it. The calling process must have no other thread.
    pub fn make(
        map: &Map,
        cgroup: Option<&JobCgroup>,
        lock: Option<&File>,
    ) -> Result<NewHolder, PrivilegeError> {
        let uid = geteuid().as_raw();
        check_single_thread()?;
        let failed = |source| PrivilegeError::Namespace { uid, source };
        let pipe = || pipe_with(PipeFlags::CLOEXEC).map_err(|error| failed(error.into()));
        let ((wait, go), (answer, tell)) = (pipe()?, pipe()?);
        let namespaces = libc::CLONE_NEWUSER
            | libc::CLONE_NEWNS
            | libc::CLONE_NEWPID
            | libc::CLONE_NEWNET
            | libc::CLONE_NEWIPC;
        let Some(pid) = fork_with(namespaces).map_err(failed)? else {
            drop((go, answer));
            hold(File::from(wait), File::from(tell), cgroup, lock);
        };
        drop((wait, tell));
        let process = Identity::of(pid).ok_or(PrivilegeError::Ended { pid })?;
        let path = cgroup.map(|cgroup| cgroup.path().to_owned());
        let holder = Holder { process, privilege: map.privilege(), cgroup: path };
        let mut new = NewHolder { holder, go: Some(File::from(go)) };
        map.write(pid)?;
        // One that has ended says why by what it wrote, or by nothing.
        let _ = new.tell();
        let mut said = String::new();
        File::from(answer).read_to_string(&mut said).map_err(failed)?;
        debug!(pid, said, "made the holder of a job");
        if said != READY {
            return Err(inside(uid, &said));
        }
        Ok(new)
    }

    /// Ends it with everything below: processes, mounts, networks, its cgroup. One that has ended is fine.
    pub fn end(&self) -> io::Result<()> {
        debug!(pid = self.process.pid, "end the holder of a job");
        self.process.kill(TIMEOUT)?;
        self.cgroup.as_deref().map_or(Ok(()), cgroup::remove)
    }

    /// Returns whether it runs.
    pub fn is_running(&self) -> bool {
        self.process.is_running()
    }
}

impl NewHolder {
    /// Returns what is known of it.
    pub fn holder(&self) -> &Holder {
        &self.holder
    }

    /// Has it live on when this process ends.
    pub fn keep(mut self) -> Result<Holder, PrivilegeError> {
        let pid = self.holder.process.pid;
        self.tell().map_err(|_| PrivilegeError::Ended { pid })?;
        self.go = None;
        Ok(self.holder.clone())
    }

    fn tell(&mut self) -> io::Result<()> {
        self.go.as_mut().map_or(Ok(()), |go| go.write_all(GO))
    }
}

impl Drop for NewHolder {
    fn drop(&mut self) {
        if self.go.is_some() {
            // It has nobody below yet.
            let _ = self.holder.end();
        }
    }
}

/// What a holder says that is ready.
const READY: &str = "ready";

/// Reads what a process says that could not make itself at home: an action, and the number of the error.
pub fn inside(uid: u32, said: &str) -> PrivilegeError {
    let (action, number) = said.split_once('\n').unwrap_or(("make it", ""));
    let source = number
        .parse()
        .map_or_else(|_| io::Error::other("the process has ended"), io::Error::from_raw_os_error);
    PrivilegeError::Inside { uid, action: action.to_owned(), source }
}

/// Is the holder, until it is killed.
fn hold(mut wait: File, mut tell: File, cgroup: Option<&JobCgroup>, lock: Option<&File>) -> ! {
    let mut byte = [0];
    let is_going = |wait: &mut File, byte: &mut [u8; 1]| wait.read_exact(byte).is_ok();
    if !is_going(&mut wait, &mut byte) {
        exit_at_once(1);
    }
    match settle(cgroup, lock) {
        Ok(()) => drop(tell.write_all(READY.as_bytes())),
        Err((action, error)) => {
            let number = error.raw_os_error().unwrap_or_default();
            let _ = tell.write_all(format!("{action}\n{number}").as_bytes());
            exit_at_once(1);
        }
    }
    drop(tell);
    // The maker died before it was written down who we are, or thought better of it.
    if !is_going(&mut wait, &mut byte) {
        exit_at_once(1);
    }
    let _ = set_parent_process_death_signal(None);
    drop(wait);
    close_others(lock);
    loop {
        collect_ended();
        wait_for_child_signal();
    }
}

/// Becomes root of the namespaces, and makes them a place for containers.
fn settle(cgroup: Option<&JobCgroup>, lock: Option<&File>) -> Result<(), Failure> {
    block_child_signal();
    use_root().map_err(|error| ("become root".to_owned(), error))?;
    // After the ids, whose change takes it away.
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(failure("be killed with the maker"))?;
    setsid().map_err(failure("leave the session"))?;
    chdir("/").map_err(failure("change to /"))?;
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let null: OwnedFd =
        openat(CWD, "/dev/null", flags, Mode::empty()).map_err(failure("open /dev/null"))?;
    dup2_stdin(&null).map_err(failure("close standard input"))?;
    dup2_stdout(&null).map_err(failure("close standard output"))?;
    dup2_stderr(&null).map_err(failure("close standard error"))?;
    let _ = rustix::thread::set_name(NAME);
    lock.map_or(Ok(()), lock_file).map_err(failure("lock the file by which it is found"))?;
    world::settle(Path::new("/"))?;
    cgroup.map_or(Ok(()), JobCgroup::settle).map_err(|error| (chain(&error), error.source))
}

/// How often it is asked who locks a file that others get hold of meanwhile.
const ATTEMPTS: usize = 10;

/// Makes the file that a new holder locks, in place of that of an earlier one.
pub fn make_lock(path: &Path) -> Result<File, PathError> {
    remove_tree(path)?;
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).mode(0o600);
    options.open(path).at("make", path)
}

/// Locks a file for this process, as long as it has the file open.
fn lock_file(file: &File) -> Result<(), Errno> {
    fcntl_lock(file, FlockOperation::NonBlockingLockExclusive)
}

impl Holder {
    /// Returns the holder that has locked a file; none if nobody has, or one who is no holder.
    pub fn of_lock(path: &Path) -> Option<Self> {
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
        let process = owner(&file)?;
        let proc = PathBuf::from(format!("/proc/{}", process.pid));
        let privilege = match Ids::of_namespace(&proc).ok()?? {
            Ids::SINGLE => Privilege::Single,
            ids => Privilege::Mapped(ids),
        };
        let cgroup = cgroup::of_first(&proc);
        let is_holder = is_first_of_namespace(&proc);
        // Asked last: until then it was no other's directory.
        (is_holder && process.is_running()).then_some(Holder { process, privilege, cgroup })
    }
}

/// Returns the process that has locked a file, if it is seen from here.
fn owner(file: &File) -> Option<Identity> {
    let asked = || {
        let lock = fcntl_getlk(file, &Flock::from(FlockType::WriteLock)).ok()??;
        u32::try_from(lock.pid?.as_raw_nonzero().get()).ok()
    };
    for _ in 0..ATTEMPTS {
        let process = Identity::of(asked()?);
        // It had the lock before and has it now, so it is that process and no later one with its number.
        if let Some(process) = process
            && asked()? == process.pid
        {
            return Some(process);
        }
    }
    None
}

/// Returns whether a process is the first one of a process namespace below that of this one.
fn is_first_of_namespace(proc: &Path) -> bool {
    let status = std::fs::read_to_string(proc.join("status")).unwrap_or_default();
    let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let ids: Vec<&str> = ids.unwrap_or_default().split_whitespace().collect();
    ids.len() > 1 && ids.last() == Some(&"1")
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn who_locks_a_file_is_found_and_nobody_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        assert_eq!(Holder::of_lock(&path), None);
        let file = make_lock(&path).unwrap();
        assert_eq!(owner(&file), None);
        // Another process: its own locks nobody is told of.
        let script = "open(F, '+<', $ARGV[0]); $lock = pack('ssx4qqix4', F_WRLCK); \
                      fcntl(F, F_SETLK, $lock) or die $!; \
                      syswrite(STDOUT, 'held'); <STDIN>";
        let mut perl = Command::new("perl");
        perl.args(["-MFcntl", "-e", script]).arg(&path);
        let mut perl = perl.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        perl.stdout.as_mut().unwrap().read_exact(&mut [0; 4]).unwrap();
        assert_eq!(owner(&file), Identity::of(perl.id()));
        lock_file(&file).unwrap_err();
        assert_eq!(Holder::of_lock(&path), None, "it is first in no namespace");
        // Who keeps the old file is in nobody's way.
        let new = make_lock(&path).unwrap();
        lock_file(&new).unwrap();
        drop(perl.stdin.take());
        perl.wait().unwrap();
        assert_eq!(owner(&file), None);
    }

    #[test]
    fn what_is_in_place_of_the_file_is_no_lock() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        std::os::unix::fs::symlink("/dev/null", &path).unwrap();
        assert_eq!(Holder::of_lock(&path), None);
        make_lock(&path).unwrap();
        assert!(path.symlink_metadata().unwrap().is_file());
    }
}
