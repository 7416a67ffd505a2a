//! Waits for a runtime's socket.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;

/// Watches the directory of a socket, or its nearest existing parent.
///
/// Create it before trying to connect, so that a socket created afterwards is noticed.
#[derive(Debug)]
pub struct SocketWatch(OwnedFd);

/// Reasons for the end of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitResult {
    /// A file was created in the watched directory.
    Created,
    TimedOut,
    Stopped,
}

impl SocketWatch {
    /// Starts to watch for a socket.
    pub fn new(socket: &Path) -> io::Result<Self> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let events = WatchFlags::CREATE | WatchFlags::MOVED_TO;
        let parents = socket.ancestors().skip(1);
        let here = Path::new(".");
        for directory in parents.map(|parent| if parent == Path::new("") { here } else { parent }) {
            match inotify::add_watch(&inotify, directory, events) {
                Err(Errno::NOENT | Errno::NOTDIR) => {}
                result => {
                    result?;
                    break;
                }
            }
        }
        Ok(SocketWatch(inotify))
    }

    /// Waits until a new connection may succeed, the timeout expires, or `stop` is readable.
    pub fn wait(&self, stop: impl AsFd, timeout: Duration) -> io::Result<WaitResult> {
        let timeout = Timespec::try_from(timeout).ok();
        let mut fds = [PollFd::new(&stop, PollFlags::IN), PollFd::new(&self.0, PollFlags::IN)];
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) if !fds[0].revents().is_empty() => Ok(WaitResult::Stopped),
            Ok(0) | Err(Errno::INTR) => Ok(WaitResult::TimedOut),
            Ok(_) => Ok(WaitResult::Created),
            Err(errno) => Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::net::UnixStream;
    use std::time::Instant;

    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    #[test]
    fn appearing_socket_or_directory_ends_the_wait() {
        let root = tempfile::tempdir().unwrap();
        let (stop, sender) = UnixStream::pair().unwrap();
        let socket = root.path().join("nri/nri.sock");
        let start = Instant::now();
        let watch = SocketWatch::new(&socket).unwrap();
        fs::create_dir(root.path().join("nri")).unwrap();
        assert_eq!(watch.wait(&stop, LONG).unwrap(), WaitResult::Created);
        let watch = SocketWatch::new(&socket).unwrap();
        fs::write(&socket, "").unwrap();
        assert_eq!(watch.wait(&stop, LONG).unwrap(), WaitResult::Created);
        assert!(start.elapsed() < LONG);
        let watch = SocketWatch::new(&socket).unwrap();
        assert_eq!(watch.wait(&stop, Duration::ZERO).unwrap(), WaitResult::TimedOut);
        drop(sender);
        assert_eq!(watch.wait(&stop, LONG).unwrap(), WaitResult::Stopped);
    }
}
