//! Creates user namespaces with mappings of user and group ids, for containers and for idmapped mounts.
//! [`privilege`](super::privilege) creates those in which a rootless user is root.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, PipeReader, PipeWriter, Read as _, Seek as _, Write as _};
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

use oci_hooks_files::spawn::memory_file;
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{
    Pid, Signal, WaitOptions, getpid, getppid, kill_process, set_parent_process_death_signal,
    waitpid,
};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space, set_thread_groups};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::privilege::{exit_at_once, fork_with, use_root};

/// A range of ids on disk, and the ids as which they appear in a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdRange {
    pub disk: u32,
    /// First id in the mount.
    pub view: u32,
    pub count: u32,
}

/// An id mapping between owners of files on disk and in an idmapped mount, or between a user namespace and the host.
///
/// Files of unmapped owners appear with the overflow id; unmapped users cannot create files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceMapping {
    pub uids: Vec<IdRange>,
    pub gids: Vec<IdRange>,
}

/// A range of user and group ids that no user of the host has, for one job or container.
///
/// systemd's list of uid ranges leaves this range unused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrivateIds {
    /// First id: root in the container.
    pub first: u32,
    pub count: u32,
}

impl PrivateIds {
    /// Owners on disk of files that outlive their container, such as those of named volumes. No process has them.
    pub const STORED: Self = PrivateIds { first: Self::ALL.end - Self::COUNT, count: Self::COUNT };

    /// The range of all private ids.
    pub const ALL: std::ops::Range<u32> = 0x7100_0000..0x8000_0000;

    /// Number of ids per job, the same as in Docker and podman.
    pub const COUNT: u32 = 1 << 16;

    /// Maximum number of concurrent jobs.
    pub const JOBS: u32 = (Self::ALL.end - Self::ALL.start) / Self::COUNT - 1;

    /// Returns the ids of the job with this number; `None` if the number is [`JOBS`](Self::JOBS) or more.
    pub fn of_job(number: u32) -> Option<Self> {
        let first = Self::ALL.start + number.checked_mul(Self::COUNT)?;
        (number < Self::JOBS).then_some(PrivateIds { first, count: Self::COUNT })
    }

    /// Returns the host id of a container id, if it is mapped.
    pub fn host_id(&self, id: u32) -> Option<u32> {
        (id < self.count).then(|| self.first + id)
    }

    /// Creates a user namespace that maps ids from 0 on to these ids, and returns its descriptor.
    ///
    /// The first id owns the namespace. The kernel counts inotify instances, pending signals, message queues and
    /// nested namespaces of a user namespace towards its owner's limits too, which all namespaces of the same
    /// owner share.
    pub fn namespace(self) -> io::Result<OwnedFd> {
        NamespaceMapping::shifted(self).namespace_of(Some(self.first))
    }
}

impl Default for PrivateIds {
    /// Returns the ids of the first job.
    fn default() -> Self {
        PrivateIds { first: Self::ALL.start, count: Self::COUNT }
    }
}

/// A user id and a group id.
pub type OwnerIds = (u32, u32);

impl NamespaceMapping {
    /// Returns the mapping of ids from 0 on to private ids of the host: for a container's user namespace, and
    /// for idmapped mounts of files that belong to ids from 0 on.
    pub fn shifted(ids: PrivateIds) -> Self {
        NamespaceMapping::of_range(IdRange { disk: 0, view: ids.first, count: ids.count })
    }

    /// Returns the mapping of [`PrivateIds::STORED`] on disk to the private ids of a container in
    /// the mount.
    pub fn stored(ids: PrivateIds) -> Self {
        let disk = PrivateIds::STORED.first;
        NamespaceMapping::of_range(IdRange { disk, view: ids.first, count: ids.count })
    }

    /// Returns the mapping of [`PrivateIds::STORED`] on disk to ids from 0 on in the mount, for
    /// containers without a user namespace. Larger ids are not changed.
    pub fn stored_for_host() -> Self {
        let PrivateIds { first: disk, count } = PrivateIds::STORED;
        let own = IdRange { disk, view: 0, count };
        let larger = IdRange { disk: count, view: count, count: disk - count };
        NamespaceMapping { uids: vec![own, larger], gids: vec![own, larger] }
    }

    fn of_range(range: IdRange) -> Self {
        NamespaceMapping { uids: vec![range], gids: vec![range] }
    }

    /// Returns the mapping of one user of the host to one user of a container, and of all other users of the
    /// container to private ids on disk.
    ///
    /// The ids of the container start at `base` in the mount. Other owners on disk are unmapped: they appear with
    /// the overflow id, and files cannot be given to them.
    pub fn owned_by(owner: OwnerIds, user: OwnerIds, base: u32, private: PrivateIds) -> Self {
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
        NamespaceMapping { uids: ranges(owner.0, user.0), gids: ranges(owner.1, user.1) }
    }

    /// Creates a user namespace with this mapping, owned by this process's user, and returns its descriptor.
    pub fn namespace(&self) -> io::Result<OwnedFd> {
        self.namespace_of(None)
    }

    /// Creates a user namespace with this mapping that a user of the host owns, by a child process that lives until
    /// the mapping is written.
    fn namespace_of(&self, owner: Option<u32>) -> io::Result<OwnedFd> {
        let child = NamespaceChild::start_in(NewNamespace::User { owner })?;
        fs::write(child.file("uid_map"), lines(&self.uids))?;
        fs::write(child.file("gid_map"), lines(&self.gids))?;
        Ok(File::open(child.file("ns/user"))?.into())
    }
}

/// Returns whether the kernel's limit permits user namespaces (`user.max_user_namespaces`).
pub fn are_allowed() -> bool {
    let most = fs::read_to_string("/proc/sys/user/max_user_namespaces");
    most.is_ok_and(|most| most.trim() != "0")
}

/// Returns whether a process exists and is in the user namespace of this process.
pub fn shares_namespace_with(pid: u32) -> bool {
    let of = |process: &str| fs::read_link(format!("/proc/{process}/ns/user")).ok();
    of("self").is_some_and(|own| of(&pid.to_string()) == Some(own))
}

/// Creates a network namespace that a user namespace owns, and returns its descriptor: root of the user namespace
/// may configure it.
pub(crate) fn network_namespace(user: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    Ok(File::open(NamespaceChild::start_in(NewNamespace::NetworkOf(user))?.file("ns/net"))?.into())
}

/// A namespace to create in a child process.
enum NewNamespace<'a> {
    User {
        /// Owner of the namespace, by default this process's user.
        owner: Option<u32>,
    },
    /// A network namespace of an existing user namespace.
    NetworkOf(BorrowedFd<'a>),
}

fn lines(ranges: &[IdRange]) -> String {
    ranges.iter().fold(String::new(), |mut text, IdRange { disk, view, count }| {
        writeln!(text, "{disk} {view} {count}").expect("a string takes all");
        text
    })
}

/// A child process in a new namespace, killed when this value is dropped.
struct NamespaceChild {
    pid: Pid,
    /// The child ends when this pipe is closed, at the latest when the parent ends.
    _hold: PipeWriter,
}

impl NamespaceChild {
    fn start_in(namespace: NewNamespace<'_>) -> io::Result<Self> {
        let (wait, hold) = io::pipe()?;
        let (mut ready, tell) = io::pipe()?;
        let pid = fork_into(namespace, ChildPipes { wait: &wait, hold: &hold, tell: &tell })?;
        let child = NamespaceChild { pid, _hold: hold };
        drop(tell);
        let mut answer = [0];
        match ready.read(&mut answer)? {
            0 => Err(io::Error::other("the child process that creates the namespace has ended")),
            _ if answer[0] != 0 => Err(io::Error::from_raw_os_error(answer[0].into())),
            _ => Ok(child),
        }
    }

    /// Returns the path of a file of the child in `/proc`.
    fn file(&self, name: &str) -> String {
        format!("/proc/{}/{name}", self.pid.as_raw_nonzero())
    }
}

impl Drop for NamespaceChild {
    fn drop(&mut self) {
        // The child is not reaped yet, so neither call can fail.
        let _ = kill_process(self.pid, Signal::KILL);
        let _ = retry_on_intr(|| waitpid(Some(self.pid), WaitOptions::empty()));
    }
}

/// Ends of the pipes between parent and child.
struct ChildPipes<'a> {
    /// Reading end; the child ends at EOF.
    wait: &'a PipeReader,
    /// Writing end of `wait`, kept by the parent.
    hold: &'a PipeWriter,
    /// Writing end for the child's error number, or 0.
    tell: &'a PipeWriter,
}

/// Forks a child that creates a namespace, and ends when it is killed or `hold` is closed.
#[expect(unsafe_code, reason = "there is no safe way to start a process that runs no program")]
fn fork_into(namespace: NewNamespace<'_>, pipes: ChildPipes<'_>) -> io::Result<Pid> {
    let ChildPipes { wait, hold, tell } = pipes;
    let (wait, hold, tell) = (wait.as_raw_fd(), hold.as_raw_fd(), tell.as_raw_fd());
    if let Some(pid) = fork_with(0)? {
        return Ok(pid);
    }
    let mut byte = 0_u8;
    // SAFETY: only system calls, and no memory except the bytes here: locks that other threads held
    // at the fork are not touched. The child never returns into the code of the parent.
    unsafe {
        libc::close(hold);
        let is_done = match namespace {
            NewNamespace::User { owner } => {
                owner.is_none_or(|owner| become_owner(owner))
                    && libc::unshare(libc::CLONE_NEWUSER) == 0
            }
            NewNamespace::NetworkOf(user) => {
                libc::setns(user.as_raw_fd(), libc::CLONE_NEWUSER) == 0
                    && libc::unshare(libc::CLONE_NEWNET) == 0
            }
        };
        let error = if is_done { 0 } else { *libc::__errno_location() };
        // All error numbers of these calls fit into a byte.
        let answer = error.to_le_bytes();
        libc::write(tell, answer.as_ptr().cast(), 1);
        libc::close(tell);
        while libc::read(wait, (&raw mut byte).cast(), 1) < 0 {}
        libc::_exit(0)
    }
}

/// Sets the effective user id of the process, and returns whether that succeeded. The capabilities of root are kept,
/// as some distributions permit user namespaces only to processes with them; the real id is kept too, because
/// otherwise the namespace would get root's process limit.
#[expect(unsafe_code, reason = "libraries change the ids of all threads that they know of")]
unsafe fn become_owner(owner: libc::uid_t) -> bool {
    const SAME: libc::uid_t = libc::uid_t::MAX;
    const KEEP: u32 = libc::SECBIT_NO_SETUID_FIXUP.cast_unsigned();
    // SAFETY: system calls that take only numbers.
    unsafe {
        libc::prctl(libc::PR_SET_SECUREBITS, libc::c_ulong::from(KEEP)) == 0
            && libc::syscall(libc::SYS_setresuid, SAME, owner, SAME) == 0
    }
}

/// An I/O error, serialized for the parent process.
#[derive(Serialize, Deserialize)]
struct WorkFailure {
    number: Option<i32>,
    text: String,
}

impl From<io::Error> for WorkFailure {
    fn from(error: io::Error) -> Self {
        WorkFailure { number: error.raw_os_error(), text: error.to_string() }
    }
}

impl From<WorkFailure> for io::Error {
    fn from(WorkFailure { number, text }: WorkFailure) -> Self {
        number.map_or_else(|| io::Error::other(text), io::Error::from_raw_os_error)
    }
}

/// Calls `work` in a fork of this process as root of a user namespace, and returns its result. The fork has the same
/// access to files as root of a container there, and ends with the calling thread.
///
/// # Errors
///
/// Fails if the namespace cannot be entered, or if the fork is killed. Errors of `work` keep their number or,
/// without a number, their text.
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
        let text = serde_json::to_vec(&done.map_err(WorkFailure::from));
        let written = text.map_err(io::Error::from).and_then(|text| answer.write_all(&text));
        exit_at_once(i32::from(written.is_err()))
    };
    // If other code reaps the child, it has ended as well.
    let _ = retry_on_intr(|| waitpid(Some(child), WaitOptions::empty()));
    answer.rewind()?;
    let done: Result<T, WorkFailure> = serde_json::from_reader(&answer)
        .map_err(|_| io::Error::other("the child process in the user namespace has ended"))?;
    Ok(done?)
}

/// Enters a user namespace as its root, and makes this process end with its parent.
fn enter(namespace: BorrowedFd<'_>, parent: Pid) -> io::Result<()> {
    set_thread_groups(&[])?;
    move_into_link_name_space(namespace, Some(LinkNameSpaceType::User))?;
    use_root()?;
    // After setting the ids, which clears the parent death signal.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid() == Some(parent) { Ok(()) } else { Err(Errno::SRCH.into()) }
}

/// Forks this process, with the calling thread only. Returns the child's PID in the parent, and `None` in the child.
#[expect(unsafe_code, reason = "there is no safe way to make a process that runs no program")]
fn fork() -> io::Result<Option<Pid>> {
    // SAFETY: the C library's fork keeps its allocator usable in the child, regardless of other threads, and the
    // child takes no lock of this program.
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
    fn runner_is_mapped_to_the_container_user_and_others_to_private_ids() {
        let private = PrivateIds { first: 7000, count: 100 };
        let mapping = NamespaceMapping::owned_by((1000, 1001), (0, 5), 7000, private);
        let range = |disk, view, count| IdRange { disk, view, count };
        assert_eq!(mapping.uids, [range(7001, 7001, 99), range(1000, 7000, 1)]);
        let gids = [range(7000, 7000, 5), range(7006, 7006, 94), range(1001, 7005, 1)];
        assert_eq!(mapping.gids, gids);
        // In the host's user namespace, ids of the container are those of the host.
        let mapping = NamespaceMapping::owned_by((0, 0), (0, 500), 0, private);
        assert_eq!(mapping.uids, [range(7001, 1, 99), range(0, 0, 1)]);
        assert_eq!(mapping.gids, [range(7000, 0, 100), range(0, 500, 1)]);
    }

    #[test]
    fn each_job_has_its_own_ids() {
        let ids = |number| PrivateIds::of_job(number).unwrap();
        assert_eq!(ids(0).first + ids(0).count, ids(1).first);
        let last = ids(PrivateIds::JOBS - 1);
        assert_eq!(last.host_id(last.count - 1), Some(0x7ffe_ffff));
        assert_eq!(last.host_id(last.count), None);
        assert_eq!(PrivateIds::of_job(PrivateIds::JOBS), None);
    }

    #[test]
    fn mapping_lines_have_the_kernels_format() {
        let range = |disk, view, count| IdRange { disk, view, count };
        assert_eq!(lines(&[range(2, 3, 4_294_967_293), range(1, 0, 1)]), "2 3 4294967293\n1 0 1\n");
    }

    #[test]
    fn first_private_id_owns_the_namespace() {
        if !rustix::process::geteuid().is_root() {
            // Only root can map other ids.
            return;
        }
        for ids in [0, 1].map(|number| PrivateIds::of_job(number).unwrap()) {
            let namespace = ids.namespace().unwrap();
            assert_eq!(owner_of(namespace.as_fd()), ids.first);
        }
        let own = NamespaceMapping::shifted(PrivateIds::default()).namespace().unwrap();
        assert_eq!(owner_of(own.as_fd()), 0);
    }

    #[expect(unsafe_code, reason = "rustix has no such call")]
    fn owner_of(namespace: BorrowedFd<'_>) -> u32 {
        const NS_GET_OWNER_UID: libc::Ioctl = 0xb704;
        let mut owner = u32::MAX;
        // SAFETY: the call writes a user id to a variable that lives through the call.
        let answer =
            unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_OWNER_UID, &raw mut owner) };
        assert_eq!(answer, 0);
        owner
    }

    #[test]
    fn work_has_only_the_access_of_namespace_root() {
        if !rustix::process::geteuid().is_root() {
            // Only root can create a namespace with other users' ids.
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
