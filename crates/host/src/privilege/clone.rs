//! Forking this process into new namespaces, without executing a program.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;

use super::error::PrivilegeError;

/// Checks that this process has one thread: a fork copies only the calling thread, and a process with several
/// threads cannot enter a user namespace.
pub fn check_single_thread() -> Result<(), PrivilegeError> {
    let threads = fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
    if threads == 1 { Ok(()) } else { Err(PrivilegeError::Threads) }
}

/// Forks this process, which must have one thread, with these flags of `clone(2)`. Returns the child's PID
/// in the parent, and `None` in the child.
#[expect(unsafe_code, reason = "there is no safe way to make a process that runs no program")]
pub fn fork_with(flags: libc::c_int) -> io::Result<Option<u32>> {
    let flags = libc::c_long::from(flags | libc::SIGCHLD);
    // SAFETY: without CLONE_VM the child gets a copy of everything, as with fork(2): null for the
    // stack keeps the current stack, and the other pointers are not used without their flags. Without other
    // threads, no lock can stay locked in the child.
    match unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) } {
        0 => Ok(None),
        pid if pid < 0 => Err(io::Error::last_os_error()),
        pid => Ok(Some(u32::try_from(pid).expect("the kernel returns the number of a process"))),
    }
}

/// Sets all user and group ids of the process to 0 in its user namespace.
#[expect(
    unsafe_code,
    reason = "rustix sets the ids of one thread, and leaves those of the file system"
)]
pub fn use_root() -> io::Result<()> {
    // SAFETY: the calls take only numbers.
    let is_done = unsafe { libc::setresgid(0, 0, 0) == 0 && libc::setresuid(0, 0, 0) == 0 };
    if is_done { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Closes all descriptors except the standard streams and one file.
#[expect(unsafe_code, reason = "rustix has no close_range")]
pub fn close_others(kept: Option<&File>) {
    const STANDARD: libc::c_uint = 3;
    let kept = kept.map_or(STANDARD - 1, |file| file.as_raw_fd().cast_unsigned());
    // SAFETY: the caller has no value that owns a closed descriptor and is used or dropped later. An empty
    // range is an error, and nothing is closed.
    unsafe {
        libc::syscall(libc::SYS_close_range, STANDARD, kept.saturating_sub(1), 0);
        libc::syscall(libc::SYS_close_range, STANDARD.max(kept + 1), libc::c_uint::MAX, 0);
    }
}

/// Blocks `SIGCHLD`, so that it stays pending for [`wait_for_child_signal`].
#[expect(unsafe_code, reason = "rustix has no signal masks")]
pub fn block_child_signal() {
    with_child_signal(|set| {
        // SAFETY: the set lives through the call, and the old one is not asked for.
        unsafe { libc::sigprocmask(libc::SIG_BLOCK, set, std::ptr::null_mut()) };
    });
}

/// Waits until a child ends, or has ended since [`block_child_signal`] or the last call of this function.
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

/// Exits without running exit handlers or flushing buffers, which are copies of the parent's.
#[expect(unsafe_code, reason = "std runs what is registered for the end of a process")]
pub fn exit_at_once(code: i32) -> ! {
    // SAFETY: the call ends the process and runs no other code.
    unsafe { libc::_exit(code) }
}
