//! User namespaces: mappings of user and group ids, for containers and for idmapped mounts.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};

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
    pub uids: Vec<IdRange>,
    pub gids: Vec<IdRange>,
}

/// A run of user and group ids of the host that no user of it has, for one job or container.
///
/// systemd's list of who uses which ids has nobody for these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrivateIds {
    /// The first one: root in the container.
    pub first: u32,
    pub count: u32,
}

impl PrivateIds {
    /// All that there are.
    pub const ALL: std::ops::Range<u32> = 0x7100_0000..0x8000_0000;

    /// How many each job has, as many as Docker and podman give.
    pub const COUNT: u32 = 1 << 16;

    /// How many jobs there can be at a time.
    pub const JOBS: u32 = (Self::ALL.end - Self::ALL.start) / Self::COUNT;

    /// Returns those of the job with this number; none if there are not so many.
    pub fn of_job(number: u32) -> Option<Self> {
        let first = Self::ALL.start + number.checked_mul(Self::COUNT)?;
        (number < Self::JOBS).then_some(PrivateIds { first, count: Self::COUNT })
    }

    /// Returns the host's id for one of the container, if it has one.
    pub fn on_host(&self, id: u32) -> Option<u32> {
        (id < self.count).then(|| self.first + id)
    }
}

impl Default for PrivateIds {
    /// Returns those of the first job.
    fn default() -> Self {
        PrivateIds { first: Self::ALL.start, count: Self::COUNT }
    }
}

/// The ids of a user and a group.
pub type Ids = (u32, u32);

impl Mapping {
    /// Returns the mapping by which ids from 0 on are private ids of the host: that of a container's
    /// user namespace, and of what such a container sees of files that belong to ids from 0 on.
    pub fn shifted(ids: PrivateIds) -> Self {
        let all = || vec![IdRange { disk: 0, view: ids.first, count: ids.count }];
        Mapping { uids: all(), gids: all() }
    }

    /// Returns the mapping by which files of one user of the host are those of one user of a
    /// container, and whatever other users of the container own there belongs to private ids on disk.
    ///
    /// The ids of the container are seen from `base` on. Whoever else has files there is nobody to the
    /// container, and can be given none.
    pub fn owned_by(owner: Ids, user: Ids, base: u32, private: PrivateIds) -> Self {
        let ranges = |owner, user| {
            let range = |from: u32, to: u32| IdRange {
                disk: private.first + from,
                view: base + from,
                count: to.saturating_sub(from),
            };
            let own = IdRange { disk: owner, view: base.saturating_add(user), count: 1 };
            let others =
                [range(0, user.min(private.count)), range(user.saturating_add(1), private.count)];
            others.into_iter().filter(|range| range.count > 0).chain([own]).collect()
        };
        Mapping { uids: ranges(owner.0, user.0), gids: ranges(owner.1, user.1) }
    }

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
        let child = Child(fork_into(Namespaces::NewUser, &wait, &hold)?);
        let file = |name: &str| format!("/proc/{}/{name}", child.0.as_raw_nonzero());
        fs::write(file("uid_map"), lines(&self.uids))?;
        fs::write(file("gid_map"), lines(&self.gids))?;
        Ok(File::open(file("ns/user"))?.into())
    }
}

/// Returns whether a process is in the user namespace of this one; one that is gone is in none.
pub fn shares_with(pid: u32) -> bool {
    let of = |process: &str| fs::read_link(format!("/proc/{process}/ns/user")).ok();
    of("self").is_some_and(|own| of(&pid.to_string()) == Some(own))
}

/// Makes a network namespace that belongs to a user namespace, and returns the descriptor that keeps
/// it: root there may set up what is in it.
pub fn network_namespace(user: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let (wait, hold) = pipe_with(PipeFlags::CLOEXEC)?;
    let (ready, tell) = pipe_with(PipeFlags::CLOEXEC)?;
    let child = Child(fork_into(Namespaces::NewNetworkOf { user, tell: &tell }, &wait, &hold)?);
    drop(tell);
    let mut answer = [0];
    if File::from(ready).read(&mut answer)? == 0 {
        return Err(io::Error::other("the process that should make it has ended"));
    }
    if answer[0] != 0 {
        return Err(io::Error::from_raw_os_error(answer[0].into()));
    }
    Ok(File::open(format!("/proc/{}/ns/net", child.0.as_raw_nonzero()))?.into())
}

/// The namespaces that a child is made to be in.
enum Namespaces<'a> {
    NewUser,
    /// A new network namespace of an existing user namespace. The number of the error that came up,
    /// or 0, is told by a pipe.
    NewNetworkOf {
        user: BorrowedFd<'a>,
        tell: &'a OwnedFd,
    },
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

/// Starts a child in other namespaces that ends when it is killed, or when the last writer of the
/// pipe has gone: with this process, at the latest.
#[expect(unsafe_code, reason = "there is no safe way to start a process that runs no program")]
fn fork_into(namespaces: Namespaces<'_>, wait: &OwnedFd, hold: &OwnedFd) -> io::Result<Pid> {
    let (wait, hold) = (wait.as_raw_fd(), hold.as_raw_fd());
    let (new, join) = match namespaces {
        Namespaces::NewUser => (libc::CLONE_NEWUSER, None),
        Namespaces::NewNetworkOf { user, tell } => (0, Some((user.as_raw_fd(), tell.as_raw_fd()))),
    };
    let flags = libc::c_long::from(new | libc::SIGCHLD);
    // SAFETY: without CLONE_VM the child gets a copy of everything, as with fork(2): null for the
    // stack keeps the one it has, and the other pointers are not used without their flags.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    if pid == 0 {
        let mut byte = 0_u8;
        // SAFETY: only system calls, and no memory but the bytes here: locks that other threads held
        // at the fork are not touched. It never returns into the code of the parent.
        unsafe {
            libc::close(hold);
            if let Some((user, tell)) = join {
                let is_done = libc::setns(user, libc::CLONE_NEWUSER) == 0
                    && libc::unshare(libc::CLONE_NEWNET) == 0;
                let error = if is_done { 0 } else { *libc::__errno_location() };
                let answer = error.to_ne_bytes();
                // All numbers of errors that these give fit into a byte.
                let answer = [answer[if cfg!(target_endian = "little") { 0 } else { 3 }]];
                libc::write(tell, answer.as_ptr().cast(), 1);
                libc::close(tell);
            }
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
    fn the_runner_is_the_containers_user_and_all_others_are_nobody() {
        let private = PrivateIds { first: 7000, count: 100 };
        let mapping = Mapping::owned_by((1000, 1001), (0, 5), 7000, private);
        let range = |disk, view, count| IdRange { disk, view, count };
        assert_eq!(mapping.uids, [range(7001, 7001, 99), range(1000, 7000, 1)]);
        let gids = [range(7000, 7000, 5), range(7006, 7006, 94), range(1001, 7005, 1)];
        assert_eq!(mapping.gids, gids);
        // In the host's user namespace, ids of the container are those of the host.
        let mapping = Mapping::owned_by((0, 0), (0, 500), 0, private);
        assert_eq!(mapping.uids, [range(7001, 1, 99), range(0, 0, 1)]);
        assert_eq!(mapping.gids, [range(7000, 0, 100), range(0, 500, 1)]);
    }

    #[test]
    fn jobs_have_ids_of_their_own() {
        let ids = |number| PrivateIds::of_job(number).unwrap();
        assert_eq!(ids(0).first + ids(0).count, ids(1).first);
        let last = ids(PrivateIds::JOBS - 1);
        assert_eq!(last.on_host(last.count - 1), Some(0x7fff_ffff));
        assert_eq!(last.on_host(last.count), None);
        assert_eq!(PrivateIds::of_job(PrivateIds::JOBS), None);
    }

    #[test]
    fn lines_are_as_the_kernel_reads_them() {
        assert_eq!(lines(&exchange(1, 0)), "2 2 4294967293\n1 0 1\n");
    }
}
