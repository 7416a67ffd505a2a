//! Sockets for starting steps: `<run>/steps/<id>`, which only the engine's user can connect to or replace.
//! The socket has no path in the container, whose first process inherits the listening descriptor.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use oci_hooks_files::beneath::descriptor_path;
use oci_hooks_files::fs::{PathContext as _, PathError, names_in};
use oci_hooks_host::file_user::{is_root, own_ids};
use oci_hooks_host::removal::remove_tree;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, fchmod, fstat, mkdirat, openat, statat};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen as listen_on,
    socket_with,
};

const NAME: &str = "steps";

/// The kernel's maximum (`net.core.somaxconn`): a workflow may run steps in the background.
const BACKLOG: i32 = i32::MAX;

/// Timeout for connecting to a first process whose backlog is full.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

const OTHERS_WRITE: u32 = 0o022;
const OTHERS: u32 = 0o077;

/// Returns the directory of all containers' sockets.
pub fn directory(run: &Path) -> PathBuf {
    run.join(NAME)
}

/// Creates the socket of a container, and returns its listening descriptor.
pub fn listen(run: &Path, id: &str) -> Result<OwnedFd, PathError> {
    let path = directory(run);
    let dir = open_or_make(run)?;
    let socket = stream_socket(SocketFlags::CLOEXEC).with_path("make a socket in", &path)?;
    // Before the socket has a name: its file gets this mode, and connections fail until it listens.
    fchmod(&socket, Mode::RUSR | Mode::WUSR).with_path("make a socket in", &path)?;
    bind(&socket, &address(dir.as_fd(), id).with_path("make a socket in", &path)?)
        .with_path("make a socket in", &path)?;
    listen_on(&socket, BACKLOG).with_path("listen in", &path)?;
    Ok(socket)
}

/// Opens the directory of all sockets, creating it if missing.
fn open_or_make(run: &Path) -> Result<OwnedFd, PathError> {
    let path = directory(run);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let parent = openat(CWD, run, flags, Mode::empty()).with_path("open", run)?;
    match mkdirat(&parent, NAME, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(PathError::new("create the directory", &path, error)),
    }
    let dir =
        openat(&parent, NAME, flags | OFlags::NOFOLLOW, Mode::empty()).with_path("open", &path)?;
    check(dir.as_fd()).with_path("use the directory", &path)?;
    Ok(dir)
}

/// Checks that only root, or the user of this process, can create files in a directory.
fn check(dir: BorrowedFd<'_>) -> io::Result<()> {
    let stat = fstat(dir)?;
    if !is_trusted(stat.st_uid) || stat.st_mode & OTHERS_WRITE != 0 {
        let problem = "it must belong to root or the user of this process, and have mode 0700";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, problem));
    }
    Ok(())
}

fn is_trusted(uid: u32) -> bool {
    is_root(uid) || uid == own_ids().0
}

/// Removes the socket of a container, if it exists.
pub fn remove(run: &Path, id: &str) -> Result<(), PathError> {
    // Only a damaged socket is a directory.
    remove_tree(&directory(run).join(id))
}

/// Returns the ids of containers that have a socket.
pub fn names(run: &Path) -> Result<Vec<String>, PathError> {
    names_in(&directory(run))
}

/// The socket of a container, as seen by a client that runs steps.
#[derive(Clone, Copy, Debug)]
pub struct StepSocket<'a> {
    /// Directory of all sockets: [`directory`].
    pub directory: &'a Path,
    pub id: &'a str,
}

impl StepSocket<'_> {
    /// Connects to the socket, which must belong to this user. The connection is nonblocking.
    pub(super) fn connect(&self) -> Result<OwnedFd, PathError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir =
            openat(CWD, self.directory, flags, Mode::empty()).with_path("open", self.directory)?;
        check(dir.as_fd()).with_path("use the directory", self.directory)?;
        self.connect_in(dir.as_fd())
            .with_path("connect to the socket", &self.directory.join(self.id))
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
        let socket = stream_socket(SocketFlags::CLOEXEC)?;
        set_socket_timeout(&socket, Timeout::Send, Some(CONNECT_WITHIN))?;
        connect(&socket, &address(dir, self.id)?)?;
        ioctl_fionbio(&socket, true)?;
        Ok(socket)
    }
}

fn stream_socket(flags: SocketFlags) -> Result<OwnedFd, Errno> {
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// Returns the address of a socket in an open directory: the full path may be too long for an address.
fn address(dir: BorrowedFd<'_>, id: &str) -> Result<SocketAddrUnix, Errno> {
    SocketAddrUnix::new(format!("{}/{id}", descriptor_path(dir)))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
    use std::os::unix::net::UnixListener;

    use super::*;

    fn connect_to(run: &Path, id: &str) -> io::Result<OwnedFd> {
        let directory = directory(run);
        StepSocket { directory: &directory, id }.connect().map_err(|error| error.source)
    }

    #[test]
    fn many_clients_connect_before_one_is_accepted() {
        let run = tempfile::tempdir().unwrap();
        let id = "a".repeat(64);
        let _listener = listen(run.path(), &id).unwrap();
        let connected: Vec<_> = (0..120).map(|_| connect_to(run.path(), &id).unwrap()).collect();
        assert_eq!(connected.len(), 120);
    }

    #[test]
    fn socket_accepts_its_user_until_the_container_ends() {
        let run = tempfile::tempdir().unwrap();
        // Longer than the path of a socket may be.
        let run = run.path().join("x".repeat(100));
        fs::create_dir(&run).unwrap();
        let id = "a".repeat(64);
        let listener = listen(&run, &id).unwrap();
        assert_eq!(fs::metadata(directory(&run).join(&id)).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(directory(&run)).unwrap().mode() & 0o777, 0o700);
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
    fn sockets_that_others_could_have_created_are_rejected() {
        let run = tempfile::tempdir().unwrap();
        let run = run.path();
        let ids = ["a", "b", "c"].map(|digit| digit.repeat(64));
        let _listener = listen(run, &ids[0]).unwrap();
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
        assert!(listen(run, &"d".repeat(64)).is_err());
    }
}
