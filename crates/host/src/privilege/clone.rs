//! Forking this process into new namespaces, without executing a program.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;

use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{Gid, Uid, setresgid, setresuid};
use rustix::process::Pid;

use super::error::PrivilegeError;

/// Checks that this process has one thread: a fork copies only the calling thread, and a process with several
/// threads cannot enter a user namespace.
pub fn check_single_thread() -> Result<(), PrivilegeError> {
    let threads = fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
    if threads == 1 { Ok(()) } else { Err(PrivilegeError::Threads) }
}

/// Forks this process with these flags of `clone(2)`. Returns the child's PID in the parent, and `None` in the child.
/// If this process has other threads, the child may make only system calls.
#[expect(unsafe_code, reason = "there is no safe way to make a process that runs no program")]
pub fn fork_with(flags: libc::c_int) -> io::Result<Option<Pid>> {
    let flags = libc::c_long::from(flags | libc::SIGCHLD);
    // SAFETY: without CLONE_VM the child gets a copy of everything, as with fork(2): null for the
    // stack keeps the current stack, and the other pointers are not used without their flags. Locks that
    // other threads held stay locked in the child, which takes none.
    match unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) } {
        pid if pid < 0 => Err(io::Error::last_os_error()),
        pid => {
            Ok(Pid::from_raw(pid.try_into().expect("the kernel returns the number of a process")))
        }
    }
}

/// Sets all user and group ids of the process to 0 in its user namespace.
pub fn use_root() -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(0), Gid::from_raw(0));
    // rustix sets the ids of one thread, and leaves those of the file system.
    setresgid(gid, gid, gid)?;
    Ok(setresuid(uid, uid, uid)?)
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
pub fn block_child_signal() {
    // No call with a valid signal fails.
    let _ = SigSet::from(Signal::SIGCHLD).thread_block();
}

/// Waits until a child ends, or has ended since [`block_child_signal`] or the last call of this function.
pub fn wait_for_child_signal() {
    let _ = SigSet::from(Signal::SIGCHLD).wait();
}

/// Exits without running exit handlers or flushing buffers, which are copies of the parent's.
#[expect(unsafe_code, reason = "std runs what is registered for the end of a process")]
pub fn exit_at_once(code: i32) -> ! {
    // SAFETY: the call ends the process and runs no other code.
    unsafe { libc::_exit(code) }
}
