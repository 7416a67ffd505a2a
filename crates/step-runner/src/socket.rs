//! The Unix socket of the server: only its owner and root can connect, and only one server can
//! listen.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use oci_hooks_files::fs::{
    AccessSubject, PathContext as _, PathError, create_if_missing, make_private,
};
use oci_hooks_files::lock::FileLock;
use rustix::fs::{Mode, OFlags, fchmod};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
    sockopt::socket_peercred,
};

/// Maximum length of a socket path in bytes. The limit of the kernel is 108, with a terminating
/// NUL.
pub const MAX_PATH_BYTES: usize = 107;

/// Maximum number of connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// An error with a socket or a private directory.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The path is longer than the kernel supports.
    #[error(
        "socket path too long: {} bytes, limit {MAX_PATH_BYTES}: {}",
        path.as_os_str().len(), path.display()
    )]
    TooLong { path: PathBuf },
    /// The path has no file name.
    #[error("invalid socket path {}: expected a path that ends in a file name", path.display())]
    NoName { path: PathBuf },
    #[error("socket {} is in use by another server", path.display())]
    InUse { path: PathBuf },
    /// A file that is not a socket exists at the path; it is not removed.
    #[error("{} already exists and is not a socket: remove it, or use another path", path.display())]
    NoSocket { path: PathBuf },
    /// The socket is owned by another user, who could read jobs and their secrets.
    #[error(
        "socket {} is owned by {}: remove it, or use a directory that is not writable by other users",
        path.display(), AccessSubject::User(*owner).display_name()
    )]
    Foreign { path: PathBuf, owner: u32 },
    /// The directory is owned by another user, who could replace the socket.
    #[error(
        "directory {} is owned by {}, not by this user: remove it, or use another one",
        path.display(), AccessSubject::User(*owner).display_name()
    )]
    Owner { path: PathBuf, owner: u32 },
    /// A private directory is missing and cannot be created.
    #[error(transparent)]
    Create(PathError),
    /// An operation on the socket, its lock file or a directory failed.
    #[error(transparent)]
    Path(#[from] PathError),
}

/// A listening socket. Its file is removed on drop.
#[derive(Debug)]
pub struct SocketListener {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the socket file, to detect that it was replaced.
    file: (u64, u64),
    /// Lock file, held as long as the server runs.
    _lock: FileLock,
}

impl SocketListener {
    /// Listens on a socket, and creates its directory if missing. The stale socket of a crashed server is
    /// replaced.
    pub fn bind(path: &Path) -> Result<Self, SocketError> {
        let named = |error: fn(PathBuf) -> SocketError| error(path.to_path_buf());
        if path.as_os_str().len() > MAX_PATH_BYTES {
            return Err(named(|path| SocketError::TooLong { path }));
        }
        let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(named(|path| SocketError::NoName { path }));
        };
        if !dir.as_os_str().is_empty() {
            make_private(dir)?;
        }
        let mut lock = std::ffi::OsString::from(".");
        lock.push(name);
        lock.push(".lock");
        // Unlike a refused connection, the lock distinguishes a starting server from a crashed one.
        let Some(lock) = FileLock::try_own(&dir.join(lock))? else {
            return Err(named(|path| SocketError::InUse { path }));
        };
        remove_stale(path)?;
        let listener = listen_on(path).with_path("listen on", path)?;
        let meta = fs::symlink_metadata(path).with_path("inspect", path)?;
        let file = (meta.dev(), meta.ino());
        Ok(SocketListener { listener, path: path.to_path_buf(), file, _lock: lock })
    }

    /// Returns the path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a duplicate of the listening socket. The socket is non-blocking.
    pub(super) fn socket(&self) -> io::Result<UnixListener> {
        self.listener.try_clone()
    }
}

impl Drop for SocketListener {
    fn drop(&mut self) {
        let is_ours = |meta: fs::Metadata| (meta.dev(), meta.ino()) == self.file;
        if fs::symlink_metadata(&self.path).is_ok_and(is_ours) {
            // The next server replaces a leftover socket.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Removes the stale socket of a crashed server. Fails if another server listens on the socket.
fn remove_stale(path: &Path) -> Result<(), SocketError> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(PathError::new("inspect", path, error).into()),
        Ok(meta) if !meta.file_type().is_socket() => {
            return Err(SocketError::NoSocket { path: path.to_path_buf() });
        }
        Ok(meta) if meta.uid() != rustix::process::geteuid().as_raw() => {
            return Err(SocketError::Foreign { path: path.to_path_buf(), owner: meta.uid() });
        }
        Ok(_) => {}
    }
    // Non-blocking: a server whose backlog is full is still running.
    match try_connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            Ok(fs::remove_file(path).with_path("remove", path)?)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Ok(_) => Err(SocketError::InUse { path: path.to_path_buf() }),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            Err(SocketError::InUse { path: path.to_path_buf() })
        }
        Err(error) => Err(PathError::new("connect to", path, error).into()),
    }
}

fn try_connect(path: &Path) -> io::Result<()> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    Ok(connect(&socket, &SocketAddrUnix::new(path)?)?)
}

fn listen_on(path: &Path) -> io::Result<UnixListener> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket: OwnedFd = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // Set before bind: the file is created with the mode of the socket.
    fchmod(&socket, Mode::from_raw_mode(0o600))?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    listen(&socket, BACKLOG)?;
    Ok(UnixListener::from(socket))
}

/// Connects to the socket of a server that runs as this user or root. Fails for a server of another
/// user, who could read jobs and their secrets.
pub fn dial(path: &Path) -> io::Result<UnixStream> {
    let stream = UnixStream::connect(path)?;
    // The user of the listening process, independent of the owner of the file.
    let server = socket_peercred(&stream)?.uid.as_raw();
    if server == 0 || server == rustix::process::geteuid().as_raw() {
        return Ok(stream);
    }
    let text = format!(
        "the server runs as {}, who could read jobs and their secrets: remove the socket, or use \
         another one",
        AccessSubject::User(server).display_name()
    );
    Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
}

/// Creates a directory with mode 0700, or changes the mode of an existing one to 0700. Fails if
/// another user owns it.
pub fn private_directory(path: &Path) -> Result<(), SocketError> {
    if let Some(parent) = path.parent() {
        make_private(parent).map_err(SocketError::Create)?;
    }
    create_if_missing(path, 0o700).map_err(SocketError::Create)?;
    // Another user could have put a symlink there.
    let flags = (OFlags::NOFOLLOW | OFlags::DIRECTORY).bits().cast_signed();
    let dir: File =
        OpenOptions::new().read(true).custom_flags(flags).open(path).with_path("open", path)?;
    let meta = dir.metadata().with_path("inspect", path)?;
    if meta.uid() != rustix::process::geteuid().as_raw() {
        return Err(SocketError::Owner { path: path.to_path_buf(), owner: meta.uid() });
    }
    if meta.mode() & 0o777 != 0o700 {
        fchmod(&dir, Mode::from_raw_mode(0o700)).with_path("change the mode of", path)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::sync::Barrier;
    use std::thread;

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o777
    }

    #[test]
    fn only_the_owner_can_connect() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/s.sock");
        let listener = SocketListener::bind(&path).unwrap();
        assert_eq!(mode(&path), 0o600);
        assert_eq!(mode(path.parent().unwrap()), 0o700);
        dial(&path).unwrap();
        drop(listener);
        assert!(!path.exists());
    }

    #[test]
    fn live_socket_is_kept_and_a_dead_one_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.sock");
        let foreign = UnixListener::bind(&path).unwrap();
        assert!(matches!(SocketListener::bind(&path), Err(SocketError::InUse { .. })));
        drop(foreign);
        assert!(path.exists());
        let ours = SocketListener::bind(&path).unwrap();
        assert!(matches!(SocketListener::bind(&path), Err(SocketError::InUse { .. })));
        dial(&path).unwrap();

        // A socket that replaced ours at the path is not removed.
        fs::remove_file(&path).unwrap();
        let _other = UnixListener::bind(&path).unwrap();
        drop(ours);
        dial(&path).unwrap();
    }

    #[test]
    fn other_file_in_place_of_the_socket_is_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.sock");
        fs::write(&path, "precious").unwrap();
        assert!(matches!(SocketListener::bind(&path), Err(SocketError::NoSocket { .. })));
        assert_eq!(fs::read(&path).unwrap(), b"precious");
    }

    #[test]
    fn one_of_several_starting_servers_wins() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.sock");
        drop(UnixListener::bind(&path).unwrap());
        let barrier = Barrier::new(8);
        let won: Vec<_> = thread::scope(|scope| {
            let start = || {
                barrier.wait();
                SocketListener::bind(&path)
            };
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(start)).collect();
            threads.into_iter().filter_map(|thread| thread.join().unwrap().ok()).collect()
        });
        assert_eq!(won.len(), 1);
        dial(&path).unwrap();
    }

    #[test]
    fn too_long_path_is_reported() {
        let path = Path::new("/tmp").join("x".repeat(103));
        let error = SocketListener::bind(&path).unwrap_err().to_string();
        assert!(error.starts_with("socket path too long: 108 bytes, limit 107: /tmp/x"), "{error}");
    }

    #[test]
    fn private_directory_is_no_link_and_has_mode_700() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        private_directory(&path).unwrap();
        assert_eq!(mode(&path), 0o700);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        private_directory(&path).unwrap();
        assert_eq!(mode(&path), 0o700);
        let link = dir.path().join("link");
        symlink(&path, &link).unwrap();
        assert!(matches!(private_directory(&link), Err(SocketError::Path(_))));
        // The next directory for temporary files is tried.
        let impossible = Path::new("/proc/step-runner");
        assert!(matches!(private_directory(impossible), Err(SocketError::Create(_))));
    }
}
