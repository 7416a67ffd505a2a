//! Entering a pause process's namespaces: a fork of this process continues inside, and this process waits for it.
//!
//! The fork is a child of this process, though an intermediate process creates it: setns(2) into a PID namespace
//! affects only the children of the calling process.

use std::ffi::CStr;
use std::io::{self, PipeWriter, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::ExitStatus;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, chdir, getcwd, geteuid, pidfd_open,
    set_parent_process_death_signal, waitpid,
};
use rustix::thread::{ThreadNameSpaceType, move_into_thread_name_spaces};
use tracing::debug;

use super::cgroup;
use super::clone::{check_single_thread, exit_at_once, fork_with, use_root};
use super::error::PrivilegeError;
use super::map::IdMaps;
use super::pause::{PauseProcess, setup_error};
use super::setup::{self, SetupFailure, failure};
use super::{Privilege, host_network, owners};

/// The role of the current process after the fork.
#[derive(Debug)]
#[must_use]
pub enum ForkSide {
    /// The child, which continues as user 0 of the namespaces. It is killed when the parent ends.
    Inside(InsideProcess),
    /// The parent, which waits for the child.
    Outside(ChildHandle),
}

/// Properties of the process inside the namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InsideProcess {
    pub privilege: Privilege,
    /// Set if the job has its own cgroup, in which limits are enforced.
    pub has_cgroup: bool,
}

/// Handle by which the parent waits for the child that continues inside the namespaces.
#[derive(Debug)]
pub struct ChildHandle {
    pid: Pid,
    process: OwnedFd,
    socket: OwnedFd,
}

impl ChildHandle {
    /// Answers the child's requests for file owners until the child ends, and returns its exit
    /// status. Calls `woken` with the child's pidfd whenever `wake` is readable; `woken` has to
    /// read from `wake`.
    pub fn wait(
        self,
        wake: Option<BorrowedFd<'_>>,
        mut woken: impl FnMut(&OwnedFd),
    ) -> io::Result<ExitStatus> {
        let ChildHandle { pid, process, socket } = self;
        // `None` once the other end is closed: the child may execute a program, which sends no requests.
        let mut socket = Some(socket);
        loop {
            let asking = socket.as_ref().map(OwnedFd::as_fd);
            let readable = [Some(process.as_fd()), asking, wake];
            let mut polled: Vec<PollFd<'_>> =
                readable.iter().flatten().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
            match poll(&mut polled, None) {
                Err(Errno::INTR) => continue,
                result => result?,
            };
            let mut is_ready = polled.iter().map(|fd| !fd.revents().is_empty());
            let [has_ended, is_asked, is_woken] =
                readable.map(|fd| fd.is_some() && is_ready.next() == Some(true));
            if is_woken {
                woken(&process);
            }
            if has_ended {
                let ended = retry_on_intr(|| waitpid(Some(pid), WaitOptions::empty()))?;
                let (_, status) = ended.expect("the call waits for the end");
                return Ok(ExitStatus::from_raw(status.as_raw()));
            }
            if is_asked {
                socket = socket.filter(owners::answer);
            }
        }
    }
}

impl PauseProcess {
    /// Continues inside the pause process's namespaces, including its network namespace except for
    /// [`host_network::run`]. This process must have no other thread.
    pub fn enter(&self) -> Result<ForkSide, PrivilegeError> {
        check_single_thread()?;
        let pid = self.process.pid;
        let failed = |source| PrivilegeError::Enter { pid, source };
        let pause_process = self.process.open().ok_or(PrivilegeError::Ended { pid })?;
        let here = getcwd(Vec::new()).unwrap_or_else(|_| c"/".to_owned());
        let (ours, theirs) = socket_pair().map_err(failed)?;
        let (mut answer, tell) = io::pipe().map_err(failed)?;
        let between = fork_with(0).map_err(failed)?;
        let Some(between) = between else {
            drop((ours, answer));
            match self.fork_into_namespaces(&pause_process, tell) {
                // In the last of the three processes.
                None => return self.set_up_inner(&pause_process, theirs, &here),
                Some(code) => exit_at_once(code),
            }
        };
        drop((theirs, tell));
        let mut said = String::new();
        answer.read_to_string(&mut said).map_err(failed)?;
        let _ = retry_on_intr(|| waitpid(Some(between), WaitOptions::empty()));
        let child = said.parse().ok().and_then(Pid::from_raw);
        let Some(child) = child else {
            // A killed pause process exists until its PID namespace has no process left; no PID is assigned there.
            let is = |error: Errno| said.ends_with(&format!("\n{}", error.raw_os_error()));
            let is_ending = is(Errno::SRCH) || is(Errno::NOMEM) && !self.process.is_working();
            return Err(match is_ending {
                true => PrivilegeError::Ended { pid },
                false => setup_error(geteuid().as_raw(), &said),
            });
        };
        debug!(
            pause_process = pid,
            pid = child.as_raw_nonzero(),
            "entered the pause process of a job"
        );
        let process =
            pidfd_open(child, PidfdFlags::empty()).map_err(|error| failed(error.into()))?;
        Ok(ForkSide::Outside(ChildHandle { pid: child, process, socket: ours }))
    }

    /// Sets up the process that continues inside: it is in all namespaces of the pause process
    /// except the network namespace, which it enters here.
    fn set_up_inner(
        &self,
        pause_process: &OwnedFd,
        socket: OwnedFd,
        here: &CStr,
    ) -> Result<ForkSide, PrivilegeError> {
        let pid = self.process.pid;
        let failed = |source: io::Error| PrivilegeError::Enter { pid, source };
        use_root().map_err(failed)?;
        end_with_other(&socket).map_err(failed)?;
        // The working directory may be on another mount in this namespace.
        let _ = chdir(here);
        host_network::keep_namespace().map_err(failed)?;
        move_into_thread_name_spaces(pause_process.as_fd(), ThreadNameSpaceType::NETWORK)
            .map_err(|error| failed(error.into()))?;
        owners::ask(socket);
        Ok(ForkSide::Inside(InsideProcess {
            privilege: self.privilege,
            has_cgroup: self.cgroup.is_some(),
        }))
    }

    /// Enters the namespaces of a pause process, and forks a sibling of this process into them. Returns `None` in the
    /// sibling, and an exit code in this process.
    fn fork_into_namespaces(&self, pause_process: &OwnedFd, mut tell: PipeWriter) -> Option<i32> {
        let mut kinds = ThreadNameSpaceType::USER
            | ThreadNameSpaceType::PROCESS_ID
            | ThreadNameSpaceType::INTER_PROCESS_COMMUNICATION
            | ThreadNameSpaceType::MOUNT;
        if let Some(cgroup) = &self.cgroup {
            kinds |= ThreadNameSpaceType::CONTROL_GROUP;
            // A process in an administrator's session cannot leave its cgroup, and needs no limits.
            if let Err(error) = cgroup::enter(cgroup) {
                debug!(%error, "cannot enter the cgroup of the job");
            }
        }
        let entered = move_into_thread_name_spaces(pause_process.as_fd(), kinds)
            .map_err(failure("enter the namespaces of the job's pause process"))
            .and_then(|()| {
                fork_with(libc::CLONE_PARENT)
                    .map_err(|error| ("create a process".to_owned(), error))
            });
        let said = match entered {
            Ok(None) => return None,
            Ok(Some(pid)) => pid.as_raw_pid().to_string(),
            Err((action, error)) => {
                format!("{action}\n{}", error.raw_os_error().unwrap_or_default())
            }
        };
        Some(i32::from(tell.write_all(said.as_bytes()).is_err()))
    }
}

/// Continues with these ids in new user and mount namespaces, to access files that belong to them. The network
/// namespace stays the host's. This process must have no other thread.
pub fn enter_new(map: &IdMaps) -> Result<ForkSide, PrivilegeError> {
    check_single_thread()?;
    let uid = geteuid().as_raw();
    let failed = |source| PrivilegeError::Namespace { uid, source };
    let (ours, theirs) = socket_pair().map_err(failed)?;
    let (mut wait, mut go) = io::pipe().map_err(failed)?;
    let namespaces = libc::CLONE_NEWUSER | libc::CLONE_NEWNS;
    let Some(pid) = fork_with(namespaces).map_err(failed)? else {
        drop((ours, go));
        if wait.read_exact(&mut [0]).is_err() {
            exit_at_once(1);
        }
        let told = |(action, source)| PrivilegeError::Setup { uid, action, source };
        set_up_child(&theirs).map_err(told)?;
        owners::ask(theirs);
        return Ok(ForkSide::Inside(InsideProcess {
            privilege: map.privilege(),
            has_cgroup: false,
        }));
    };
    drop((theirs, wait));
    let written = map.write(pid.as_raw_pid().cast_unsigned());
    let process = pidfd_open(pid, PidfdFlags::empty()).map_err(|error| failed(error.into()))?;
    let child = ChildHandle { pid, process, socket: ours };
    if let Err(error) = written {
        drop(go);
        let _ = child.wait(None, |_| ());
        return Err(error);
    }
    // If the child has ended, `ChildHandle::wait` reports it.
    let _ = go.write_all(b"1");
    Ok(ForkSide::Outside(child))
}

fn set_up_child(socket: &OwnedFd) -> Result<(), SetupFailure> {
    use_root().map_err(|error| ("become root".to_owned(), error))?;
    end_with_other(socket).map_err(|error| ("set the parent death signal".to_owned(), error))?;
    setup::make_mounts_private(Path::new("/"))
}

fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC;
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Makes the kernel kill this process when its parent ends, which has the other end of a socket.
fn end_with_other(socket: &OwnedFd) -> io::Result<()> {
    // After setting the ids, which clears the parent death signal.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let mut ended = [PollFd::new(socket, PollFlags::empty())];
    if poll(&mut ended, Some(&Timespec::default()))? > 0 {
        // The parent ended before the call.
        exit_at_once(1);
    }
    Ok(())
}
