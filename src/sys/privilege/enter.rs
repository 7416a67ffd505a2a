//! Going on inside of a holder's namespaces: a copy of this process does, and this one waits for it.
//!
//! The copy is this process's child, though it is made by a process in between: one that enters a process
//! namespace is not in it, only its children are.

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::ExitStatus;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, chdir, getcwd, geteuid, pidfd_open,
    set_parent_process_death_signal, waitpid,
};
use rustix::thread::{ThreadNameSpaceType, move_into_thread_name_spaces};
use tracing::debug;

use super::cgroup;
use super::clone::{check_single_thread, exit_at_once, fork_with, use_root};
use super::error::PrivilegeError;
use super::holder::{Holder, inside};
use super::map::Map;
use super::world::{self, Failure, failure};
use super::{Privilege, outside, owners};

/// Which of the two processes this is, after one became two.
#[derive(Debug)]
#[must_use]
pub enum Side {
    /// The one that goes on as user 0 of the namespaces, with what it may do there. It is killed when the
    /// other ends.
    Inside(Inside),
    /// The one that was there before, and waits.
    Outside(Attendant),
}

/// What a process has that went on inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inside {
    pub privilege: Privilege,
    /// Whether there are cgroups of its own, in which limits hold.
    pub has_cgroup: bool,
}

/// Waits for a process that went on inside.
#[derive(Debug)]
pub struct Attendant {
    pid: Pid,
    process: OwnedFd,
    socket: OwnedFd,
}

impl Attendant {
    /// Answers what it asks until it ends, and returns how it did. Meanwhile `woken` is called, with a
    /// descriptor of the process, as often as something can be read from `wake`, which it has to take.
    pub fn wait(
        self,
        wake: Option<BorrowedFd<'_>>,
        mut woken: impl FnMut(&OwnedFd),
    ) -> io::Result<ExitStatus> {
        let Attendant { pid, process, socket } = self;
        // None once the other end is closed: it may become another program, which asks nothing.
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
                return collect(pid);
            }
            if is_asked {
                socket = socket.filter(owners::answer);
            }
        }
    }
}

/// Waits for a child to end, and returns how it did.
fn collect(pid: Pid) -> io::Result<ExitStatus> {
    loop {
        match waitpid(Some(pid), WaitOptions::empty()) {
            Ok(Some((_, status))) => return Ok(ExitStatus::from_raw(status.as_raw())),
            Ok(None) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

impl Holder {
    /// Goes on inside of it, in its network namespace but for [`outside::run`]. This process must have no
    /// other thread.
    pub fn enter(&self) -> Result<Side, PrivilegeError> {
        check_single_thread()?;
        let pid = self.process.pid;
        let failed = |error: Errno| PrivilegeError::Enter { pid, source: error.into() };
        let holder = self.process.open().ok_or(PrivilegeError::Ended { pid })?;
        let here = getcwd(Vec::new()).unwrap_or_else(|_| c"/".to_owned());
        let (ours, theirs) = socket_pair().map_err(failed)?;
        let (answer, tell) = pipe_with(PipeFlags::CLOEXEC).map_err(failed)?;
        let between = fork_with(0).map_err(|source| PrivilegeError::Enter { pid, source })?;
        let Some(between) = between else {
            drop((ours, answer));
            match self.go_between(&holder, File::from(tell)) {
                // In the last of the three processes.
                None => return self.arrive(&holder, theirs, &here),
                Some(code) => exit_at_once(code),
            }
        };
        drop((theirs, tell));
        let mut said = String::new();
        File::from(answer)
            .read_to_string(&mut said)
            .map_err(|source| PrivilegeError::Enter { pid, source })?;
        let between = Pid::from_raw(i32::try_from(between).unwrap_or_default());
        while matches!(waitpid(between, WaitOptions::empty()), Err(Errno::INTR)) {}
        let child = said.parse().ok().and_then(Pid::from_raw);
        let Some(child) = child else {
            // One that was killed is there until all below it are dead, and nobody gets a number there.
            let is = |error: Errno| said.ends_with(&format!("\n{}", error.raw_os_error()));
            let is_ending = is(Errno::SRCH) || is(Errno::NOMEM) && !self.process.is_working();
            return Err(match is_ending {
                true => PrivilegeError::Ended { pid },
                false => inside(geteuid().as_raw(), &said),
            });
        };
        debug!(holder = pid, pid = child.as_raw_nonzero(), "entered the holder of a job");
        let process = pidfd_open(child, PidfdFlags::empty()).map_err(failed)?;
        Ok(Side::Outside(Attendant { pid: child, process, socket: ours }))
    }

    /// Makes the last of the three processes at home: it is in all namespaces but that of the network.
    fn arrive(
        &self,
        holder: &OwnedFd,
        socket: OwnedFd,
        here: &CStr,
    ) -> Result<Side, PrivilegeError> {
        let pid = self.process.pid;
        let failed = |source: io::Error| PrivilegeError::Enter { pid, source };
        use_root().map_err(failed)?;
        end_with_other(&socket).map_err(failed)?;
        // The directory may be one that is mounted elsewhere here.
        let _ = chdir(here);
        outside::stay().map_err(failed)?;
        move_into_thread_name_spaces(holder.as_fd(), ThreadNameSpaceType::NETWORK)
            .map_err(|error| failed(error.into()))?;
        owners::ask(socket);
        Ok(Side::Inside(Inside { privilege: self.privilege, has_cgroup: self.cgroup.is_some() }))
    }

    /// Enters the namespaces of a holder, and makes a sibling of this process in them. Returns nothing in that
    /// one, and an exit code in this.
    fn go_between(&self, holder: &OwnedFd, mut tell: File) -> Option<i32> {
        let mut kinds = ThreadNameSpaceType::USER
            | ThreadNameSpaceType::PROCESS_ID
            | ThreadNameSpaceType::INTER_PROCESS_COMMUNICATION
            | ThreadNameSpaceType::MOUNT;
        if let Some(cgroup) = &self.cgroup {
            kinds |= ThreadNameSpaceType::CONTROL_GROUP;
            // An admin's own session is in a cgroup that cannot be left; who looks around there needs no limits.
            if let Err(error) = cgroup::enter(cgroup) {
                debug!(%error, "cannot enter the cgroup of the job");
            }
        }
        let entered = move_into_thread_name_spaces(holder.as_fd(), kinds)
            .map_err(failure("enter its namespaces"))
            .and_then(|()| {
                fork_with(libc::CLONE_PARENT).map_err(|error| ("make a process".to_owned(), error))
            });
        let said = match entered {
            Ok(None) => return None,
            Ok(Some(pid)) => pid.to_string(),
            Err((action, error)) => {
                format!("{action}\n{}", error.raw_os_error().unwrap_or_default())
            }
        };
        Some(i32::from(tell.write_all(said.as_bytes()).is_err()))
    }
}

/// Goes on with these ids in user and mount namespaces of the process's own, for files that belong to them:
/// in the host's network, and as long as that takes. This process must have no other thread.
pub fn enter_new(map: &Map) -> Result<Side, PrivilegeError> {
    check_single_thread()?;
    let uid = geteuid().as_raw();
    let failed = |source| PrivilegeError::Namespace { uid, source };
    let (ours, theirs) = socket_pair().map_err(|error| failed(error.into()))?;
    let (wait, go) = pipe_with(PipeFlags::CLOEXEC).map_err(|error| failed(error.into()))?;
    let namespaces = libc::CLONE_NEWUSER | libc::CLONE_NEWNS;
    let Some(pid) = fork_with(namespaces).map_err(failed)? else {
        drop((ours, go));
        if File::from(wait).read_exact(&mut [0]).is_err() {
            exit_at_once(1);
        }
        let told = |(action, source)| PrivilegeError::Inside { uid, action, source };
        make_at_home(&theirs).map_err(told)?;
        owners::ask(theirs);
        return Ok(Side::Inside(Inside { privilege: map.privilege(), has_cgroup: false }));
    };
    drop((theirs, wait));
    let pid = Pid::from_raw(i32::try_from(pid).unwrap_or_default()).expect("it is a child");
    let written = map.write(pid.as_raw_nonzero().get().unsigned_abs());
    let process = pidfd_open(pid, PidfdFlags::empty()).map_err(|error| failed(error.into()))?;
    let attendant = Attendant { pid, process, socket: ours };
    if let Err(error) = written {
        drop(go);
        let _ = attendant.wait(None, |_| ());
        return Err(error);
    }
    // One that has ended is waited for like others.
    let _ = File::from(go).write_all(b"1");
    Ok(Side::Outside(attendant))
}

fn make_at_home(socket: &OwnedFd) -> Result<(), Failure> {
    use_root().map_err(|error| ("become root".to_owned(), error))?;
    end_with_other(socket).map_err(|error| ("be killed with the caller".to_owned(), error))?;
    world::private_mounts(Path::new("/"))
}

fn socket_pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    let flags = SocketFlags::CLOEXEC;
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Has the kernel kill this process when the one that waits for it ends, which has the other end of a socket.
fn end_with_other(socket: &OwnedFd) -> io::Result<()> {
    // After the ids, whose change takes it away.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let mut ended = [PollFd::new(socket, PollFlags::empty())];
    if poll(&mut ended, Some(&Timespec::default()))? > 0 {
        // Before that.
        exit_at_once(1);
    }
    Ok(())
}
