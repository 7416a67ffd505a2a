//! The proxy: forwards bytes between a pair of streams and the socket of the server.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::{Duration, Instant};

use super::http2::{FrameKind, FrameReader};
use super::socket;

/// Size of the copy buffer in bytes.
const BUFFER_BYTES: usize = 64 << 10;

/// Poll interval for a server that is starting.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The reason why the proxy ended.
#[derive(Debug)]
pub enum CloseReason {
    /// The client closed its input, or no longer reads output.
    Client,
    /// The server closed the connection; all its bytes were forwarded.
    Server,
    Broken(io::Error),
}

/// Connects to a server; retries for the time `wait` while it is starting.
pub fn connect(path: &Path, wait: Duration) -> io::Result<UnixStream> {
    let start = Instant::now();
    loop {
        match socket::dial(path) {
            Err(error) if is_not_yet(&error) && start.elapsed() < wait => {
                thread::sleep(POLL_INTERVAL);
            }
            result => return result,
        }
    }
}

fn is_not_yet(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

/// Forwards bytes until either side closes. As in GitLab's proxy, the end of `input` ends everything:
/// later bytes of the server are discarded.
///
/// A client that has sent `GOAWAY` counts as the side that closed: the server closes the connection at
/// once, often before the client's input ends.
///
/// The copying threads end with their streams, or with the process.
pub fn forward(
    server: &UnixStream,
    mut input: impl Read + Send + 'static,
    mut output: impl Write + Send + 'static,
) -> io::Result<CloseReason> {
    let (ended, end) = mpsc::channel();
    let is_leaving = Arc::new(AtomicBool::new(false));
    let mut from_server = server.try_clone()?;
    let mut to_server = server.try_clone()?;
    let ignored = |_: &mut [u8]| {};
    spawn("from-server", ended.clone(), move || {
        match copy(&mut from_server, &mut output, ignored) {
            Ok(()) => CloseReason::Server,
            Err(CopyError::Reading(error)) => CloseReason::Broken(error),
            Err(CopyError::Writing(_)) => CloseReason::Client,
        }
    })?;
    let leaving = is_leaving.clone();
    let mut frames = FrameReader::new();
    // Called before the bytes are sent, since the server may close the connection right after a `GOAWAY`.
    let look = move |bytes: &mut [u8]| {
        frames.read(bytes, |head, _, _| {
            if head.kind == FrameKind::GoAway {
                leaving.store(true, Ordering::SeqCst);
            }
        });
    };
    spawn("to-server", ended, move || match copy(&mut input, &mut to_server, look) {
        Ok(()) => CloseReason::Client,
        Err(CopyError::Reading(_)) => CloseReason::Client,
        // The other thread still forwards the remaining bytes of the server.
        Err(CopyError::Writing(error)) => {
            let _ = to_server.shutdown(Shutdown::Write);
            CloseReason::Broken(error)
        }
    })?;
    let first = end.recv().expect("both threads send how they ended");
    if is_leaving.load(Ordering::SeqCst) {
        return Ok(CloseReason::Client);
    }
    match first {
        CloseReason::Broken(_) => Ok(end.recv_timeout(POLL_INTERVAL * 5).unwrap_or(first)),
        first => Ok(first),
    }
}

fn spawn(
    name: &str,
    ended: Sender<CloseReason>,
    work: impl FnOnce() -> CloseReason + Send + 'static,
) -> io::Result<()> {
    let work = move || {
        // The receiver is gone if the other thread ended first.
        let _ = ended.send(work());
    };
    thread::Builder::new().name(name.to_owned()).spawn(work).map(drop)
}

enum CopyError {
    Reading(io::Error),
    Writing(io::Error),
}

fn copy(
    from: &mut impl Read,
    to: &mut impl Write,
    mut look: impl FnMut(&mut [u8]),
) -> Result<(), CopyError> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let count = match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(CopyError::Reading(error)),
        };
        look(&mut buffer[..count]);
        // Flushed at once, as the other side may wait for these bytes.
        to.write_all(&buffer[..count]).and_then(|()| to.flush()).map_err(CopyError::Writing)?;
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use oci_hooks_testsupport::program::DEADLINE;

    use super::*;

    fn pair() -> (UnixStream, UnixStream) {
        UnixStream::pair().unwrap()
    }

    #[test]
    fn bytes_pass_both_ways_until_the_client_closes() {
        let (ours, mut server) = pair();
        let (input, mut typed) = io::pipe().unwrap();
        let (mut shown, output) = io::pipe().unwrap();
        let proxy = thread::spawn(move || forward(&ours, input, output).unwrap());
        typed.write_all(b"ask").unwrap();
        let mut bytes = [0; 3];
        server.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"ask");
        server.write_all(b"\0\xffanswer").unwrap();
        let mut bytes = [0; 8];
        shown.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"\0\xffanswer");
        drop(typed);
        assert!(matches!(proxy.join().unwrap(), CloseReason::Client));
    }

    #[test]
    fn proxy_ends_when_the_server_closes() {
        let (ours, mut server) = pair();
        let (input, _typed) = io::pipe().unwrap();
        let (mut shown, output) = io::pipe().unwrap();
        server.write_all(b"bye").unwrap();
        drop(server);
        assert!(matches!(forward(&ours, input, output).unwrap(), CloseReason::Server));
        let mut said = Vec::new();
        shown.read_to_end(&mut said).unwrap();
        assert_eq!(said, b"bye");
    }

    #[test]
    fn proxy_ends_when_the_client_leaves_even_if_the_server_closed_first() {
        let (ours, mut server) = pair();
        let (input, mut typed) = io::pipe().unwrap();
        let (_shown, output) = io::pipe().unwrap();
        let said = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\0\x07\0\0\0\0\0";
        typed.write_all(said).unwrap();
        let proxy = thread::spawn(move || forward(&ours, input, output).unwrap());
        server.read_exact(&mut vec![0; said.len()]).unwrap();
        drop(server);
        // Input of the client is still open.
        assert!(matches!(proxy.join().unwrap(), CloseReason::Client));
        drop(typed);
    }

    #[test]
    fn proxy_waits_for_a_starting_server() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        assert!(connect(&path, Duration::ZERO).is_err());
        let waiting = {
            let path = path.clone();
            thread::spawn(move || connect(&path, DEADLINE))
        };
        let listener = UnixListener::bind(&path).unwrap();
        waiting.join().unwrap().unwrap();
        drop(listener);
    }
}
