//! The proxy: carries bytes between a pair of streams and the service's socket, and adds none.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::{Duration, Instant};

use super::socket;

/// How much is carried at once.
const BUFFER_BYTES: usize = 64 << 10;

/// How often a server that starts is looked for.
const LOOK: Duration = Duration::from_millis(20);

/// Why the proxy is done.
#[derive(Debug)]
pub enum End {
    /// The client has nothing more to say, or nobody reads what the server says.
    Client,
    /// The server has closed the connection; all it said was passed on.
    Server,
    /// The connection is broken.
    Broken(io::Error),
}

/// Connects to a server, and for this long waits for one that is starting.
pub fn connect(path: &Path, wait: Duration) -> io::Result<UnixStream> {
    let start = Instant::now();
    loop {
        match socket::dial(path) {
            Err(error) if is_not_yet(&error) && start.elapsed() < wait => thread::sleep(LOOK),
            result => return result,
        }
    }
}

fn is_not_yet(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

/// Carries bytes until either side ends. As with GitLab's proxy the end of `input` is the end of
/// all: what the server still says is nobody's.
///
/// The threads that carry end when what they wait for does; a program ends them by ending.
pub fn carry(
    server: &UnixStream,
    mut input: impl Read + Send + 'static,
    mut output: impl Write + Send + 'static,
) -> io::Result<End> {
    let (ended, end) = mpsc::channel();
    let mut from_server = server.try_clone()?;
    let mut to_server = server.try_clone()?;
    spawn("from-server", ended.clone(), move || match copy(&mut from_server, &mut output) {
        Ok(()) => End::Server,
        Err(Broken::Reading(error)) => End::Broken(error),
        Err(Broken::Writing(_)) => End::Client,
    })?;
    spawn("to-server", ended, move || match copy(&mut input, &mut to_server) {
        Ok(()) => End::Client,
        Err(Broken::Reading(_)) => End::Client,
        // The other thread passes on what the server said before.
        Err(Broken::Writing(error)) => {
            let _ = to_server.shutdown(Shutdown::Write);
            End::Broken(error)
        }
    })?;
    let first = end.recv().expect("both threads say how they ended");
    match first {
        End::Broken(_) => Ok(end.recv_timeout(LOOK * 5).unwrap_or(first)),
        first => Ok(first),
    }
}

fn spawn(
    name: &str,
    ended: Sender<End>,
    work: impl FnOnce() -> End + Send + 'static,
) -> io::Result<()> {
    let work = move || {
        // Whoever waited has gone if the other thread ended first.
        let _ = ended.send(work());
    };
    thread::Builder::new().name(name.to_owned()).spawn(work).map(drop)
}

enum Broken {
    Reading(io::Error),
    Writing(io::Error),
}

fn copy(from: &mut impl Read, to: &mut impl Write) -> Result<(), Broken> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let count = match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(Broken::Reading(error)),
        };
        // What was read is passed on at once: the other side waits for it.
        to.write_all(&buffer[..count]).and_then(|()| to.flush()).map_err(Broken::Writing)?;
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    fn pair() -> (UnixStream, UnixStream) {
        UnixStream::pair().unwrap()
    }

    #[test]
    fn bytes_go_both_ways_until_the_client_ends() {
        let (ours, mut server) = pair();
        let (input, mut typed) = io::pipe().unwrap();
        let (mut shown, output) = io::pipe().unwrap();
        let proxy = thread::spawn(move || carry(&ours, input, output).unwrap());
        typed.write_all(b"ask").unwrap();
        let mut bytes = [0; 3];
        server.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"ask");
        server.write_all(b"\0\xffanswer").unwrap();
        let mut bytes = [0; 8];
        shown.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"\0\xffanswer");
        drop(typed);
        assert!(matches!(proxy.join().unwrap(), End::Client));
    }

    #[test]
    fn it_ends_when_the_server_is_gone() {
        let (ours, mut server) = pair();
        let (input, _typed) = io::pipe().unwrap();
        let (mut shown, output) = io::pipe().unwrap();
        server.write_all(b"bye").unwrap();
        drop(server);
        assert!(matches!(carry(&ours, input, output).unwrap(), End::Server));
        let mut said = Vec::new();
        shown.read_to_end(&mut said).unwrap();
        assert_eq!(said, b"bye");
    }

    #[test]
    fn a_server_that_starts_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        assert!(connect(&path, Duration::ZERO).is_err());
        let waiting = {
            let path = path.clone();
            thread::spawn(move || connect(&path, Duration::from_secs(60)))
        };
        let listener = UnixListener::bind(&path).unwrap();
        waiting.join().unwrap().unwrap();
        drop(listener);
    }
}
