//! Being the first process of a container.

use std::env;
use std::os::fd::AsRawFd as _;
use std::os::unix::process::CommandExt as _;
use std::process::{self, Command};

use oci_hooks::sys::init;
use oci_hooks::sys::spawn::memory_file;

/// If this is the first process of a container, becomes one that collects the orphans of steps, which
/// are nobody else's then, and has the server as its child. Its signals and its end are passed on.
///
/// If that cannot be, it returns: what is lost is that ended orphans stay in the table of processes.
pub(crate) fn become_init() {
    if process::id() != 1 {
        return;
    }
    let (Ok(program), Ok(own)) = (memory_file("init", init::PROGRAM), env::current_exe()) else {
        return;
    };
    // Its own name by then: what is running is deleted, or is not to be seen here.
    if !own.exists() {
        return;
    }
    let path = format!("/proc/self/fd/{}", program.as_raw_fd());
    // It returns only if it fails.
    let _ = Command::new(path).arg0("init").arg(own).args(env::args_os().skip(1)).exec();
}
