//! Processes that run no other program: copies of this one in namespaces of their own.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;

use super::error::PrivilegeError;

/// Checks that this process has one thread: nothing but that one is in a copy of it, and no process of several
/// can enter a user namespace.
pub fn check_single_thread() -> Result<(), PrivilegeError> {
    let threads = fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
    if threads == 1 { Ok(()) } else { Err(PrivilegeError::Threads) }
}

/// Makes a copy of this process, which has one thread, with these flags of `clone(2)`. Returns its number
/// in the process and nothing in the copy.
#[expect(unsafe_code, reason = "there is no safe way to make a process that runs no program")]
pub fn fork_with(flags: libc::c_int) -> io::Result<Option<u32>> {
    let flags = libc::c_long::from(flags | libc::SIGCHLD);
    // SAFETY: without CLONE_VM the child gets a copy of everything, as with fork(2): null for the
    // stack keeps the one it has, and the other pointers are not used without their flags. As there is no
    // other thread, there is no lock that nobody would release there.
    match unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) } {
        0 => Ok(None),
        pid if pid < 0 => Err(io::Error::last_os_error()),
        pid => Ok(Some(u32::try_from(pid).expect("the kernel returns the number of a process"))),
    }
}

/// Becomes user 0 and group 0 of the user namespace, in all ids of the process.
#[expect(
    unsafe_code,
    reason = "rustix sets the ids of one thread, and leaves those of the file system"
)]
pub fn use_root() -> io::Result<()> {
    // SAFETY: the calls take numbers alone.
    let is_done = unsafe { libc::setresgid(0, 0, 0) == 0 && libc::setresuid(0, 0, 0) == 0 };
    if is_done { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Closes all descriptors but the standard ones and that of a file.
#[expect(unsafe_code, reason = "rustix has no close_range")]
pub fn close_others(kept: Option<&File>) {
    const STANDARD: libc::c_uint = 3;
    let kept = kept.map_or(STANDARD - 1, |file| file.as_raw_fd().cast_unsigned());
    // SAFETY: whoever calls this has no value left that owns one of them and is used or dropped later. A range
    // that ends before it begins is an error, and nothing is closed.
    unsafe {
        libc::syscall(libc::SYS_close_range, STANDARD, kept.saturating_sub(1), 0);
        libc::syscall(libc::SYS_close_range, STANDARD.max(kept + 1), libc::c_uint::MAX, 0);
    }
}

/// Keeps the signal that says that a child ended until it is [waited for](wait_for_child_signal).
#[expect(unsafe_code, reason = "rustix has no signal masks")]
pub fn block_child_signal() {
    with_child_signal(|set| {
        // SAFETY: the set lives through the call, and the old one is not asked for.
        unsafe { libc::sigprocmask(libc::SIG_BLOCK, set, std::ptr::null_mut()) };
    });
}

/// Waits until a child has ended since [`block_child_signal`] or the last call of this.
#[expect(unsafe_code, reason = "rustix has no signal masks")]
pub fn wait_for_child_signal() {
    with_child_signal(|set| {
        let mut signal = 0;
        // SAFETY: both live through the call.
        unsafe { libc::sigwait(set, &raw mut signal) };
    });
}

#[expect(unsafe_code, reason = "rustix has no signal masks")]
fn with_child_signal(act: impl FnOnce(*const libc::sigset_t)) {
    // SAFETY: all zeros is a value of the structure, which the calls fill.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set lives through the calls.
    unsafe {
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGCHLD);
    }
    act(&raw const set);
}

/// Ends this process without doing anything of what the one it is a copy of has left to do.
#[expect(unsafe_code, reason = "std runs what is registered for the end of a process")]
pub fn exit_at_once(code: i32) -> ! {
    // SAFETY: it does nothing in this process any more.
    unsafe { libc::_exit(code) }
}
