//! The launcher process: it creates the processes of commands, reports their exits, and reaps orphans.
//!
//! A `fork` of the server would take longer the more jobs run, as each adds threads, descriptors and memory. The
//! launcher is the init program of containers (`oci_hooks_init`), executed under another name.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use oci_hooks_files::spawn::{memory_file, memory_program, restore_file_limit};
use oci_hooks_init::launch::{
    LaunchAction, LaunchMessage, LaunchReport, LaunchRequest, OrphanReport, ProcessExit,
    START_DESCRIPTORS,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ioctl_fionbio, retry_on_intr};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketFlags,
    SocketType, sendmsg, shutdown, socketpair,
};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, kill_process};

/// The launcher that all jobs of this process share, if it was started.
static SHARED: Mutex<Option<Arc<Launcher>>> = Mutex::new(None);

/// Time limit of the launcher's report of orphans.
const REPORT_LIMIT: Duration = Duration::from_millis(200);

/// Interval at which the launcher gets `SIGCONT` until its report is complete: a job of the same
/// user may stop it repeatedly.
const RESUME_INTERVAL: Duration = Duration::from_millis(20);

/// A launcher process. It ends on drop, or with this process.
#[derive(Debug)]
pub struct Launcher {
    socket: OwnedFd,
    process: Child,
    next_token: AtomicU64,
}

impl Launcher {
    /// Returns the launcher of this process; starts one if none is running.
    pub fn shared() -> io::Result<Arc<Self>> {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(launcher) = shared.as_ref().filter(|launcher| launcher.is_alive()) {
            return Ok(launcher.clone());
        }
        let launcher = Arc::new(Launcher::start()?);
        *shared = Some(launcher.clone());
        Ok(launcher)
    }

    fn start() -> io::Result<Self> {
        let (socket, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let program = memory_program("launcher", oci_hooks_init::PROGRAM)?;
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&program));
        let mut command = Command::new(path);
        command.arg0("launcher").env_clear().current_dir("/");
        command.stdin(theirs).stdout(Stdio::null()).stderr(Stdio::null());
        restore_file_limit(&mut command);
        let process = command.spawn()?;
        Ok(Launcher { socket, process, next_token: AtomicU64::new(0) })
    }

    fn is_alive(&self) -> bool {
        let mut polled = [PollFd::new(&self.socket, PollFlags::empty())];
        poll(&mut polled, Some(&Timespec::default())).is_ok_and(|events| events == 0)
    }

    /// Returns the process id of the launcher, the parent of commands and of their orphans, unless it has ended.
    pub(super) fn pid(&self) -> Option<u32> {
        self.is_alive().then(|| self.process.id())
    }

    /// Returns the orphans of all jobs: children of the launcher, except running commands. `None` if the launcher
    /// cannot list them.
    pub(super) fn orphans(&self) -> Option<Vec<u32>> {
        let end = Instant::now() + REPORT_LIMIT;
        let (report, theirs) = pipe_with(PipeFlags::CLOEXEC).ok()?;
        ioctl_fionbio(&theirs, true).ok()?;
        self.resume();
        // A stopped launcher does not empty the socket.
        let flags = SendFlags::DONTWAIT;
        self.send_with(flags, LaunchMessage::Orphans, &[theirs.as_fd()]).ok()?;
        drop(theirs);
        let mut bytes = Vec::new();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let limit = Timespec::try_from(left.min(RESUME_INTERVAL)).ok()?;
            let mut polled = [PollFd::new(&report, PollFlags::IN)];
            if retry_on_intr(|| poll(&mut polled, Some(&limit))).ok()? == 0 {
                if left.is_zero() {
                    return None;
                }
                self.resume();
                continue;
            }
            let mut chunk = [0; 4096];
            match retry_on_intr(|| rustix::io::read(&report, &mut chunk[..])).ok()? {
                0 => return OrphanReport::decode(&bytes).map(|OrphanReport(orphans)| orphans),
                count => bytes.extend_from_slice(&chunk[..count]),
            }
        }
    }

    /// Continues the launcher, which a step of the same user may have stopped.
    fn resume(&self) {
        // It is reaped only on drop, so its id is valid; if it has ended, nothing happens.
        let _ = kill_process(Pid::from_child(&self.process), Signal::CONT);
    }

    /// Starts a program with `streams` as standard output and standard error, in the cgroup whose
    /// directory is `cgroup`.
    pub(super) fn launch(
        self: &Arc<Self>,
        request: &LaunchRequest,
        streams: [BorrowedFd<'_>; 2],
        cgroup: Option<BorrowedFd<'_>>,
    ) -> io::Result<LaunchedChild> {
        let (reports, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
        let file = memory_file("request", &request.encode())?;
        let token = self.next_token.fetch_add(1, Ordering::Relaxed);
        let start = [theirs.as_fd(), streams[0], streams[1], file.as_fd()];
        let descriptors: Vec<BorrowedFd<'_>> = start.into_iter().chain(cgroup).collect();
        self.resume();
        self.send(LaunchMessage::Start { token }, &descriptors)?;
        let launcher = self.clone();
        Ok(LaunchedChild { launcher, token, reports, pid: None, failure: None, exit: None })
    }

    fn send(&self, message: LaunchMessage, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.send_with(SendFlags::empty(), message, descriptors)
    }

    fn send_with(
        &self,
        flags: SendFlags,
        message: LaunchMessage,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        const DESCRIPTORS: usize = START_DESCRIPTORS + 1;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(Errno::INVAL.into());
        }
        let bytes = message.encode();
        let bytes = [IoSlice::new(&bytes)];
        let flags = flags | SendFlags::NOSIGNAL;
        retry_on_intr(|| sendmsg(&self.socket, &bytes, &mut control, flags))?;
        Ok(())
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        // The launcher ends when its socket is closed.
        let _ = shutdown(&self.socket, Shutdown::Both);
        let _ = self.process.wait();
    }
}

/// A process that the launcher starts for a command. On drop, it is killed unless it has ended.
#[derive(Debug)]
pub struct LaunchedChild {
    launcher: Arc<Launcher>,
    token: u64,
    reports: OwnedFd,
    pid: Option<Pid>,
    failure: Option<(LaunchAction, i32)>,
    exit: Option<ProcessExit>,
}

/// The error of a program that could not be executed.
#[derive(Debug)]
pub struct LaunchError {
    pub action: LaunchAction,
    pub error: io::Error,
}

impl LaunchedChild {
    /// Returns a descriptor that is readable when the launcher has sent a report on the process.
    pub(super) fn reports(&self) -> BorrowedFd<'_> {
        self.reports.as_fd()
    }

    /// Returns the process id; `None` until the launcher has reported it.
    pub(super) fn pid(&self) -> Option<Pid> {
        self.pid
    }

    /// Reads the launcher's reports on the process. Once it has ended, returns its exit, or the
    /// error if it could not execute a program; until then, `None`.
    ///
    /// # Errors
    ///
    /// Fails if the launcher has ended.
    pub(super) fn read(&mut self) -> io::Result<Option<Result<ProcessExit, LaunchError>>> {
        let mut bytes = [0; 64];
        let count = retry_on_intr(|| rustix::io::read(&self.reports, &mut bytes[..]))?;
        for report in LaunchReport::decode_all(&bytes[..count]) {
            match report {
                Some(LaunchReport::Started { pid }) => {
                    self.pid = Pid::from_raw(pid);
                }
                Some(LaunchReport::Failed { action, errno }) => {
                    self.failure = Some((action, errno));
                }
                Some(LaunchReport::Ended { exit }) => self.exit = Some(exit),
                None => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
        let is_last = self.exit.is_some() || count == 0 && self.failure.is_some();
        Ok(match (self.failure, self.exit) {
            (Some((action, errno)), _) if is_last => {
                let error = io::Error::from_raw_os_error(errno);
                Some(Err(LaunchError { action, error }))
            }
            (_, Some(exit)) => Some(Ok(exit)),
            _ if count == 0 => {
                return Err(io::Error::other("the launcher process of step-runner has ended"));
            }
            _ => None,
        })
    }

    /// Sends a signal to the process and its group, unless it has ended.
    pub(super) fn signal(&self, signal: Signal) {
        let signal = u8::try_from(signal.as_raw()).unwrap_or_default();
        self.launcher.resume();
        // Fails only if the launcher has ended, which the next read reports.
        let _ = self.launcher.send(LaunchMessage::Signal { token: self.token, signal }, &[]);
    }
}

impl Drop for LaunchedChild {
    fn drop(&mut self) {
        self.launcher.resume();
        // Sent even if the exit was reported: a job of the same user can forge that report while
        // the process runs. Fails only if the launcher has ended.
        let _ = self.launcher.send(LaunchMessage::Abandon { token: self.token }, &[]);
    }
}

/// Returns a path as bytes, for a [`LaunchRequest`].
pub(super) fn bytes_of(path: PathBuf) -> Vec<u8> {
    path.into_os_string().into_vec()
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use oci_hooks_host::processes::ProcessSnapshot;
    use oci_hooks_init::launch::ProgramPaths;

    use super::*;

    fn orphans(launcher: &Launcher) -> Vec<u32> {
        loop {
            // The machine may be too busy for a report in time.
            if let Some(orphans) = launcher.orphans() {
                return orphans;
            }
        }
    }

    #[test]
    fn commands_are_no_orphans_and_are_killed_on_drop() {
        let launcher = Arc::new(Launcher::start().unwrap());
        let null = File::options().write(true).open("/dev/null").unwrap();
        let request = LaunchRequest {
            work_dir: b"/".to_vec(),
            programs: ProgramPaths::Exact(b"/bin/sleep".to_vec()),
            argv: [&b"sleep"[..], b"1000"].map(<[u8]>::to_vec).to_vec(),
            env: Vec::new(),
        };
        let mut child = launcher.launch(&request, [null.as_fd(); 2], None).unwrap();
        // Its start is not yet reported.
        assert_eq!(orphans(&launcher), [0; 0]);
        while child.pid().is_none() {
            child.read().unwrap();
        }
        let pid = child.pid().unwrap().as_raw_nonzero().get().cast_unsigned();
        let process = ProcessSnapshot::of(pid).unwrap();
        // As after a report that a job has written.
        child.exit = Some(ProcessExit::Exited(0));
        drop(child);
        while process.is_running() {
            std::thread::yield_now();
        }
        while orphans(&launcher) != [0; 0] {
            std::thread::yield_now();
        }
        kill_process(Pid::from_child(&launcher.process), Signal::KILL).unwrap();
        while launcher.is_alive() {
            std::thread::yield_now();
        }
        assert_eq!(launcher.orphans(), None);
    }
}
