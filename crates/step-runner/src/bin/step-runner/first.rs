//! Running as PID 1 of a container.

use std::env;
use std::os::fd::AsRawFd as _;
use std::os::unix::process::CommandExt as _;
use std::process::{self, Command};

use oci_hooks_files::spawn::memory_program;

use crate::steps_command::{ARGUMENTS, arguments};

/// If this is PID 1 of a container, executes the init program, which reaps the orphans of steps, runs the
/// server as its child, and forwards signals and the exit status.
///
/// Returns if that fails. Zombies then stay in the process table.
pub fn become_init() {
    if process::id() != 1 {
        return;
    }
    let (Ok(program), Ok(own)) =
        (memory_program("init", oci_hooks_init::PROGRAM), env::current_exe())
    else {
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
