//! User namespaces: mappings of user and group ids, for containers and for idmapped mounts.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    Pid, Signal, WaitOptions, getpid, getppid, kill_process, set_parent_process_death_signal,
    waitpid,
};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space, set_thread_groups};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::privilege::{exit_at_once, use_root};
use super::spawn::memory_file;

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

    /// Makes a user namespace in which these ids are those from 0 on, and returns the descriptor that
    /// keeps it.
    ///
    /// The first of them owns it. The kernel counts inotify instances, pending signals, message queues and
    /// further namespaces of a user namespace as its owner's too: all namespaces of one owner share the
    /// owner's limits.
    pub fn namespace(self) -> io::Result<OwnedFd> {
        Mapping::shifted(self).namespace_of(Some(self.first))
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

    /// Makes a user namespace that has this mapping and belongs to this process's user, and returns the
    /// descriptor that keeps it.
    pub fn namespace(&self) -> io::Result<OwnedFd> {
        self.namespace_of(None)
    }

    /// Makes one that belongs to a user of the host. It takes a process to make one, which lives until the
    /// mapping is written.
    fn namespace_of(&self, owner: Option<u32>) -> io::Result<OwnedFd> {
        let child = Child::within(New::User { owner })?;
        fs::write(child.file("uid_map"), lines(&self.uids))?;
        fs::write(child.file("gid_map"), lines(&self.gids))?;
        Ok(File::open(child.file("ns/user"))?.into())
    }
}

/// Returns whether this machine lets anybody make user namespaces.
pub fn are_allowed() -> bool {
    let most = fs::read_to_string("/proc/sys/user/max_user_namespaces");
    most.is_ok_and(|most| most.trim() != "0")
}

/// Returns whether a process is in the user namespace of this one; one that is gone is in none.
pub fn shares_with(pid: u32) -> bool {
    let of = |process: &str| fs::read_link(format!("/proc/{process}/ns/user")).ok();
    of("self").is_some_and(|own| of(&pid.to_string()) == Some(own))
}

/// Makes a network namespace that belongs to a user namespace, and returns the descriptor that keeps
/// it: root there may set up what is in it.
pub fn network_namespace(user: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    Ok(File::open(Child::within(New::NetworkOf(user))?.file("ns/net"))?.into())
}

/// A namespace that a process is made for.
enum New<'a> {
    User {
        /// The user whose it is, if not this process's own.
        owner: Option<u32>,
    },
    /// A network namespace of an existing user namespace.
    NetworkOf(BorrowedFd<'a>),
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

/// A process in a new namespace, which ends with this value.
struct Child {
    pid: Pid,
    /// The process ends when this is closed: with the one that made it, at the latest.
    _hold: OwnedFd,
}

impl Child {
    fn within(namespace: New<'_>) -> io::Result<Self> {
        let (wait, hold) = pipe_with(PipeFlags::CLOEXEC)?;
        let (ready, tell) = pipe_with(PipeFlags::CLOEXEC)?;
        let pid = fork_into(namespace, Pipes { wait: &wait, hold: &hold, tell: &tell })?;
        let child = Child { pid, _hold: hold };
        drop(tell);
        let mut answer = [0];
        match File::from(ready).read(&mut answer)? {
            0 => Err(io::Error::other("the process that should make it has ended")),
            _ if answer[0] != 0 => Err(io::Error::from_raw_os_error(answer[0].into())),
            _ => Ok(child),
        }
    }

    /// Returns a file of the process's in `/proc`.
    fn file(&self, name: &str) -> String {
        format!("/proc/{}/{name}", self.pid.as_raw_nonzero())
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // It waits for nothing else, so neither can fail.
        let _ = kill_process(self.pid, Signal::KILL);
        while matches!(waitpid(Some(self.pid), WaitOptions::empty()), Err(Errno::INTR)) {}
    }
}

/// The pipes of a child.
struct Pipes<'a> {
    /// At its end the child ends.
    wait: &'a OwnedFd,
    /// The other end of that.
    hold: &'a OwnedFd,
    /// Gets the number of the error that came up, or 0.
    tell: &'a OwnedFd,
}

/// Starts a child that makes a namespace, and ends when it is killed or told to.
#[expect(unsafe_code, reason = "there is no safe way to start a process that runs no program")]
fn fork_into(namespace: New<'_>, pipes: Pipes<'_>) -> io::Result<Pid> {
    let [wait, hold, tell] = [pipes.wait, pipes.hold, pipes.tell].map(|end| end.as_raw_fd());
    let flags = libc::c_long::from(libc::SIGCHLD);
    // SAFETY: without CLONE_VM the child gets a copy of everything, as with fork(2): null for the
    // stack keeps the one it has, and the other pointers are not used without their flags.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    if pid == 0 {
        let mut byte = 0_u8;
        // SAFETY: only system calls, and no memory but the bytes here: locks that other threads held
        // at the fork are not touched. It never returns into the code of the parent.
        unsafe {
            libc::close(hold);
            let is_done = match namespace {
                New::User { owner } => {
                    owner.is_none_or(|owner| become_owner(owner))
                        && libc::unshare(libc::CLONE_NEWUSER) == 0
                }
                New::NetworkOf(user) => {
                    libc::setns(user.as_raw_fd(), libc::CLONE_NEWUSER) == 0
                        && libc::unshare(libc::CLONE_NEWNET) == 0
                }
            };
            let error = if is_done { 0 } else { *libc::__errno_location() };
            // All numbers of errors that these give fit into a byte.
            let answer = error.to_le_bytes();
            libc::write(tell, answer.as_ptr().cast(), 1);
            libc::close(tell);
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

/// Takes a user's id for the process's effective one, and returns whether that worked. The capabilities of
/// root stay, as some distributions let no process without them make user namespaces; so does the real id,
/// or the namespace would have root's limit of processes.
#[expect(unsafe_code, reason = "libraries change the ids of all threads that they know of")]
unsafe fn become_owner(owner: libc::uid_t) -> bool {
    const SAME: libc::uid_t = libc::uid_t::MAX;
    const KEEP: u32 = libc::SECBIT_NO_SETUID_FIXUP.cast_unsigned();
    // SAFETY: system calls that take numbers alone.
    unsafe {
        libc::prctl(libc::PR_SET_SECUREBITS, libc::c_ulong::from(KEEP)) == 0
            && libc::syscall(libc::SYS_setresuid, SAME, owner, SAME) == 0
    }
}

/// Why work failed, as it is told to another process.
#[derive(Serialize, Deserialize)]
struct Failure {
    number: Option<i32>,
    text: String,
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Failure { number: error.raw_os_error(), text: error.to_string() }
    }
}

impl From<Failure> for io::Error {
    fn from(Failure { number, text }: Failure) -> Self {
        number.map_or_else(|| io::Error::other(text), io::Error::from_raw_os_error)
    }
}

/// Returns what `work` returns, which a copy of this process does as root of a user namespace: with files it
/// can do what root of a container there can do, and no more. The copy ends with the calling thread.
///
/// # Errors
///
/// Fails if the namespace cannot be entered, or if the copy is killed. Errors of `work` keep their number or,
/// without one, their text.
pub fn as_root_of<T: Serialize + DeserializeOwned>(
    namespace: BorrowedFd<'_>,
    work: impl FnOnce() -> io::Result<T>,
) -> io::Result<T> {
    let mut answer = File::from(memory_file("answer", b"")?);
    let parent = getpid();
    let Some(child) = fork()? else {
        let done =
            catch_unwind(AssertUnwindSafe(|| enter(namespace, parent).and_then(|()| work())));
        let Ok(done) = done else { exit_at_once(1) };
        let text = serde_json::to_vec(&done.map_err(Failure::from));
        let written = text.map_err(io::Error::from).and_then(|text| answer.write_all(&text));
        exit_at_once(i32::from(written.is_err()))
    };
    // Whoever else collects it, it has ended.
    while matches!(waitpid(Some(child), WaitOptions::empty()), Err(Errno::INTR)) {}
    answer.rewind()?;
    let done: Result<T, Failure> = serde_json::from_reader(&answer)
        .map_err(|_| io::Error::other("the process that should do it has ended"))?;
    Ok(done?)
}

/// Becomes root of a user namespace, which ends with its parent.
fn enter(namespace: BorrowedFd<'_>, parent: Pid) -> io::Result<()> {
    set_thread_groups(&[])?;
    move_into_link_name_space(namespace, Some(LinkNameSpaceType::User))?;
    use_root()?;
    // After the ids, whose change takes it away.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid() == Some(parent) { Ok(()) } else { Err(Errno::SRCH.into()) }
}

/// Makes a copy of this process, with the calling thread alone. Returns its number in the process, and nothing
/// in the copy.
#[expect(unsafe_code, reason = "there is no safe way to make a process that runs no program")]
fn fork() -> io::Result<Option<Pid>> {
    // SAFETY: the C library's call leaves its allocator usable in the copy, whatever other threads did, and the
    // copy takes no lock of this program.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        pid => Ok(Pid::from_raw(pid)),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::AsFd as _;
    use std::os::unix::fs::{MetadataExt as _, chown};

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

    #[test]
    fn the_first_private_id_owns_the_namespace_of_private_ids() {
        if !rustix::process::geteuid().is_root() {
            // Nobody else has other ids to give.
            return;
        }
        for ids in [0, 1].map(|number| PrivateIds::of_job(number).unwrap()) {
            let namespace = ids.namespace().unwrap();
            assert_eq!(owner_of(namespace.as_fd()), ids.first);
        }
        let own = Mapping::shifted(PrivateIds::default()).namespace().unwrap();
        assert_eq!(owner_of(own.as_fd()), 0);
    }

    #[expect(unsafe_code, reason = "rustix has no such call")]
    fn owner_of(namespace: BorrowedFd<'_>) -> u32 {
        const NS_GET_OWNER_UID: libc::Ioctl = 0xb704;
        let mut owner = u32::MAX;
        // SAFETY: the call writes the number of a user, which lives through it.
        let answer =
            unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_OWNER_UID, &raw mut owner) };
        assert_eq!(answer, 0);
        owner
    }

    #[test]
    fn work_has_the_access_of_root_of_the_namespace_and_no_more() {
        if !rustix::process::geteuid().is_root() {
            // Nobody else can make one with ids of others.
            return;
        }
        let ids = PrivateIds::of_job(7).unwrap();
        let namespace = ids.namespace().unwrap();
        let in_it = |work: &dyn Fn() -> io::Result<u32>| as_root_of(namespace.as_fd(), work);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let denied = in_it(&|| fs::write(&path, "").map(|()| 0)).unwrap_err();
        assert_eq!(denied.kind(), io::ErrorKind::PermissionDenied);
        let parameter = "/proc/sys/kernel/core_pattern";
        let denied = in_it(&|| File::options().write(true).open(parameter).map(|_| 0)).unwrap_err();
        assert_eq!(denied.kind(), io::ErrorKind::PermissionDenied);
        chown(dir.path(), Some(ids.first), Some(ids.first)).unwrap();
        let made = in_it(&|| {
            fs::write(&path, "")?;
            chown(&path, Some(1001), Some(0))?;
            Ok(path.metadata()?.uid())
        });
        assert_eq!(made.unwrap(), 1001);
        assert_eq!(path.metadata().unwrap().uid(), ids.first + 1001);
        assert_eq!(in_it(&|| Err(io::Error::other("why"))).unwrap_err().to_string(), "why");
        assert!(in_it(&|| panic!("it is not taken for an answer")).is_err());
        assert!(in_it(&|| exit_at_once(0)).is_err());
    }
}
