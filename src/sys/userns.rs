//! User namespaces that hold nothing but a mapping of user and group numbers, for idmapped mounts.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

/// A run of numbers on disk and what they are seen as in a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdRange {
    /// The first number on disk.
    pub disk: u32,
    /// What that is seen as.
    pub view: u32,
    /// How many follow on, this one included.
    pub count: u32,
}

/// How the owners of files on disk are seen in a mount, and what new files belong to on disk.
///
/// What is in no run is seen as owned by nobody; whoever is in no run cannot make files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Users.
    pub uids: Vec<IdRange>,
    /// Groups.
    pub gids: Vec<IdRange>,
}

impl Mapping {
    /// Returns the mapping in which one user and one group on disk are seen as another, and all
    /// else as itself.
    ///
    /// The numbers they are seen as do not exist on disk, nor theirs in the view: if those of `root`
    /// are seen for somebody else's, no file of the real root's can be made or changed.
    pub fn one(disk: (u32, u32), view: (u32, u32)) -> Self {
        Mapping { uids: exchange(disk.0, view.0), gids: exchange(disk.1, view.1) }
    }

    /// Makes a user namespace that has this mapping, and returns the descriptor that keeps it.
    ///
    /// It takes a process to make one, which lives until the mapping is written.
    pub fn namespace(&self) -> io::Result<OwnedFd> {
        let (wait, hold) = pipe_with(PipeFlags::CLOEXEC)?;
        let child = Child(fork_into_user_namespace(&wait, &hold)?);
        let file = |name: &str| format!("/proc/{}/{name}", child.0.as_raw_nonzero());
        fs::write(file("uid_map"), lines(&self.uids))?;
        fs::write(file("gid_map"), lines(&self.gids))?;
        Ok(File::open(file("ns/user"))?.into())
    }
}

/// All numbers but the last, which the kernel keeps for "none".
const END: u32 = u32::MAX;

fn exchange(disk: u32, view: u32) -> Vec<IdRange> {
    if disk == view {
        return vec![IdRange { disk: 0, view: 0, count: END }];
    }
    let (low, high) = (disk.min(view), disk.max(view));
    let same = |from: u32, to: u32| IdRange { disk: from, view: from, count: to - from };
    let rest = [same(0, low), same(low + 1, high), same(high + 1, END)];
    let one = IdRange { disk, view, count: 1 };
    rest.into_iter().filter(|range| range.count > 0).chain([one]).collect()
}

fn lines(ranges: &[IdRange]) -> String {
    ranges.iter().fold(String::new(), |mut text, IdRange { disk, view, count }| {
        writeln!(text, "{disk} {view} {count}").expect("a string takes all");
        text
    })
}

/// A child that ends with this value.
struct Child(Pid);

impl Drop for Child {
    fn drop(&mut self) {
        // It waits for nothing else, so neither can fail.
        let _ = kill_process(self.0, Signal::KILL);
        while matches!(waitpid(Some(self.0), WaitOptions::empty()), Err(Errno::INTR)) {}
    }
}

/// Starts a child in a new user namespace that ends when it is killed, or when the last writer of
/// the pipe has gone: with this process, at the latest.
#[expect(unsafe_code, reason = "there is no safe way to start a process that runs no program")]
fn fork_into_user_namespace(wait: &OwnedFd, hold: &OwnedFd) -> io::Result<Pid> {
    let (wait, hold) = (wait.as_raw_fd(), hold.as_raw_fd());
    let flags = libc::c_long::from(libc::CLONE_NEWUSER | libc::SIGCHLD);
    // SAFETY: without CLONE_VM the child gets a copy of everything, as with fork(2): null for the
    // stack keeps the one it has, and the other pointers are not used without their flags.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    if pid == 0 {
        let mut byte = 0_u8;
        // SAFETY: only system calls, and no memory but the byte above: locks that other threads held
        // at the fork are not touched. It never returns into the code of the parent.
        unsafe {
            libc::close(hold);
            while libc::read(wait, (&raw mut byte).cast(), 1) < 0 {}
            libc::_exit(0)
        }
    }
    if pid < 0 {
        return Err(io::Error::last_os_error());
    }
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    Ok(pid.expect("the kernel returns the number of a process"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_number_takes_the_place_of_another() {
        let range = |disk, view, count| IdRange { disk, view, count };
        assert_eq!(
            exchange(1000, 0),
            [range(1, 1, 999), range(1001, 1001, END - 1001), range(1000, 0, 1)]
        );
        assert_eq!(
            exchange(5, 1000),
            [range(0, 0, 5), range(6, 6, 994), range(1001, 1001, END - 1001), range(5, 1000, 1)]
        );
        assert_eq!(exchange(7, 7), [range(0, 0, END)]);
    }

    #[test]
    fn lines_are_as_the_kernel_reads_them() {
        assert_eq!(lines(&exchange(1, 0)), "2 2 4294967293\n1 0 1\n");
    }
}
