//! The holder of a job: the first process of a process namespace that has the job's user, mount, network
//! and IPC namespaces. All of the job is below it: when it ends, however, the kernel ends the job.
//!
//! It does nothing but collect processes whose parents are gone. Whoever is the user that made it can
//! enter it, and nobody else but root of the host.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Signal, chdir, geteuid, set_parent_process_death_signal, setsid};
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
use super::mark;
use super::world::{self, Failure, failure};
use crate::sys::error::chain;
use crate::sys::identity::Identity;
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
pub(super) fn inside(uid: u32, said: &str) -> PrivilegeError {
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
    lock.map_or(Ok(()), mark::lock).map_err(failure("lock the file by which it is found"))?;
    world::settle(Path::new("/"))?;
    cgroup.map_or(Ok(()), JobCgroup::settle).map_err(|error| (chain(&error), error.source))
}
