//! System calls that the standard library has no functions for, through the C library. The only
//! unsafe code of the program.

#![expect(unsafe_code, reason = "the standard library has none of these calls")]

pub mod at;
mod ffi;
mod stream;

use std::ffi::{CStr, CString, c_int, c_long, c_short, c_uint, c_ulong, c_void};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::ptr::{null, null_mut};
use std::time::Duration;

use crate::frames::{ResourceLimit, TerminalSize};
use ffi::*;
pub use stream::{hide_process, send_with, set_nonblocking};

pub const SIGHUP: i32 = 1;
pub const SIGINT: i32 = 2;
pub const SIGQUIT: i32 = 3;
pub const SIGKILL: i32 = 9;
pub const SIGTERM: i32 = 15;
pub const SIGCHLD: i32 = 17;
pub const SIGCONT: i32 = 18;
pub const SIGSTOP: i32 = 19;

pub const ENOENT: i32 = 2;
pub const EIO: i32 = 5;
pub const E2BIG: i32 = 7;
pub const EACCES: i32 = 13;
pub const ENOTDIR: i32 = 20;

pub const POLLIN: c_short = 1;
pub const POLLOUT: c_short = 4;
pub const POLLERR: c_short = 8;
pub const POLLHUP: c_short = 16;
pub const POLLRDHUP: c_short = 0x2000;

/// Returns whether a call can be repeated, at once or when its descriptor is ready.
pub fn is_temporary(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct PollFd {
    fd: c_int,
    events: c_short,
    returned: c_short,
}

impl PollFd {
    pub(crate) fn new(fd: BorrowedFd<'_>, events: c_short) -> Self {
        PollFd { fd: fd.as_raw_fd(), events, returned: 0 }
    }

    /// Returns an entry for which no events are reported.
    pub fn none() -> Self {
        PollFd { fd: -1, events: 0, returned: 0 }
    }

    /// Returns whether any of these events was reported.
    pub fn is(&self, events: c_short) -> bool {
        self.returned & events != 0
    }
}

/// Set of signals, as large as the C libraries' `sigset_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct SignalSet([u64; 16]);

impl SignalSet {
    pub const NONE: SignalSet = SignalSet([0; 16]);
    pub const ALL: SignalSet = SignalSet([u64::MAX; 16]);

    pub(crate) fn of(signals: &[i32]) -> Self {
        let mut set = SignalSet::NONE;
        for signal in signals {
            set.0[0] |= 1 << (signal - 1);
        }
        set
    }
}

/// Returns a result of the C library, or its error.
fn checked(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn to_owned_fd(result: c_int) -> io::Result<OwnedFd> {
    // SAFETY: a call that creates a descriptor returns it to its caller only.
    checked(result).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Takes over an inherited listening socket, if the descriptor is one.
pub fn listener(fd: RawFd) -> Option<OwnedFd> {
    let mut listens: c_int = 0;
    let mut length = size_of::<c_int>() as c_uint;
    // SAFETY: the length is that of the value.
    let result = unsafe {
        getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, (&raw mut listens).cast(), &raw mut length)
    };
    if result < 0 || listens == 0 {
        return None;
    }
    // SAFETY: the descriptor was opened before `main`, and is taken over once. The flag is a
    // number.
    unsafe {
        fcntl(fd, F_SETFD, FD_CLOEXEC);
        Some(OwnedFd::from_raw_fd(fd))
    }
}

/// Unmaps the pages of the program's code, most of which only its start has needed. The kernel maps
/// pages that are needed again from the file, which all containers share.
pub fn forget_start() {
    let begin = (&raw const __executable_start).addr();
    let length = (&raw const etext).addr().saturating_sub(begin) & !(PAGE_BYTES - 1);
    let begin = begin & !(PAGE_BYTES - 1);
    // SAFETY: these pages are the file's and were never written to.
    unsafe { madvise(begin as *mut c_void, length, MADV_DONTNEED) };
}

/// Sets close-on-exec for all descriptors but the standard ones. Only inherited descriptors need
/// this: the program opens its own with the flag. Does nothing on kernels without
/// `CLOSE_RANGE_CLOEXEC`.
pub fn close_on_execution() {
    // SAFETY: closes nothing now.
    unsafe { syscall(SYS_CLOSE_RANGE, 3_u64, u64::from(c_uint::MAX), CLOSE_RANGE_CLOEXEC) };
}

/// Closes all descriptors but the standard streams and `kept`. Values that own a closed descriptor
/// must not be used any more: the process is about to execute a program, or to exit.
pub fn close_all_but(kept: BorrowedFd<'_>) {
    let kept = u64::from(kept.as_raw_fd().unsigned_abs());
    for (first, last) in [(3, kept.saturating_sub(1)), (kept + 1, u64::from(c_uint::MAX))] {
        if first <= last {
            // SAFETY: callers do not use the closed descriptors any more.
            unsafe { syscall(SYS_CLOSE_RANGE, first, last, 0_u64) };
        }
    }
}

pub(crate) fn accept(listener: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = O_NONBLOCK | O_CLOEXEC;
    // SAFETY: stores no address.
    to_owned_fd(unsafe { accept4(listener.as_raw_fd(), null_mut(), null_mut(), flags) })
}

/// Returns the read and the write end of a pipe.
pub fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: stores two new descriptors, which have no other owner.
    unsafe {
        checked(pipe2(ends.as_mut_ptr(), O_CLOEXEC | O_NONBLOCK))?;
        Ok((OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])))
    }
}

/// Waits for events, or for a timeout. An interruption counts as no events.
pub fn poll(entries: &mut [PollFd], timeout: Option<Duration>) {
    let round_up = |time: Duration| time.as_micros().div_ceil(1000);
    let milliseconds = timeout.map_or(-1, |time| c_int::try_from(round_up(time)).unwrap_or(-1));
    // SAFETY: the count is that of the entries.
    unsafe { c_poll(entries.as_mut_ptr(), entries.len() as c_ulong, milliseconds) };
}

/// Receives bytes, and appends the descriptors that came with them.
pub fn receive(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
) -> io::Result<usize> {
    let mut iov = Iovec { base: bytes.as_mut_ptr().cast(), length: bytes.len() };
    let mut control =
        ControlMessage { length: 0, level: 0, kind: 0, descriptors: [-1; DESCRIPTORS_AT_ONCE] };
    let mut message = Msghdr {
        name: null_mut(),
        name_length: 0,
        iov: &raw mut iov,
        iov_length: 1,
        control: (&raw mut control).cast(),
        control_length: size_of::<ControlMessage>(),
        flags: 0,
    };
    let flags = MSG_DONTWAIT | MSG_CMSG_CLOEXEC;
    // SAFETY: the message names areas that are as large as it says.
    let count = unsafe { recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
    let header = size_of::<ControlMessage>() - size_of_val(&control.descriptors);
    if message.control_length >= header && (control.level, control.kind) == (SOL_SOCKET, SCM_RIGHTS)
    {
        let received = control.length.saturating_sub(header) / size_of::<c_int>();
        for fd in control.descriptors.iter().take(received) {
            // SAFETY: the kernel made these descriptors for us.
            descriptors.push(unsafe { OwnedFd::from_raw_fd(*fd) });
        }
    }
    if message.flags & MSG_CTRUNC != 0 {
        return Err(io::Error::other("too many descriptors"));
    }
    Ok(count)
}

/// Sends bytes without blocking; returns whether all were sent.
pub fn send_all(socket: BorrowedFd<'_>, bytes: &[u8]) -> bool {
    let flags = MSG_DONTWAIT | MSG_NOSIGNAL;
    // SAFETY: reads as many bytes as there are.
    let count = unsafe { send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) };
    usize::try_from(count) == Ok(bytes.len())
}

pub(crate) fn process_id() -> i32 {
    // SAFETY: cannot fail.
    unsafe { getpid() }
}

pub(crate) fn is_root() -> bool {
    // SAFETY: cannot fail.
    unsafe { getuid() == 0 }
}

pub(crate) fn user_id() -> u32 {
    // SAFETY: cannot fail.
    unsafe { getuid() }
}

/// Result of [`duplicate`] in each process.
pub enum ForkResult {
    Parent(i32),
    Child,
}

/// Forks this process.
pub fn duplicate() -> io::Result<ForkResult> {
    // SAFETY: the program has only one thread, so the child may call any function.
    match checked(unsafe { fork() })? {
        0 => Ok(ForkResult::Child),
        child => Ok(ForkResult::Parent(child)),
    }
}

/// Forks this process; the child is created in a cgroup of version 2, given its directory.
pub fn duplicate_into(cgroup: BorrowedFd<'_>) -> io::Result<ForkResult> {
    let arguments = CloneArguments {
        flags: CLONE_INTO_CGROUP,
        exit_signal: u64::from(SIGCHLD.unsigned_abs()),
        cgroup: u64::from(cgroup.as_raw_fd().unsigned_abs()),
        ..CloneArguments::default()
    };
    // SAFETY: the structure is complete, and shares nothing with the child. As the program has only one thread,
    // the child may call any function.
    match unsafe { syscall(SYS_CLONE3, &raw const arguments, size_of::<CloneArguments>()) } {
        0 => Ok(ForkResult::Child),
        child if child > 0 => Ok(ForkResult::Parent(child as i32)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Exits at once, without cleanup.
pub fn exit(code: i32) -> ! {
    // SAFETY: does not return.
    unsafe { _exit(code) }
}

/// Result of waiting for children.
pub enum ChildWait {
    /// A child has ended, with this status.
    Ended(i32, ChildStatus),
    /// Children exist, but none has ended.
    Running,
    NoChildren,
}

/// Exit status of a process.
#[derive(Clone, Copy)]
pub enum ChildStatus {
    Exited(u8),
    Signalled(u8),
}

/// Reaps any one child that has ended.
pub fn wait_any() -> ChildWait {
    let mut status = 0;
    // SAFETY: stores one status.
    match unsafe { waitpid(-1, &raw mut status, WNOHANG) } {
        0 => ChildWait::Running,
        ended if ended > 0 => {
            let status = match status & 0x7f {
                0 => ChildStatus::Exited((status >> 8 & 0xff) as u8),
                signal => ChildStatus::Signalled(signal as u8),
            };
            ChildWait::Ended(ended, status)
        }
        _ => ChildWait::NoChildren,
    }
}

/// Sends a signal to a process, or to a process group by its negative id.
pub fn kill(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: has no pointers.
    checked(unsafe { c_kill(pid, signal) }).map(drop)
}

/// Sends a signal to the process of an open `/proc/PID` directory, never to a later process with
/// the same id.
pub fn signal_by_directory(directory: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    // SAFETY: has no pointers but a null.
    let result = unsafe {
        let no_info = null::<c_void>();
        syscall(SYS_PIDFD_SEND_SIGNAL, directory.as_raw_fd(), signal, no_info, 0_u32)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Blocks further signals; returns the previously blocked ones.
pub fn block(signals: SignalSet) -> SignalSet {
    let mut before = SignalSet::NONE;
    // SAFETY: both sets are complete.
    unsafe { sigprocmask(SIG_BLOCK, &raw const signals, &raw mut before) };
    before
}

/// Sets the blocked signals, and restores the default action of `SIGPIPE`, which the standard
/// library ignores, for the next program.
pub fn restore_signals(mask: SignalSet) {
    default_action(SIGPIPE);
    // SAFETY: the set is complete; nothing is stored.
    unsafe { sigprocmask(SIG_SETMASK, &raw const mask, null_mut()) };
}

/// Restores the default actions of all signals: the parent of the runtime may have ignored some.
pub fn default_actions() {
    (1..=LAST_SIGNAL).for_each(default_action);
}

fn default_action(signal: c_int) {
    const SET_BYTES: usize = 8;
    // The kernel's `struct sigaction`, which is not larger on any architecture: default action, no
    // flags. The C library's function rejects the signals that it uses itself.
    let default = [0_u64; 4];
    let no_old = null_mut::<u8>();
    // SAFETY: the structure is complete; nothing is stored.
    unsafe { syscall(SYS_RT_SIGACTION, signal, &raw const default, no_old, SET_BYTES) };
}

/// Waits for one of these blocked signals, or for a timeout.
pub fn wait_signal(signals: SignalSet, timeout: Option<Duration>) -> Option<i32> {
    let timeout = timeout.map(|time| Timespec {
        seconds: time.as_secs().cast_signed(),
        nanoseconds: c_long::from(time.subsec_nanos()),
    });
    let timeout = timeout.as_ref().map_or(null(), |time| &raw const *time);
    // SAFETY: the set and the time are complete; nothing else is stored.
    let signal = unsafe { sigtimedwait(&raw const signals, null_mut(), timeout) };
    (signal > 0).then_some(signal)
}

/// Returns a descriptor from which blocked signals are read.
pub fn signal_descriptor(signals: SignalSet) -> io::Result<OwnedFd> {
    // SAFETY: the set is complete.
    to_owned_fd(unsafe { signalfd(-1, &raw const signals, O_NONBLOCK | O_CLOEXEC) })
}

/// Makes this process the reaper of its orphaned descendants, and keeps other processes of its user
/// from inspecting it.
pub fn become_reaper() {
    adopt_orphans();
    hide_process();
}

/// Makes this process the reaper of its orphaned descendants.
pub fn adopt_orphans() {
    // SAFETY: has no pointers.
    unsafe {
        prctl(PR_SET_CHILD_SUBREAPER, 1 as c_ulong, 0 as c_ulong, 0 as c_ulong, 0 as c_ulong);
    }
}

pub(crate) fn new_session() {
    // SAFETY: has no pointers; fails only for the leader of a group.
    unsafe { setsid() };
}

pub(crate) fn new_group() {
    // SAFETY: has no pointers.
    unsafe { setpgid(0, 0) };
}

/// Duplicates a descriptor to a number, where it stays open on execution.
pub fn duplicate_to(fd: BorrowedFd<'_>, number: RawFd) -> io::Result<()> {
    // SAFETY: the replaced descriptor is a standard stream, which no value owns.
    checked(unsafe { dup2(fd.as_raw_fd(), number) }).map(drop)
}

/// Opens a pseudo-terminal of this size: returns its master, and its slave for programs.
pub fn open_terminal(size: TerminalSize) -> io::Result<(OwnedFd, OwnedFd)> {
    let unlocked: c_int = 0;
    let size = [size.rows, size.columns, 0, 0];
    let flags = O_RDWR | O_NOCTTY | O_CLOEXEC;
    // SAFETY: the path ends with a NUL, and the kernel reads a number and four numbers.
    unsafe {
        let front = to_owned_fd(open(c"/dev/ptmx".as_ptr(), flags | O_NONBLOCK))?;
        checked(ioctl(front.as_raw_fd(), TIOCSPTLCK, &raw const unlocked))?;
        checked(ioctl(front.as_raw_fd(), TIOCSWINSZ, &raw const size))?;
        // By descriptor: a path may lead elsewhere.
        let back = to_owned_fd(ioctl(front.as_raw_fd(), TIOCGPTPEER, flags))?;
        Ok((front, back))
    }
}

/// Sets the size of a pseudo-terminal by its master, which notifies its programs.
pub fn resize_terminal(front: BorrowedFd<'_>, size: TerminalSize) -> io::Result<()> {
    let size = [size.rows, size.columns, 0, 0];
    // SAFETY: the kernel reads four numbers.
    checked(unsafe { ioctl(front.as_raw_fd(), TIOCSWINSZ, &raw const size) }).map(drop)
}

/// Returns the user id of a user namespace's owner; the overflow id if it is not mapped here.
pub fn namespace_owner(namespace: &File) -> io::Result<u32> {
    let mut owner: u32 = 0;
    // SAFETY: the kernel writes a number.
    checked(unsafe { ioctl(namespace.as_raw_fd(), NS_GET_OWNER_UID, &raw mut owner) })?;
    Ok(owner)
}

/// Makes standard input the controlling terminal of this session.
pub fn control_terminal() -> io::Result<()> {
    // SAFETY: has no pointers.
    checked(unsafe { ioctl(0, TIOCSCTTY, 0 as c_ulong) }).map(drop)
}

pub(crate) fn change_directory(path: &CStr) -> io::Result<()> {
    // SAFETY: the path ends with a NUL.
    checked(unsafe { chdir(path.as_ptr()) }).map(drop)
}

/// Returns the number of blocks of a path's file system, and of those that are available.
pub fn count_blocks(path: &CStr) -> io::Result<(u64, u64)> {
    let mut status = std::mem::MaybeUninit::<Statvfs>::zeroed();
    // SAFETY: the path ends with a NUL, and the structure is at least as large as the C library's. It has only
    // numbers, so zeros are valid too.
    let status = unsafe {
        checked(statvfs(path.as_ptr(), status.as_mut_ptr()))?;
        status.assume_init()
    };
    Ok((status.blocks, status.available))
}

pub(crate) fn set_umask(mask: u32) {
    // SAFETY: has no pointers.
    unsafe { umask(mask) };
}

pub(crate) fn set_limit(limit: &ResourceLimit) -> io::Result<()> {
    let values = [limit.soft, limit.hard];
    // SAFETY: the kernel reads two numbers.
    checked(unsafe { setrlimit(limit.resource, &raw const values) }).map(drop)
}

/// Raises the soft limit of open files to the hard limit; returns the limit from before.
pub fn raise_file_limit() -> io::Result<ResourceLimit> {
    let mut values = [0; 2];
    // SAFETY: the kernel writes two numbers.
    checked(unsafe { getrlimit(RLIMIT_NOFILE, &raw mut values) })?;
    let [soft, hard] = values;
    let before = ResourceLimit { resource: RLIMIT_NOFILE, soft, hard };
    set_limit(&ResourceLimit { resource: RLIMIT_NOFILE, soft: hard, hard })?;
    Ok(before)
}

pub(crate) fn set_groups(groups: &[u32]) -> io::Result<()> {
    // SAFETY: the count is that of the groups.
    checked(unsafe { setgroups(groups.len(), groups.as_ptr()) }).map(drop)
}

pub(crate) fn set_group(gid: u32) -> io::Result<()> {
    // SAFETY: has no pointers.
    checked(unsafe { setgid(gid) }).map(drop)
}

/// Switches to a user. Root loses its capabilities by that.
pub fn set_user(uid: u32) -> io::Result<()> {
    // SAFETY: has no pointers.
    checked(unsafe { setuid(uid) }).map(drop)
}

/// Drops `CAP_KILL` for this process and the programs that it executes.
pub fn drop_kill() -> io::Result<()> {
    let header = [CAPABILITY_VERSION_3, 0];
    // Effective, permitted and inheritable: the first 32 of each, then the others.
    let mut sets = [0_u32; 6];
    // SAFETY: both areas have the size that version 3 requires.
    unsafe {
        let (lower, kill) = (PR_CAP_AMBIENT_LOWER, c_ulong::from(CAP_KILL));
        prctl(PR_CAP_AMBIENT, lower, kill, 0 as c_ulong, 0 as c_ulong);
        if syscall(SYS_CAPGET_CAPSET.0, &raw const header, &raw mut sets) < 0 {
            return Err(io::Error::last_os_error());
        }
        for set in &mut sets[..3] {
            *set &= !(1 << CAP_KILL);
        }
        if syscall(SYS_CAPGET_CAPSET.1, &raw const header, &raw const sets) < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Executes a program; returns the error if that fails.
pub fn execute(path: &CStr, args: &[CString], env: Option<&[CString]>) -> io::Error {
    let list = |texts: &[CString]| {
        texts.iter().map(|text| text.as_ptr()).chain([null()]).collect::<Vec<_>>()
    };
    let args = list(args);
    let env = env.map(list);
    // SAFETY: strings end with NULs, lists with nulls, and no thread changes the environment.
    unsafe {
        execve(path.as_ptr(), args.as_ptr(), env.as_ref().map_or(environ, |env| env.as_ptr()));
    }
    io::Error::last_os_error()
}

/// Opens a file beneath a directory for reading.
pub fn open_at(directory: BorrowedFd<'_>, path: &CStr) -> io::Result<OwnedFd> {
    // SAFETY: the path ends with a NUL.
    to_owned_fd(unsafe { openat(directory.as_raw_fd(), path.as_ptr(), O_CLOEXEC) })
}
