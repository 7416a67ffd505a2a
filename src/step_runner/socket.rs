//! The Unix socket of the service: its owner alone can connect, one server alone has it.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{
    DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _,
};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, fchmod};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
    sockopt::socket_peercred,
};

use crate::sys::fs::{PathContext as _, PathError, Who};
use crate::sys::lock::FileLock;

/// How long the path of a socket may be; the kernel has room for 108 bytes, the last of them zero.
pub const MAX_PATH_BYTES: usize = 107;

/// How many connections wait until the server takes them.
const BACKLOG: i32 = 128;

/// Why there is no socket to listen on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SocketError {
    /// The kernel has no room for the path.
    #[error(
        "the path of the socket has {} bytes, and {MAX_PATH_BYTES} is the most: {}",
        path.as_os_str().len(), path.display()
    )]
    TooLong {
        /// The path.
        path: PathBuf,
    },
    /// The path has no file name.
    #[error("{} cannot be a socket", path.display())]
    NoName {
        /// The path.
        path: PathBuf,
    },
    /// Another server has it.
    #[error("another server has the socket {}", path.display())]
    InUse {
        /// The path.
        path: PathBuf,
    },
    /// Something is there that is no socket, and is not ours to remove.
    #[error("{} is there and is no socket", path.display())]
    NoSocket {
        /// The path.
        path: PathBuf,
    },
    /// The socket is somebody else's: who calls would tell them what jobs are given.
    #[error(
        "the socket {} belongs to {}: remove it, or use a directory where nobody else can make \
         files", path.display(), Who::User(*owner).named()
    )]
    Foreign {
        /// The socket.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
    },
    /// The directory is somebody else's: they could put another socket there.
    #[error(
        "the directory {} belongs to {}, not to this user: remove it, or name another one",
        path.display(), Who::User(*owner).named()
    )]
    Owner {
        /// The directory.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
    },
    /// A file cannot be used.
    #[error(transparent)]
    Path(#[from] PathError),
}

/// A socket that is listened on. Its file is removed when this is dropped.
#[derive(Debug)]
pub struct Listener {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode: whoever replaced the file has theirs.
    file: (u64, u64),
    /// Held as long as the server lives.
    _lock: FileLock,
}

impl Listener {
    /// Listens on a socket, and makes its directory if there is none. What a server left that is
    /// gone is replaced.
    pub fn bind(path: &Path) -> Result<Self, SocketError> {
        let named = |error: fn(PathBuf) -> SocketError| error(path.to_path_buf());
        if path.as_os_str().len() > MAX_PATH_BYTES {
            return Err(named(|path| SocketError::TooLong { path }));
        }
        let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(named(|path| SocketError::NoName { path }));
        };
        if !dir.as_os_str().is_empty() {
            DirBuilder::new().recursive(true).mode(0o700).create(dir).at("make", dir)?;
        }
        let mut lock = std::ffi::OsString::from(".");
        lock.push(name);
        lock.push(".lock");
        // A connection tells no server that starts from one that died; this does.
        let Some(lock) = FileLock::try_own(&dir.join(lock))? else {
            return Err(named(|path| SocketError::InUse { path }));
        };
        remove_stale(path)?;
        let listener = listen_on(path).at("listen on", path)?;
        let meta = fs::symlink_metadata(path).at("look at", path)?;
        let file = (meta.dev(), meta.ino());
        Ok(Listener { listener, path: path.to_path_buf(), file, _lock: lock })
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the socket, which does not block.
    pub(super) fn socket(&self) -> io::Result<UnixListener> {
        self.listener.try_clone()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let is_ours = |meta: fs::Metadata| (meta.dev(), meta.ino()) == self.file;
        if fs::symlink_metadata(&self.path).is_ok_and(is_ours) {
            // The next server replaces what is left.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Removes the socket of a server that is gone.
fn remove_stale(path: &Path) -> Result<(), SocketError> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(PathError::new("look at", path, error).into()),
        Ok(meta) if !meta.file_type().is_socket() => {
            return Err(SocketError::NoSocket { path: path.to_path_buf() });
        }
        Ok(meta) if meta.uid() != rustix::process::geteuid().as_raw() => {
            return Err(SocketError::Foreign { path: path.to_path_buf(), owner: meta.uid() });
        }
        Ok(_) => {}
    }
    // Without waiting: a server that takes no connections is still one.
    match try_connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            Ok(fs::remove_file(path).at("remove", path)?)
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
    // The file gets the mode that the socket has, so that there is no moment with another one.
    fchmod(&socket, Mode::from_raw_mode(0o600))?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    listen(&socket, BACKLOG)?;
    Ok(UnixListener::from(socket))
}

/// Connects to a server's socket, if the server is this user's or root's: whatever a job is given
/// would be told to whoever listens.
pub fn dial(path: &Path) -> io::Result<UnixStream> {
    let stream = UnixStream::connect(path)?;
    // Of the process that listens, whoever owns the file.
    let server = socket_peercred(&stream)?.uid.as_raw();
    if server == 0 || server == rustix::process::geteuid().as_raw() {
        return Ok(stream);
    }
    let text = format!(
        "the server there is that of {}, who would be told what jobs are given: remove the socket, \
         or name another one",
        Who::User(server).named()
    );
    Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
}

/// Makes a directory that nobody else can look into, or makes sure that one is.
pub fn private_directory(path: &Path) -> Result<(), SocketError> {
    if let Some(parent) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(parent).at("make", parent)?;
    }
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(PathError::new("make", path, error).into());
        }
        _ => {}
    }
    // Whoever may write beside it could have made a link to a directory of theirs.
    let flags = (OFlags::NOFOLLOW | OFlags::DIRECTORY).bits().cast_signed();
    let dir: File =
        OpenOptions::new().read(true).custom_flags(flags).open(path).at("open", path)?;
    let meta = dir.metadata().at("look at", path)?;
    if meta.uid() != rustix::process::geteuid().as_raw() {
        return Err(SocketError::Owner { path: path.to_path_buf(), owner: meta.uid() });
    }
    if meta.mode() & 0o777 != 0o700 {
        fchmod(&dir, Mode::from_raw_mode(0o700)).at("change the mode of", path)?;
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
        let listener = Listener::bind(&path).unwrap();
        assert_eq!(mode(&path), 0o600);
        assert_eq!(mode(path.parent().unwrap()), 0o700);
        dial(&path).unwrap();
        drop(listener);
        assert!(!path.exists());
    }

    #[test]
    fn a_live_socket_is_left_alone_and_a_dead_one_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.sock");
        let foreign = UnixListener::bind(&path).unwrap();
        assert!(matches!(Listener::bind(&path), Err(SocketError::InUse { .. })));
        drop(foreign);
        assert!(path.exists());
        let ours = Listener::bind(&path).unwrap();
        assert!(matches!(Listener::bind(&path), Err(SocketError::InUse { .. })));
        dial(&path).unwrap();

        // Whoever took the place keeps it.
        fs::remove_file(&path).unwrap();
        let _other = UnixListener::bind(&path).unwrap();
        drop(ours);
        dial(&path).unwrap();
    }

    #[test]
    fn what_is_no_socket_is_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.sock");
        fs::write(&path, "precious").unwrap();
        assert!(matches!(Listener::bind(&path), Err(SocketError::NoSocket { .. })));
        assert_eq!(fs::read(&path).unwrap(), b"precious");
    }

    #[test]
    fn of_servers_that_start_at_once_one_wins() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.sock");
        drop(UnixListener::bind(&path).unwrap());
        let barrier = Barrier::new(8);
        let won: Vec<_> = thread::scope(|scope| {
            let start = || {
                barrier.wait();
                Listener::bind(&path)
            };
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(start)).collect();
            threads.into_iter().filter_map(|thread| thread.join().unwrap().ok()).collect()
        });
        assert_eq!(won.len(), 1);
        dial(&path).unwrap();
    }

    #[test]
    fn a_path_that_is_too_long_is_told() {
        let path = Path::new("/tmp").join("x".repeat(103));
        let error = Listener::bind(&path).unwrap_err().to_string();
        assert!(
            error.starts_with("the path of the socket has 108 bytes, and 107 is the most: /tmp/x")
        );
    }

    #[test]
    fn a_private_directory_is_no_link_and_has_no_other_mode() {
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
    }
}
