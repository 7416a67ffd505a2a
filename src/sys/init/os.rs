//! System calls that the standard library has no functions for, by way of the C library it is linked
//! with. The only unsafe code of the program.

#![expect(unsafe_code, reason = "the standard library has none of these calls")]

pub mod at;
mod ffi;
mod stream;

use std::ffi::{CStr, CString, c_int, c_long, c_short, c_uint, c_ulong, c_void};
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::ptr::{null, null_mut};
use std::time::Duration;

use crate::frames::{Rlimit, Size};
use ffi::*;
pub use stream::{hide, send_with, set_nonblocking};

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

    /// Returns an entry that nothing is reported of.
    pub fn none() -> Self {
        PollFd { fd: -1, events: 0, returned: 0 }
    }

    /// Returns whether any of these happened, or the other end is gone.
    pub fn is(&self, events: c_short) -> bool {
        self.returned & events != 0
    }
}

/// A set of signals, as large as C libraries have it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Signals([u64; 16]);

impl Signals {
    pub const NONE: Signals = Signals([0; 16]);
    pub const ALL: Signals = Signals([u64::MAX; 16]);

    pub(crate) fn of(signals: &[i32]) -> Self {
        let mut set = Signals::NONE;
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

fn owned(result: c_int) -> io::Result<OwnedFd> {
    // SAFETY: a call that makes a descriptor gives it to nobody else.
    checked(result).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Takes over a listening socket that we were started with, if the descriptor is one.
pub fn listener(fd: RawFd) -> Option<OwnedFd> {
    let mut listens: c_int = 0;
    let mut length = size_of::<c_int>() as c_uint;
    // SAFETY: the value is as long as said.
    let result = unsafe {
        getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, (&raw mut listens).cast(), &raw mut length)
    };
    if result < 0 || listens == 0 {
        return None;
    }
    // SAFETY: the descriptor is open, was before `main`, and is taken over once. The flag is a number.
    unsafe {
        fcntl(fd, F_SETFD, FD_CLOEXEC);
        Some(OwnedFd::from_raw_fd(fd))
    }
}

/// Unmaps the pages of the program that only its start has needed: what is needed again is mapped again,
/// from a file that all containers share.
pub fn forget_start() {
    let begin = (&raw const __executable_start).addr();
    let length = (&raw const etext).addr().saturating_sub(begin) & !(PAGE_BYTES - 1);
    let begin = begin & !(PAGE_BYTES - 1);
    // SAFETY: these pages are the file's and were never written to.
    unsafe { madvise(begin as *mut c_void, length, MADV_DONTNEED) };
}

/// Makes every descriptor but the standard ones close on execution. Older kernels do not have this;
/// it is for descriptors that we were started with, ours are closed anyway.
pub fn close_on_execution() {
    // SAFETY: closes nothing now.
    unsafe { syscall(SYS_CLOSE_RANGE, 3_u64, u64::from(c_uint::MAX), CLOSE_RANGE_CLOEXEC) };
}

/// Closes all descriptors but the standard streams and this one. Their owners, if any are left, must not be
/// used any more: the process is about to become a program, or to end.
pub fn close_all_but(kept: BorrowedFd<'_>) {
    let kept = u64::from(kept.as_raw_fd().unsigned_abs());
    for (first, last) in [(3, kept.saturating_sub(1)), (kept + 1, u64::from(c_uint::MAX))] {
        if first <= last {
            // SAFETY: who calls this owns what is closed, and does not use it again.
            unsafe { syscall(SYS_CLOSE_RANGE, first, last, 0_u64) };
        }
    }
}

pub(crate) fn accept(listener: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = O_NONBLOCK | O_CLOEXEC;
    // SAFETY: stores no address.
    owned(unsafe { accept4(listener.as_raw_fd(), null_mut(), null_mut(), flags) })
}

/// Returns the read and the write end of a pipe.
pub fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: stores two descriptors, which are nobody else's.
    unsafe {
        checked(pipe2(ends.as_mut_ptr(), O_CLOEXEC | O_NONBLOCK))?;
        Ok((OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])))
    }
}

/// Waits until something happens, or for so long. An interruption is a result without events.
pub fn poll(entries: &mut [PollFd], timeout: Option<Duration>) {
    let round_up = |time: Duration| time.as_micros().div_ceil(1000);
    let milliseconds = timeout.map_or(-1, |time| c_int::try_from(round_up(time)).unwrap_or(-1));
    // SAFETY: as many entries as said.
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
        Control { length: 0, level: 0, kind: 0, descriptors: [-1; DESCRIPTORS_AT_ONCE] };
    let mut message = Msghdr {
        name: null_mut(),
        name_length: 0,
        iov: &raw mut iov,
        iov_length: 1,
        control: (&raw mut control).cast(),
        control_length: size_of::<Control>(),
        flags: 0,
    };
    let flags = MSG_DONTWAIT | MSG_CMSG_CLOEXEC;
    // SAFETY: the message names areas that are as large as it says.
    let count = unsafe { recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
    let header = size_of::<Control>() - size_of_val(&control.descriptors);
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

/// Sends bytes without waiting; returns whether all of them could be.
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

/// What a process is after [`duplicate`].
pub enum Fork {
    Parent(i32),
    Child,
}

/// Makes a copy of this process.
pub fn duplicate() -> io::Result<Fork> {
    // SAFETY: this program has one thread, so the copy may do whatever this process may.
    match checked(unsafe { fork() })? {
        0 => Ok(Fork::Child),
        child => Ok(Fork::Parent(child)),
    }
}

/// Ends this process at once.
pub fn exit(code: i32) -> ! {
    // SAFETY: does not return.
    unsafe { _exit(code) }
}

/// What became of the children of this process.
pub enum Waited {
    /// One ended, with this status.
    Ended(i32, Status),
    /// There are some, and none has ended.
    Running,
    NoChildren,
}

/// How a process ended.
#[derive(Clone, Copy)]
pub enum Status {
    Exited(u8),
    Signalled(u8),
}

/// Takes the status of a child that ended, whichever it is.
pub fn wait_any() -> Waited {
    let mut status = 0;
    // SAFETY: stores one status.
    match unsafe { waitpid(-1, &raw mut status, WNOHANG) } {
        0 => Waited::Running,
        ended if ended > 0 => {
            let status = match status & 0x7f {
                0 => Status::Exited((status >> 8 & 0xff) as u8),
                signal => Status::Signalled(signal as u8),
            };
            Waited::Ended(ended, status)
        }
        _ => Waited::NoChildren,
    }
}

/// Sends a signal to a process, or to a group by its negative number.
pub fn kill(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: has no pointers.
    checked(unsafe { c_kill(pid, signal) }).map(drop)
}

/// Sends a signal to the process that a directory of `/proc` is of, and to no later one of its number.
pub fn signal_by_directory(directory: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    // SAFETY: has no pointers but a null.
    let result = unsafe {
        let no_info = null::<c_void>();
        syscall(SYS_PIDFD_SEND_SIGNAL, directory.as_raw_fd(), signal, no_info, 0_u32)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Blocks signals besides those that are blocked; returns which were before.
pub fn block(signals: Signals) -> Signals {
    let mut before = Signals::NONE;
    // SAFETY: both sets are complete.
    unsafe { sigprocmask(SIG_BLOCK, &raw const signals, &raw mut before) };
    before
}

/// Sets which signals are blocked, and lets `SIGPIPE`, which the standard library ignores, end the
/// process: what a program that is executed next starts with.
pub fn restore_signals(mask: Signals) {
    default_action(SIGPIPE);
    // SAFETY: the set is complete; nothing is stored.
    unsafe { sigprocmask(SIG_SETMASK, &raw const mask, null_mut()) };
}

/// Has all signals do what they do by default: whoever started the runtime may have had some ignored.
pub fn default_actions() {
    (1..=LAST_SIGNAL).for_each(default_action);
}

fn default_action(signal: c_int) {
    const SET_BYTES: usize = 8;
    // The kernel's `struct sigaction`, which is no longer anywhere: the default, and no flags. The C library's
    // function refuses the signals that it has for itself.
    let default = [0_u64; 4];
    let no_old = null_mut::<u8>();
    // SAFETY: the structure is complete; nothing is stored.
    unsafe { syscall(SYS_RT_SIGACTION, signal, &raw const default, no_old, SET_BYTES) };
}

/// Waits for one of some signals that are blocked, for so long.
pub fn wait_signal(signals: Signals, timeout: Option<Duration>) -> Option<i32> {
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
pub fn signal_descriptor(signals: Signals) -> io::Result<OwnedFd> {
    // SAFETY: the set is complete.
    owned(unsafe { signalfd(-1, &raw const signals, O_NONBLOCK | O_CLOEXEC) })
}

/// Makes this process the one that orphans below it become children of, and keeps other processes of
/// its user from looking into it.
pub fn become_reaper() {
    // SAFETY: has no pointers.
    unsafe {
        prctl(PR_SET_CHILD_SUBREAPER, 1 as c_ulong, 0 as c_ulong, 0 as c_ulong, 0 as c_ulong);
    }
    hide();
}

pub(crate) fn new_session() {
    // SAFETY: has no pointers; fails only for the leader of a group.
    unsafe { setsid() };
}

pub(crate) fn new_group() {
    // SAFETY: has no pointers.
    unsafe { setpgid(0, 0) };
}

/// Makes a descriptor the one of this number, which stays open on execution.
pub fn place(fd: BorrowedFd<'_>, number: RawFd) -> io::Result<()> {
    // SAFETY: what has the number is a standard stream, which nobody owns as a value.
    checked(unsafe { dup2(fd.as_raw_fd(), number) }).map(drop)
}

/// Opens a terminal of this size: returns the end of whoever is in front of it, and that of programs.
pub fn open_terminal(size: Size) -> io::Result<(OwnedFd, OwnedFd)> {
    let unlocked: c_int = 0;
    let size = [size.rows, size.columns, 0, 0];
    let flags = O_RDWR | O_NOCTTY | O_CLOEXEC;
    // SAFETY: the path ends with a NUL, and the kernel reads a number and four numbers.
    unsafe {
        let front = owned(open(c"/dev/ptmx".as_ptr(), flags | O_NONBLOCK))?;
        checked(ioctl(front.as_raw_fd(), TIOCSPTLCK, &raw const unlocked))?;
        checked(ioctl(front.as_raw_fd(), TIOCSWINSZ, &raw const size))?;
        // By the descriptor: a path may lead elsewhere.
        let back = owned(ioctl(front.as_raw_fd(), TIOCGPTPEER, flags))?;
        Ok((front, back))
    }
}

/// Makes standard input the terminal of this session.
pub fn control_terminal() -> io::Result<()> {
    // SAFETY: has no pointers.
    checked(unsafe { ioctl(0, TIOCSCTTY, 0 as c_ulong) }).map(drop)
}

pub(crate) fn change_directory(path: &CStr) -> io::Result<()> {
    // SAFETY: the path ends with a NUL.
    checked(unsafe { chdir(path.as_ptr()) }).map(drop)
}

pub(crate) fn set_umask(mask: u32) {
    // SAFETY: has no pointers.
    unsafe { umask(mask) };
}

pub(crate) fn set_limit(limit: &Rlimit) -> io::Result<()> {
    let values = [limit.soft, limit.hard];
    // SAFETY: the kernel reads two numbers.
    checked(unsafe { setrlimit(limit.resource, &raw const values) }).map(drop)
}

pub(crate) fn set_groups(groups: &[u32]) -> io::Result<()> {
    // SAFETY: as many groups as said.
    checked(unsafe { setgroups(groups.len(), groups.as_ptr()) }).map(drop)
}

pub(crate) fn set_group(gid: u32) -> io::Result<()> {
    // SAFETY: has no pointers.
    checked(unsafe { setgid(gid) }).map(drop)
}

/// Becomes a user. If that was root before, its capabilities are gone.
pub fn set_user(uid: u32) -> io::Result<()> {
    // SAFETY: has no pointers.
    checked(unsafe { setuid(uid) }).map(drop)
}

/// Gives up `CAP_KILL` for this process and what it executes.
pub fn drop_kill() -> io::Result<()> {
    let header = [CAPABILITY_VERSION_3, 0];
    // Effective, permitted and inheritable: the first 32 of each, then the others.
    let mut sets = [0_u32; 6];
    // SAFETY: both areas are as large as version 3 says.
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

/// Becomes a program; returns why not.
pub fn execute(path: &CStr, args: &[CString], env: Option<&[CString]>) -> io::Error {
    let list = |texts: &[CString]| {
        texts.iter().map(|text| text.as_ptr()).chain([null()]).collect::<Vec<_>>()
    };
    let args = list(args);
    let env = env.map(list);
    // SAFETY: strings end with NULs, lists with nulls, and nobody changes our environment.
    unsafe {
        execve(path.as_ptr(), args.as_ptr(), env.as_ref().map_or(environ, |env| env.as_ptr()));
    }
    io::Error::last_os_error()
}

/// Opens a file beneath a directory, to read it.
pub fn open_at(directory: BorrowedFd<'_>, path: &CStr) -> io::Result<OwnedFd> {
    // SAFETY: the path ends with a NUL.
    owned(unsafe { openat(directory.as_raw_fd(), path.as_ptr(), O_CLOEXEC) })
}

/// Calls a function with each name in a directory that is a number.
pub fn each_number(directory: BorrowedFd<'_>, mut take: impl FnMut(i32)) {
    /// Where the length and the name of an entry are in it.
    const LENGTH: usize = 16;
    const NAME: usize = 19;
    let mut entries = [0_u8; 16 << 10];
    loop {
        // SAFETY: the area is as large as said.
        let count = unsafe {
            let area = entries.as_mut_ptr();
            syscall(SYS_GETDENTS64, directory.as_raw_fd(), area, entries.len())
        };
        let mut rest = match usize::try_from(count) {
            Ok(count) if count > 0 => &entries[..count],
            _ => return,
        };
        while let (Some(length), Some(name)) = (rest.get(LENGTH..LENGTH + 2), rest.get(NAME..)) {
            let name =
                name.split(|byte| *byte == 0).next().and_then(|name| str::from_utf8(name).ok());
            if let Some(number) = name.and_then(|name| name.parse().ok()) {
                take(number);
            }
            let length = usize::from(u16::from_le_bytes([length[0], length[1]]));
            rest = rest.get(length.max(1)..).unwrap_or_default();
        }
    }
}
