//! System calls of the program that `std` lacks, or for which `rustix` has other types. The only unsafe code of the
//! program calls the C library, where `rustix` has no function: for forks, signals and execution.

#![expect(unsafe_code, reason = "neither the standard library nor rustix has these calls")]

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::ptr::{null, null_mut};
use std::time::Duration;

use libc::{c_char, c_int, c_long, c_short, c_uint, c_ulong, c_void};
use oci_hooks_init::frames::{ResourceLimit, TerminalSize};
use oci_hooks_init::launch::ProcessExit;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, send, sendmsg, sockopt,
};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    DumpableBehavior, WaitOptions, getpid, set_child_subreaper, set_dumpable_behavior, wait,
};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use rustix::thread::{
    CapabilitySet, capabilities, configure_capability_in_ambient_set, set_capabilities,
};

pub use libc::{
    E2BIG, EACCES, ENOENT, ENOTDIR, POLLERR, POLLHUP, POLLIN, POLLOUT, POLLRDHUP, SIGCHLD, SIGCONT,
    SIGHUP, SIGINT, SIGKILL, SIGQUIT, SIGSTOP, SIGTERM,
};

const LAST_SIGNAL: c_int = 64;
/// Page size, or a fraction of it.
const PAGE_BYTES: usize = 4096;
const DESCRIPTORS_AT_ONCE: usize = 8;

unsafe extern "C" {
    /// Start of the program in memory, defined by the linker.
    static __executable_start: u8;
    /// End of the executable part of the program in memory, defined by the linker.
    static etext: u8;
    static environ: *const *const c_char;
}

/// Returns whether a call can be repeated, at once or when its descriptor is ready.
pub fn is_temporary(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// Events to wait for, without a lifetime, unlike `rustix::event::PollFd`: descriptors are added and removed
/// between two polls.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct PollFd(libc::pollfd);

impl PollFd {
    pub fn new(fd: BorrowedFd<'_>, events: c_short) -> Self {
        PollFd(libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 })
    }

    /// Returns an entry to wait for input; without a descriptor, no events are reported for it.
    pub fn input(fd: Option<BorrowedFd<'_>>) -> Self {
        let none = PollFd(libc::pollfd { fd: -1, events: 0, revents: 0 });
        fd.map_or(none, |fd| PollFd::new(fd, POLLIN))
    }

    /// Returns whether there is input, or no more of it.
    pub fn is_readable(&self) -> bool {
        self.is(POLLIN | POLLHUP | POLLERR)
    }

    /// Returns whether any of these events was reported.
    pub fn is(&self, events: c_short) -> bool {
        self.0.revents & events != 0
    }
}

/// Waits for events, or for a timeout. An interruption counts as no events.
pub fn poll(entries: &mut [PollFd], timeout: Option<Duration>) {
    let round_up = |time: Duration| time.as_micros().div_ceil(1000);
    let milliseconds = timeout.map_or(-1, |time| c_int::try_from(round_up(time)).unwrap_or(-1));
    // SAFETY: an entry is a `pollfd`, and the count is that of the entries.
    unsafe { libc::poll(entries.as_mut_ptr().cast(), entries.len() as c_ulong, milliseconds) };
}

/// Set of signals.
#[derive(Clone, Copy)]
pub struct SignalSet(libc::sigset_t);

impl SignalSet {
    pub fn none() -> Self {
        let mut set = MaybeUninit::uninit();
        // SAFETY: initializes the set.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            SignalSet(set.assume_init())
        }
    }

    pub fn all() -> Self {
        // Not by `sigfillset`: C libraries leave out the signals that they use themselves.
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: a set has only numbers.
        unsafe {
            set.as_mut_ptr().write_bytes(u8::MAX, 1);
            SignalSet(set.assume_init())
        }
    }

    pub fn of(signals: &[i32]) -> Self {
        let mut set = SignalSet::none();
        for signal in signals {
            // SAFETY: the set is initialized.
            unsafe { libc::sigaddset(&raw mut set.0, *signal) };
        }
        set
    }
}

/// Returns a result of the C library, or its error.
fn checked(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Takes over an inherited listening socket, if the descriptor is one.
pub fn listener(fd: RawFd) -> Option<OwnedFd> {
    // SAFETY: the descriptor was opened before `main`, or is rejected by the kernel.
    if fd < 0 || sockopt::socket_acceptconn(unsafe { BorrowedFd::borrow_raw(fd) }) != Ok(true) {
        return None;
    }
    // SAFETY: the descriptor was opened before `main`, and is taken over once.
    let listener = unsafe { OwnedFd::from_raw_fd(fd) };
    fcntl_setfd(&listener, FdFlags::CLOEXEC).ok()?;
    Some(listener)
}

/// Unmaps the pages of the program's code, most of which only its start has needed. The kernel maps
/// pages that are needed again from the file, which all containers share.
pub fn forget_start() {
    let begin = (&raw const __executable_start).addr();
    let length = (&raw const etext).addr().saturating_sub(begin) & !(PAGE_BYTES - 1);
    let begin = begin & !(PAGE_BYTES - 1);
    // SAFETY: these pages are the file's and were never written to.
    unsafe { libc::madvise(begin as *mut c_void, length, libc::MADV_DONTNEED) };
}

/// Sets close-on-exec for all descriptors but the standard ones. Only inherited descriptors need
/// this: the program opens its own with the flag. Does nothing on kernels without
/// `CLOSE_RANGE_CLOEXEC`.
pub fn close_on_execution() {
    close_range(3, c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC);
}

/// Closes all descriptors but the standard streams and `kept`. Values that own a closed descriptor
/// must not be used any more: the process is about to execute a program, or to exit.
pub fn close_all_but(kept: BorrowedFd<'_>) {
    let kept = kept.as_raw_fd().unsigned_abs();
    for (first, last) in [(3, kept.saturating_sub(1)), (kept + 1, c_uint::MAX)] {
        if first <= last {
            close_range(first, last, 0);
        }
    }
}

fn close_range(first: c_uint, last: c_uint, flags: c_uint) {
    // SAFETY: callers do not use the closed descriptors any more. Not by the C library's function, which old ones lack.
    unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) };
}

/// Returns the read and the write end of a pipe.
pub fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?)
}

/// Receives bytes, and appends the descriptors that came with them.
pub fn receive(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_AT_ONCE))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let message = recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, flags)?;
    let before = descriptors.len();
    for received in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = received {
            descriptors.extend(received);
        }
    }
    // The space for alignment may be enough for more.
    let are_too_many = descriptors.len() - before > DESCRIPTORS_AT_ONCE;
    if are_too_many || message.flags.contains(ReturnFlags::CTRUNC) {
        return Err(io::Error::other("too many descriptors"));
    }
    Ok(message.bytes)
}

/// Sends bytes without blocking; returns whether all were sent.
pub fn send_all(socket: BorrowedFd<'_>, bytes: &[u8]) -> bool {
    send(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) == Ok(bytes.len())
}

/// Sends bytes with descriptors, without blocking; returns the number of bytes sent. The
/// descriptors go with the first byte.
pub fn send_with(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_AT_ONCE))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    Ok(sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags)?)
}

pub fn process_id() -> i32 {
    getpid().as_raw_pid()
}

/// Result of [`duplicate`] in each process.
pub enum ForkResult {
    Parent(i32),
    Child,
}

/// Forks this process.
pub fn duplicate() -> io::Result<ForkResult> {
    // SAFETY: the program has only one thread, so the child may call any function.
    match checked(unsafe { libc::fork() })? {
        0 => Ok(ForkResult::Child),
        child => Ok(ForkResult::Parent(child)),
    }
}

/// Forks this process; the child is created in a cgroup of version 2, given its directory.
pub fn duplicate_into(cgroup: BorrowedFd<'_>) -> io::Result<ForkResult> {
    const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
    // SAFETY: all fields are numbers, for which zeros are valid.
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    arguments.flags = CLONE_INTO_CGROUP;
    arguments.exit_signal = u64::from(SIGCHLD.unsigned_abs());
    arguments.cgroup = u64::from(cgroup.as_raw_fd().unsigned_abs());
    // SAFETY: the structure is complete, and shares nothing with the child. As the program has only one thread,
    // the child may call any function.
    let child = unsafe {
        libc::syscall(libc::SYS_clone3, &raw const arguments, size_of::<libc::clone_args>())
    };
    match child {
        0 => Ok(ForkResult::Child),
        child => checked(c_int::try_from(child).unwrap_or(-1)).map(ForkResult::Parent),
    }
}

/// Exits at once, without cleanup.
pub fn exit(code: i32) -> ! {
    // SAFETY: does not return.
    unsafe { libc::_exit(code) }
}

/// Reaps any one child that has ended; returns `None` if all are running. Fails if there are no children.
pub fn wait_any() -> io::Result<Option<(i32, ProcessExit)>> {
    let number = |number: i32| u8::try_from(number).unwrap_or(u8::MAX);
    Ok(wait(WaitOptions::NOHANG)?.map(|(child, status)| {
        let exit = match status.terminating_signal() {
            Some(signal) => ProcessExit::Signalled(number(signal)),
            None => ProcessExit::Exited(number(status.exit_status().unwrap_or_default())),
        };
        (child.as_raw_pid(), exit)
    }))
}

/// Sends a signal to a process, or to a process group by its negative id.
pub fn kill(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: has no pointers.
    checked(unsafe { libc::kill(pid, signal) }).map(drop)
}

/// Sends a signal to the process of an open `/proc/PID` directory, never to a later process with
/// the same id.
pub fn signal_by_directory(directory: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    let (directory, no_info) = (directory.as_raw_fd(), null::<c_void>());
    // SAFETY: has no pointers but a null.
    let result =
        unsafe { libc::syscall(libc::SYS_pidfd_send_signal, directory, signal, no_info, 0_u32) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Blocks further signals; returns the previously blocked ones.
pub fn block(signals: SignalSet) -> SignalSet {
    let mut before = SignalSet::none();
    // SAFETY: both sets are initialized.
    unsafe { libc::sigprocmask(libc::SIG_BLOCK, &raw const signals.0, &raw mut before.0) };
    before
}

/// Sets the blocked signals, and restores the default action of `SIGPIPE`, which the standard
/// library ignores, for the next program.
pub fn restore_signals(mask: SignalSet) {
    default_action(libc::SIGPIPE);
    // SAFETY: the set is initialized; nothing is stored.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const mask.0, null_mut()) };
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
    unsafe {
        libc::syscall(libc::SYS_rt_sigaction, signal, &raw const default, no_old, SET_BYTES);
    }
}

/// Waits for one of these blocked signals, or for a timeout.
pub fn wait_signal(signals: SignalSet, timeout: Option<Duration>) -> Option<i32> {
    let timeout = timeout.map(|time| libc::timespec {
        tv_sec: time.as_secs().cast_signed(),
        tv_nsec: c_long::from(time.subsec_nanos()),
    });
    let timeout = timeout.as_ref().map_or(null(), |time| &raw const *time);
    // SAFETY: the set and the time are complete; nothing else is stored.
    let signal = unsafe { libc::sigtimedwait(&raw const signals.0, null_mut(), timeout) };
    (signal > 0).then_some(signal)
}

/// Returns a descriptor from which blocked signals are read.
pub fn signal_descriptor(signals: SignalSet) -> io::Result<OwnedFd> {
    let flags = libc::SFD_NONBLOCK | libc::SFD_CLOEXEC;
    // SAFETY: the set is initialized, and the new descriptor has no other owner.
    unsafe {
        checked(libc::signalfd(-1, &raw const signals.0, flags)).map(|fd| OwnedFd::from_raw_fd(fd))
    }
}

/// Makes this process the reaper of its orphaned descendants, and keeps other processes of its user
/// from inspecting it.
pub fn become_reaper() {
    let _ = set_child_subreaper(Some(getpid()));
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
}

/// Duplicates a descriptor to a number, where it stays open on execution.
pub fn duplicate_to(fd: BorrowedFd<'_>, number: RawFd) -> io::Result<()> {
    // SAFETY: the replaced descriptor is a standard stream, which no value owns.
    checked(unsafe { libc::dup2(fd.as_raw_fd(), number) }).map(drop)
}

/// Opens a pseudo-terminal of this size: returns its master, and its slave for programs.
pub fn open_terminal(size: TerminalSize) -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let front = open(c"/dev/ptmx", flags | OFlags::NONBLOCK, Mode::empty())?;
    unlockpt(&front)?;
    resize_terminal(&front, size)?;
    // By descriptor: a path may lead elsewhere.
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let back = ioctl_tiocgptpeer(&front, flags)?;
    Ok((front, back))
}

/// Sets the size of a pseudo-terminal by its master, which notifies its programs.
pub fn resize_terminal(front: &OwnedFd, size: TerminalSize) -> io::Result<()> {
    let (ws_row, ws_col) = (size.rows, size.columns);
    Ok(tcsetwinsize(front, Winsize { ws_row, ws_col, ws_xpixel: 0, ws_ypixel: 0 })?)
}

/// Returns the user id of a user namespace's owner; the overflow id if it is not mapped here.
pub fn namespace_owner(namespace: &File) -> io::Result<u32> {
    let mut owner: u32 = 0;
    // SAFETY: the kernel writes a number.
    checked(unsafe { libc::ioctl(namespace.as_raw_fd(), libc::NS_GET_OWNER_UID, &raw mut owner) })?;
    Ok(owner)
}

pub fn set_limit(limit: &ResourceLimit) -> io::Result<()> {
    let values = libc::rlimit { rlim_cur: limit.soft, rlim_max: limit.hard };
    // SAFETY: the kernel reads the values.
    checked(unsafe { libc::setrlimit(limit.resource as _, &raw const values) }).map(drop)
}

/// Drops `CAP_KILL` for this process and the programs that it executes.
pub fn drop_kill() -> io::Result<()> {
    let _ = configure_capability_in_ambient_set(CapabilitySet::KILL, false);
    let mut sets = capabilities(None)?;
    for set in [&mut sets.effective, &mut sets.permitted, &mut sets.inheritable] {
        set.remove(CapabilitySet::KILL);
    }
    Ok(set_capabilities(None, sets)?)
}

/// Returns a path from a frame.
pub fn path_of(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

/// Converts strings from a frame or the kernel, which have no NUL.
pub fn to_c_strings(texts: impl IntoIterator<Item = Vec<u8>>) -> Vec<CString> {
    texts.into_iter().map(|text| CString::new(text).unwrap_or_default()).collect()
}

/// Executes a program; returns the error if that fails.
pub fn execute(path: &[u8], args: &[CString], env: Option<&[CString]>) -> io::Error {
    let list = |texts: &[CString]| {
        texts.iter().map(|text| text.as_ptr()).chain([null()]).collect::<Vec<_>>()
    };
    let path = CString::new(path).unwrap_or_default();
    let args = list(args);
    let env = env.map(list);
    // SAFETY: strings end with NULs, lists with nulls, and no thread changes the environment.
    unsafe {
        let env = env.as_ref().map_or(environ, |env| env.as_ptr());
        libc::execve(path.as_ptr(), args.as_ptr(), env);
    }
    io::Error::last_os_error()
}
