//! Running as PID 1 of a container, and as the parent of what steps leave.

use std::env;
use std::os::fd::AsRawFd as _;
use std::os::unix::process::CommandExt as _;
use std::process::{self, Command};
use std::thread;

use oci_hooks::sys::init;
use oci_hooks::sys::orphans;
use oci_hooks::sys::spawn::memory_file;
use signal_hook::consts::SIGCHLD;
use signal_hook::iterator::Signals;

use crate::steps_command::{ARGUMENTS, arguments};

/// If this is PID 1 of a container, executes the init program, which reaps the orphans of steps, runs the
/// server as its child, and forwards signals and the exit status.
///
/// Returns if that fails: then zombies stay in the process table.
pub fn become_init() {
    if process::id() != 1 {
        return;
    }
    let (Ok(program), Ok(own)) = (memory_file("init", init::PROGRAM), env::current_exe()) else {
        return;
    };
    // The executable was deleted, or is not visible in this mount namespace.
    if !own.exists() {
        return;
    }
    let path = format!("/proc/self/fd/{}", program.as_raw_fd());
    let mut command = Command::new(path);
    command.arg0("init").arg(own).args(arguments().into_iter().skip(1)).env_remove(ARGUMENTS);
    // Returns only on error.
    let _ = command.exec();
}

/// Becomes the parent of processes that steps leave, so that a job finds them at its end whatever they did,
/// and collects those that have ended.
///
/// Where that fails, they are found by cgroup and mark alone.
pub fn adopt_orphans() {
    let Ok(mut ended) = Signals::new([SIGCHLD]) else { return };
    if orphans::adopt().is_ok() {
        thread::spawn(move || ended.forever().for_each(|_| orphans::collect()));
    }
}
