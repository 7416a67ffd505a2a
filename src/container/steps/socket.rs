//! Sockets by which steps are started: `<run>/steps/<id>`, which the runner's user can connect to, and
//! nobody but root can make or replace. Nothing of it has a path in the container, whose first process
//! gets the listening descriptor when it is made.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, Uid, chownat, fchmod, fstat, mkdirat, openat, statat,
};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen as listen_on,
    socket_with,
};

use crate::sys::caller::{Caller, is_root, own_ids};
use crate::sys::fs::{PathContext as _, PathError};

const NAME: &str = "steps";

/// Steps come one after another; what else connects is a mistake or a hostile job's.
const BACKLOG: i32 = 16;

const OTHERS_WRITE: u32 = 0o022;
const OTHERS: u32 = 0o077;
const PASS: u32 = 0o111;

/// Returns where the sockets of all containers are.
pub fn directory(run: &Path) -> PathBuf {
    run.join(NAME)
}

/// Returns whether a user can get to the sockets: what is above the run directory may be private.
pub fn is_reachable(run: &Path, caller: &Caller) -> bool {
    let found = caller.act(|| statat(CWD, run, AtFlags::SYMLINK_NOFOLLOW));
    !matches!(found, Err(_) | Ok(Err(Errno::ACCESS)))
}

/// Makes the socket of a container, for a user to connect to, and returns its listening descriptor.
pub(in crate::container) fn listen(
    run: &Path,
    id: &str,
    (uid, gid): (u32, u32),
) -> Result<OwnedFd, PathError> {
    let path = directory(run);
    let dir = open_or_make(run, uid)?;
    let socket = stream_socket(SocketFlags::CLOEXEC).at("make a socket in", &path)?;
    // Before it has a name: its file is made with this mode, and nobody can connect until it listens.
    fchmod(&socket, Mode::RUSR | Mode::WUSR).at("make a socket in", &path)?;
    bind(&socket, &address(dir.as_fd(), id).at("make a socket in", &path)?)
        .at("make a socket in", &path)?;
    let owner = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
    chownat(&dir, id, owner.0, owner.1, AtFlags::SYMLINK_NOFOLLOW)
        .at("change the owner of a socket in", &path)?;
    listen_on(&socket, BACKLOG).at("listen in", &path)?;
    Ok(socket)
}

/// Opens the directory of all sockets, which is made if it is missing. A user who is not this process's
/// may pass through the run directory from now on, in which each other directory is private.
fn open_or_make(run: &Path, uid: u32) -> Result<OwnedFd, PathError> {
    let path = directory(run);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let parent = openat(CWD, run, flags, Mode::empty()).at("open", run)?;
    if uid != own_ids().0 {
        add_mode(parent.as_fd(), PASS).at("change the mode of", run)?;
    }
    match mkdirat(&parent, NAME, Mode::from_raw_mode(0o711)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(PathError::new("make the directory", &path, error)),
    }
    let dir = openat(&parent, NAME, flags | OFlags::NOFOLLOW, Mode::empty()).at("open", &path)?;
    check(dir.as_fd()).at("use the directory", &path)?;
    add_mode(dir.as_fd(), PASS).at("change the mode of", &path)?;
    Ok(dir)
}

fn add_mode(dir: BorrowedFd<'_>, more: u32) -> Result<(), Errno> {
    let mode = fstat(dir)?.st_mode & 0o7777;
    if mode & more == more { Ok(()) } else { fchmod(dir, Mode::from_raw_mode(mode | more)) }
}

/// Checks that nobody but root, or the user of this process, can put something in a directory.
fn check(dir: BorrowedFd<'_>) -> io::Result<()> {
    let stat = fstat(dir)?;
    if !is_trusted(stat.st_uid) || stat.st_mode & OTHERS_WRITE != 0 {
        let problem = "others can make sockets in it: expected one of root's, with mode 0711";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, problem));
    }
    Ok(())
}

fn is_trusted(uid: u32) -> bool {
    is_root(uid) || uid == own_ids().0
}

/// Removes the socket of a container; none is fine.
pub(in crate::container) fn remove(run: &Path, id: &str) -> Result<(), PathError> {
    let path = directory(run).join(id);
    match fs::remove_file(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result.at("remove", &path),
    }
}

/// Returns the ids of containers that have a socket.
pub(in crate::container) fn names(run: &Path) -> Result<Vec<String>, PathError> {
    let path = directory(run);
    let entries = match fs::read_dir(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.at("list", &path)?,
    };
    let names = entries.flatten().map(|entry| entry.file_name());
    Ok(names.filter_map(|name: OsString| name.into_string().ok()).collect())
}

/// The socket of a container, as who runs steps in it knows it.
#[derive(Clone, Copy, Debug)]
pub struct StepSocket<'a> {
    /// The directory of all sockets: [`directory`].
    pub directory: &'a Path,
    /// The container's id.
    pub id: &'a str,
}

impl StepSocket<'_> {
    /// Connects to it, without waiting. It has to be a socket that root, or this user, made for this
    /// user.
    pub(super) fn connect(&self) -> Result<OwnedFd, PathError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = openat(CWD, self.directory, flags, Mode::empty()).at("open", self.directory)?;
        check(dir.as_fd()).at("use the directory", self.directory)?;
        self.connect_in(dir.as_fd()).at("connect to the socket", &self.directory.join(self.id))
    }

    fn connect_in(&self, dir: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        let is_id = self.id.len() == 64 && self.id.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !is_id {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let stat = statat(dir, self.id, AtFlags::SYMLINK_NOFOLLOW)?;
        let is_socket = FileType::from_raw_mode(stat.st_mode) == FileType::Socket;
        if !is_socket || stat.st_uid != own_ids().0 || stat.st_mode & OTHERS != 0 {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let socket = stream_socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
        connect(&socket, &address(dir, self.id)?)?;
        Ok(socket)
    }
}

fn stream_socket(flags: SocketFlags) -> Result<OwnedFd, Errno> {
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// Returns the address of a socket in an opened directory: the whole path may be longer than an address.
fn address(dir: BorrowedFd<'_>, id: &str) -> Result<SocketAddrUnix, Errno> {
    SocketAddrUnix::new(format!("/proc/self/fd/{}/{id}", dir.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
    use std::os::unix::net::UnixListener;

    use super::*;
    use crate::sys::caller::Caller;

    fn connect_to(run: &Path, id: &str) -> io::Result<OwnedFd> {
        let directory = directory(run);
        StepSocket { directory: &directory, id }.connect().map_err(|error| error.source)
    }

    #[test]
    fn the_user_it_is_for_connects_and_nobody_after_its_end() {
        let run = tempfile::tempdir().unwrap();
        // Longer than the path of a socket may be.
        let run = run.path().join("x".repeat(100));
        fs::create_dir(&run).unwrap();
        let id = "a".repeat(64);
        let listener = listen(&run, &id, own_ids()).unwrap();
        assert_eq!(fs::metadata(directory(&run).join(&id)).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(directory(&run)).unwrap().mode() & 0o777, 0o711);
        connect_to(&run, &id).unwrap();
        assert_eq!(names(&run).unwrap(), std::slice::from_ref(&id));
        drop(listener);
        let refused = connect_to(&run, &id).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        remove(&run, &id).unwrap();
        remove(&run, &id).unwrap();
        assert_eq!(connect_to(&run, &id).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn what_others_could_have_made_is_not_used() {
        let run = tempfile::tempdir().unwrap();
        let run = run.path();
        let ids = ["a", "b", "c"].map(|digit| digit.repeat(64));
        let _listener = listen(run, &ids[0], own_ids()).unwrap();
        let dir = directory(run);
        let _open = UnixListener::bind(dir.join("open")).unwrap();
        fs::rename(dir.join("open"), dir.join(&ids[1])).unwrap();
        fs::set_permissions(dir.join(&ids[1]), fs::Permissions::from_mode(0o666)).unwrap();
        symlink(&ids[0], dir.join(&ids[2])).unwrap();
        for id in [&ids[1], &ids[2]] {
            assert_eq!(connect_to(run, id).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        }
        assert_eq!(connect_to(run, "..").unwrap_err().kind(), io::ErrorKind::InvalidInput);
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(connect_to(run, &ids[0]).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        assert!(listen(run, &"d".repeat(64), own_ids()).is_err());
    }

    #[test]
    fn another_user_passes_through_to_its_own_socket_alone() {
        if !is_root(own_ids().0) {
            // Only root may give sockets away.
            return;
        }
        let top = tempfile::tempdir().unwrap();
        fs::set_permissions(top.path(), fs::Permissions::from_mode(0o711)).unwrap();
        let run = top.path().join("run");
        fs::create_dir(&run).unwrap();
        fs::set_permissions(&run, fs::Permissions::from_mode(0o700)).unwrap();
        let (own, other) = ("a".repeat(64), "b".repeat(64));
        let _other = listen(&run, &other, own_ids()).unwrap();
        assert_eq!(fs::metadata(&run).unwrap().mode() & 0o777, 0o700, "root needs no more");
        let _own = listen(&run, &own, (12345, 12346)).unwrap();
        assert_eq!(fs::metadata(&run).unwrap().mode() & 0o777, 0o711);
        let user = Caller { uid: 12345, gid: 12346, groups: Vec::new() };
        let found = fs::metadata(directory(&run).join(&own)).unwrap();
        assert_eq!((found.uid(), found.gid()), (12345, 12346));
        let can_connect = |id: &str| {
            let path = directory(&run).join(id);
            let socket = stream_socket(SocketFlags::CLOEXEC).unwrap();
            connect(&socket, &SocketAddrUnix::new(path).unwrap()).is_ok()
        };
        assert!(user.act(|| can_connect(&own)).unwrap());
        assert!(!user.act(|| can_connect(&other)).unwrap());
        chown(directory(&run), Some(12345), None).unwrap();
        assert!(listen(&run, &"c".repeat(64), (12345, 12346)).is_err());
    }
}
