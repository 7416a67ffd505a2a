//! A cgroup with all cgroups below it: privileged containers may nest them more deeply than a path can name.

use std::ffi::CStr;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::Path;
use std::time::{Duration, Instant};

use oci_hooks_files::descent::{
    DIRECTORY, DirectoryLister, NameBounds, PendingNames, TreeDescent, file_status,
};
use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, openat, unlinkat};
use rustix::io::{Errno, write};
use rustix::process::{Pid, Signal, kill_process};

/// Memory limits for the names of cgroups that a walk has not visited yet, in bytes. When a limit
/// is reached, the walk reads the rest of the parent cgroup later.
const WAITING: NameBounds = NameBounds { here: 64 << 10, all: 1 << 20 };

/// Time limit of a walk: a process may create cgroups faster than the walk finds them.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Kills all processes in a cgroup and below it. Returns whether none is left.
pub fn kill(dir: &Path) -> bool {
    let top = match open_top(dir) {
        Ok(top) => top,
        Err(error) => return error == Errno::NOENT,
    };
    let mut is_empty = true;
    let kill = |cgroup: BorrowedFd<'_>| {
        kill_in(cgroup);
        is_empty &= has_no_processes(cgroup);
    };
    walk(top.as_fd(), kill, |_, _| {}).is_ok() && is_empty
}

/// Kills all processes in a cgroup and below it, and removes the cgroups that are empty. Returns
/// whether no cgroup is left.
pub fn remove(dir: &Path) -> bool {
    let remove = |parent: BorrowedFd<'_>, name: &CStr| {
        // Fails as long as a killed process is there.
        let _ = unlinkat(parent, name, AtFlags::REMOVEDIR);
    };
    if let Ok(top) = open_top(dir) {
        // If it fails, something is left.
        let _ = walk(top.as_fd(), kill_in, remove);
    }
    match fs::remove_dir(dir) {
        Ok(()) => true,
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// Returns the processes in a cgroup and below it, in no order.
pub fn members(dir: &Path) -> Vec<u32> {
    let mut found = Vec::new();
    // Incomplete if cgroups are removed meanwhile.
    if let Ok(top) = open_top(dir) {
        let _ = walk(top.as_fd(), |cgroup| found.extend(processes(cgroup)), |_, _| {});
    }
    found
}

/// Returns whether a cgroup has no processes, or is gone. Only in version 2 does the result include
/// the cgroups below it.
pub fn is_empty(dir: &Path) -> bool {
    match open_top(dir) {
        Ok(cgroup) => has_no_processes(cgroup.as_fd()),
        Err(error) => error == Errno::NOENT,
    }
}

fn open_top(dir: &Path) -> Result<OwnedFd, Errno> {
    openat(CWD, dir, DIRECTORY, Mode::empty())
}

/// Calls `enter` with each cgroup of the tree, and `leave` with the parent and the name of each
/// cgroup except the topmost one, once all cgroups below it are done.
///
/// May fail if another process creates or removes cgroups meanwhile.
fn walk(
    top: BorrowedFd<'_>,
    mut enter: impl FnMut(BorrowedFd<'_>),
    mut leave: impl FnMut(BorrowedFd<'_>, &CStr),
) -> Result<(), Errno> {
    let end = Instant::now() + TIMEOUT;
    enter(top);
    let mut descent = TreeDescent::new(top, PendingNames::default())?;
    let mut lister = DirectoryLister::new(WAITING);
    loop {
        if Instant::now() > end {
            return Err(Errno::TIMEDOUT);
        }
        let (here, pending) = descent.current_directory();
        if let Some(name) = pending.names.last_name() {
            match openat(here, name, DIRECTORY, Mode::empty()) {
                Ok(child) => {
                    enter(child.as_fd());
                    let found = file_status(child.as_fd())?;
                    descent.enter(child, &found, PendingNames::default());
                }
                // It is gone.
                Err(Errno::NOENT) => drop(lister.pop(pending)),
                Err(error) => return Err(error),
            }
        } else if pending.position.is_some() {
            lister.list(here, pending, |_, kind| kind == FileType::Directory)?;
        } else {
            if descent.leave()?.is_none() {
                return Ok(());
            }
            let (here, pending) = descent.current_directory();
            if let Some(name) = lister.pop(pending) {
                leave(here, &name);
            }
        }
    }
}

/// Kills the processes in a cgroup, but not those in the cgroups below it.
fn kill_in(cgroup: BorrowedFd<'_>) {
    // Version 2 has this file since Linux 5.14. It also kills processes that are just being forked, but no process
    // whose first thread has exited: the signal goes to that thread.
    if let Ok(file) = open(cgroup, c"cgroup.kill", OFlags::WRONLY) {
        let _ = write(file, b"1");
    }
    for pid in processes(cgroup).into_iter().filter_map(|pid| Pid::from_raw(pid.cast_signed())) {
        let _ = kill_process(pid, Signal::KILL);
    }
}

fn has_no_processes(cgroup: BorrowedFd<'_>) -> bool {
    // In version 2, `cgroup.procs` of a threaded cgroup cannot be read.
    if let Ok(events) = read(cgroup, c"cgroup.events") {
        return events.lines().any(|line| line == "populated 0");
    }
    match read(cgroup, c"cgroup.procs") {
        Ok(processes) => processes.is_empty(),
        // The cgroup has been removed.
        Err(error) => matches!(Errno::from_io_error(&error), Some(Errno::NOENT | Errno::NODEV)),
    }
}

fn processes(cgroup: BorrowedFd<'_>) -> Vec<u32> {
    let text = read(cgroup, c"cgroup.procs").unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

fn read(cgroup: BorrowedFd<'_>, name: &CStr) -> io::Result<String> {
    let mut text = String::new();
    File::from(open(cgroup, name, OFlags::RDONLY)?).read_to_string(&mut text)?;
    Ok(text)
}

fn open(cgroup: BorrowedFd<'_>, name: &CStr, flags: OFlags) -> Result<OwnedFd, Errno> {
    openat(cgroup, name, flags | OFlags::CLOEXEC, Mode::empty())
}
