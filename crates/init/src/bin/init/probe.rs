//! The program when called `probe`: tries to reach targets that must be out of its reach, and is the
//! target of other probes.
//!
//! `probe FILE` carries out a task of `trials`. Its exit code is never 0, so that neither a build
//! nor the boot of an instance continues after it.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::thread::{self, Builder};
use std::time::Duration;

use crate::os::namespace_owner;
use oci_hooks_init::trials::{
    ProbeAttempt, ProbeMessage, ProbeOutcome, ProbeTask, default_gateway,
};

/// Exit code of a probe that has carried out its task.
const DONE: i32 = 3;
/// Exit code of a probe that could not carry out its task.
const FAILED: i32 = 1;

const TIMEOUT: Duration = Duration::from_secs(3);

/// Maximum number of connections to try for one [`ProbeAttempt::Rule`].
const TRIES: u32 = 20;
/// Timeout of each connection for [`ProbeAttempt::Rule`].
const TRY_TIMEOUT: Duration = Duration::from_secs(1);

/// Maximum number of bytes to read of a target's answer.
const MAX_ANSWER_BYTES: usize = 64;

const STACK_BYTES: usize = 128 << 10;

/// Carries out the task in a file, and returns the exit code.
pub fn run(args: &[OsString]) -> i32 {
    match carry_out(args) {
        Ok(()) => DONE,
        Err(error) => {
            // Without standard error, the message is lost.
            let _ = writeln!(io::stderr(), "probe: {error}");
            FAILED
        }
    }
}

fn carry_out(args: &[OsString]) -> io::Result<()> {
    let path = args.first().ok_or_else(|| io::Error::other("expected the path of a task file"))?;
    let shown = Path::new(path).display();
    let text = fs::read_to_string(path)
        .map_err(|error| io::Error::other(format!("cannot read the task file {shown}: {error}")))?;
    let invalid = || io::Error::other(format!("the task file {shown} is invalid"));
    match ProbeTask::read(&text).ok_or_else(invalid)? {
        ProbeTask::Try { word, attempts } => try_all(&word, &attempts),
        ProbeTask::Serve { word, token, mark, directories } => {
            if args.get(1).is_none_or(|arg| *arg != *mark) {
                let mut again = Command::new("/proc/self/exe");
                return Err(again.arg0("probe").arg(path).arg(mark).exec());
            }
            let mut server = ProbeServer { token, mark, is_once: false, served: Vec::new() };
            server.addresses();
            server.sockets(&directories);
            server.announce(&word)?;
            loop {
                thread::park();
            }
        }
    }
}

/// Runs all attempts in parallel, because some wait for a timeout, and prints their outcomes on
/// lines that begin with `word`.
fn try_all(word: &str, attempts: &[ProbeAttempt]) -> io::Result<()> {
    // Run first: later attempts must not reach its listeners.
    let own = &probe_own_targets();
    let outcomes: Vec<_> = thread::scope(|scope| {
        let started: Vec<_> = attempts
            .iter()
            .map(|attempt| {
                let run = move || {
                    if *attempt == ProbeAttempt::Own { own.clone() } else { outcome(attempt) }
                };
                Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, run)
            })
            .collect();
        let end = |thread: io::Result<thread::ScopedJoinHandle<'_, ProbeOutcome>>| match thread {
            Ok(thread) => thread
                .join()
                .unwrap_or_else(|_| ProbeOutcome::Untried("the attempt panicked".to_owned())),
            Err(error) => ProbeOutcome::Untried(error.to_string()),
        };
        started.into_iter().map(end).collect()
    });
    let mut out = io::stdout().lock();
    for (index, outcome) in outcomes.into_iter().enumerate() {
        writeln!(out, "{word} {}", ProbeMessage::Outcome { index, outcome })?;
    }
    writeln!(out, "{word} {}", ProbeMessage::End)
}

fn outcome(attempt: &ProbeAttempt) -> ProbeOutcome {
    let tried = match attempt {
        ProbeAttempt::Own => return probe_own_targets(),
        ProbeAttempt::Tcp(address) => tcp(*address, TIMEOUT),
        ProbeAttempt::Rule(address) => (1..TRIES)
            .map(|_| tcp(*address, TRY_TIMEOUT))
            .find(|tried| !matches!(tried, Err(error) if error.kind() == ErrorKind::TimedOut))
            .unwrap_or_else(|| tcp(*address, TRY_TIMEOUT)),
        ProbeAttempt::Gateway(port) => match default_gateway() {
            Some(gateway) => tcp((gateway, *port).into(), TIMEOUT),
            None => return ProbeOutcome::NoRoute,
        },
        ProbeAttempt::Udp(address) => udp(*address),
        ProbeAttempt::Abstract(name) => UnixAddress::from_abstract_name(name)
            .and_then(|address| UnixStream::connect_addr(&address))
            .map(|stream| read_answer(&stream, stream.set_read_timeout(Some(TIMEOUT)))),
        ProbeAttempt::Socket(path) => UnixStream::connect(path)
            .map(|stream| read_answer(&stream, stream.set_read_timeout(Some(TIMEOUT)))),
        ProbeAttempt::Read(path) => File::open(path).and_then(|file| {
            let text = read_answer(&file, Ok(()));
            // A masked file is empty.
            if text.is_empty() { Err(ErrorKind::NotFound.into()) } else { Ok(text) }
        }),
        ProbeAttempt::Write(path) => {
            OpenOptions::new().write(true).open(path).map(|_| String::new())
        }
        ProbeAttempt::Process(mark) => process(mark),
        ProbeAttempt::Limits => limits(),
    };
    tried.map_or_else(|error| to_outcome(attempt, &error), ProbeOutcome::Reached)
}

/// Returns the owner of this user namespace: the kernel applies its per-user limits to the whole
/// namespace. An error if the owner is root of the container: no process outside of the container runs
/// as that user, so its limits are not shared.
fn limits() -> io::Result<String> {
    let map = fs::read_to_string("/proc/self/uid_map")?;
    let is_of_host = map.split_whitespace().eq(["0", "0", "4294967295"]);
    match namespace_owner(&File::open("/proc/self/ns/user")?)? {
        0 if !is_of_host => Err(ErrorKind::PermissionDenied.into()),
        owner => Ok(owner.to_string()),
    }
}

/// Converts an error to an outcome.
fn to_outcome(attempt: &ProbeAttempt, error: &io::Error) -> ProbeOutcome {
    let is_network = matches!(
        attempt,
        ProbeAttempt::Tcp(_)
            | ProbeAttempt::Rule(_)
            | ProbeAttempt::Gateway(_)
            | ProbeAttempt::Udp(_)
    );
    match error.kind() {
        ErrorKind::ConnectionRefused if is_network => ProbeOutcome::Refused,
        // No socket has the name, or nothing listens on it any more.
        ErrorKind::ConnectionRefused | ErrorKind::NotFound | ErrorKind::NotADirectory => {
            ProbeOutcome::Absent
        }
        ErrorKind::HostUnreachable => ProbeOutcome::Rejected,
        ErrorKind::PermissionDenied if is_network => ProbeOutcome::Rejected,
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => ProbeOutcome::Denied,
        ErrorKind::NetworkUnreachable | ErrorKind::AddrNotAvailable => ProbeOutcome::NoRoute,
        ErrorKind::TimedOut | ErrorKind::WouldBlock => ProbeOutcome::NoAnswer,
        // An IPv6 socket on a host without IPv6.
        _ if error.raw_os_error() == Some(libc::EAFNOSUPPORT) => ProbeOutcome::NoRoute,
        _ => ProbeOutcome::Untried(error.to_string()),
    }
}

/// Tries targets that always exist, by the same means as other targets.
fn probe_own_targets() -> ProbeOutcome {
    let name = format!("oci-hooks-probe-{}-own", std::process::id());
    let token = "own".to_owned();
    let mut server = ProbeServer { token, mark: name, is_once: true, served: Vec::new() };
    let loopback = IpAddr::from(Ipv4Addr::LOCALHOST);
    server.tcp(loopback);
    server.udp(loopback);
    server.abstract_socket();
    let further =
        [ProbeAttempt::Read("/proc/self/exe".into()), ProbeAttempt::Process("probe".to_owned())];
    let all = server.served.iter().map(|(attempt, _)| attempt).chain(&further);
    let is_reached = |attempt| matches!(outcome(attempt), ProbeOutcome::Reached(_));
    let missing = all.clone().find(|attempt| !is_reached(attempt));
    let problem = match missing {
        None if all.count() == 5 => return ProbeOutcome::Reached("own".to_owned()),
        None => "cannot create its own targets".to_owned(),
        Some(attempt) => format!("cannot reach its own target `{attempt}`"),
    };
    // Without standard error, the message is lost.
    let _ = writeln!(io::stderr(), "probe: {problem}");
    ProbeOutcome::Denied
}

fn tcp(address: SocketAddr, timeout: Duration) -> io::Result<String> {
    let stream = TcpStream::connect_timeout(&address, timeout)?;
    // If nothing listens, the connection may have got the same port, and reached itself.
    if stream.local_addr()? == address {
        return Err(ErrorKind::ConnectionRefused.into());
    }
    Ok(read_answer(&stream, stream.set_read_timeout(Some(timeout))))
}

fn udp(address: SocketAddr) -> io::Result<String> {
    let any: SocketAddr = match address {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect(address)?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    socket.send(b"?")?;
    let mut answer = [0; MAX_ANSWER_BYTES];
    let length = socket.recv(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer[..length]).into_owned())
}

/// Returns the beginning of an answer, or an empty text after a timeout.
fn read_answer(mut from: impl Read, ready: io::Result<()>) -> String {
    let mut answer = [0; MAX_ANSWER_BYTES];
    let length = ready.and_then(|()| from.read(&mut answer)).unwrap_or(0);
    String::from_utf8_lossy(&answer[..length]).into_owned()
}

/// Searches for a process with a word in its command line.
fn process(mark: &str) -> io::Result<String> {
    for entry in fs::read_dir("/proc")?.flatten() {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if String::from_utf8_lossy(&line).contains(mark) {
            return Ok(entry.file_name().to_string_lossy().into_owned());
        }
    }
    Err(ErrorKind::NotFound.into())
}

struct ProbeServer {
    token: String,
    mark: String,
    /// If set, the server answers only once on each address or socket.
    is_once: bool,
    /// How probes reach each target of this server, and how the server itself tries it first: only
    /// what it reaches itself is announced.
    served: Vec<(ProbeAttempt, ProbeAttempt)>,
}

impl ProbeServer {
    fn addresses(&mut self) {
        let loopback = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        for address in loopback.into_iter().chain(own_addresses()) {
            self.tcp(address);
            self.udp(address);
        }
        let Some(address) = self.listen((Ipv4Addr::UNSPECIFIED, 0).into()) else { return };
        let here = SocketAddr::from((Ipv4Addr::LOCALHOST, address.port()));
        self.served.push((ProbeAttempt::Gateway(address.port()), ProbeAttempt::Tcp(here)));
    }

    fn tcp(&mut self, address: IpAddr) {
        if let Some(address) = self.listen((address, 0).into()) {
            self.served.push((ProbeAttempt::Tcp(address), ProbeAttempt::Tcp(address)));
        }
    }

    fn listen(&self, address: SocketAddr) -> Option<SocketAddr> {
        let listener = TcpListener::bind(address).ok()?;
        let address = listener.local_addr().ok()?;
        self.answer(move |token| answer(listener.accept().map(|(stream, _)| stream), token))?;
        Some(address)
    }

    fn udp(&mut self, address: IpAddr) {
        let Ok(socket) = UdpSocket::bind((address, 0)) else { return };
        let Ok(address) = socket.local_addr() else { return };
        let answer = move |token: &str| {
            if let Ok((_, from)) = socket.recv_from(&mut [0]) {
                let _ = socket.send_to(token.as_bytes(), from);
            }
        };
        if self.answer(answer).is_some() {
            self.served.push((ProbeAttempt::Udp(address), ProbeAttempt::Udp(address)));
        }
    }

    fn abstract_socket(&mut self) {
        let name = format!("oci-hooks-probe-{}", self.mark);
        let listener = UnixAddress::from_abstract_name(&name)
            .and_then(|address| UnixListener::bind_addr(&address));
        self.unix(listener, ProbeAttempt::Abstract(name));
    }

    fn unix(&mut self, listener: io::Result<UnixListener>, attempt: ProbeAttempt) {
        let Ok(listener) = listener else { return };
        let accept = move |token: &str| answer(listener.accept().map(|(stream, _)| stream), token);
        if self.answer(accept).is_some() {
            self.served.push((attempt.clone(), attempt));
        }
    }

    /// Creates an abstract socket, and in each writable directory a socket and a file that all
    /// users may open.
    fn sockets(&mut self, directories: &[impl AsRef<Path>]) {
        self.abstract_socket();
        for directory in directories {
            let path = directory.as_ref().join(format!("oci-hooks-probe-{}", self.mark));
            let listener = UnixListener::bind(&path);
            let allow = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode));
            let listener = listener.and_then(|listener| allow(&path, 0o666).map(|()| listener));
            self.unix(listener, ProbeAttempt::Socket(path.clone()));
            let path = path.with_extension("file");
            let written = File::create_new(&path).and_then(|mut file| {
                file.write_all(self.token.as_bytes())?;
                allow(&path, 0o644)
            });
            if written.is_ok() {
                self.served.push((ProbeAttempt::Read(path.clone()), ProbeAttempt::Read(path)));
            }
        }
        let process = ProbeAttempt::Process(self.mark.clone());
        self.served.push((process.clone(), process));
    }

    /// Calls `once` with the token on a new thread, repeatedly unless `is_once` is set. Returns
    /// `None` if there is no thread.
    fn answer(&self, mut once: impl FnMut(&str) + Send + 'static) -> Option<()> {
        let (token, is_once) = (self.token.clone(), self.is_once);
        let thread = Builder::new().stack_size(STACK_BYTES);
        let answering = move || {
            loop {
                once(&token);
                if is_once {
                    break;
                }
            }
        };
        thread.spawn(answering).ok().map(drop)
    }

    /// Prints the attempts by which the server can be reached, after verifying each, on lines that
    /// begin with `word`.
    fn announce(&self, word: &str) -> io::Result<()> {
        let mut out = io::stdout().lock();
        for (attempt, here) in &self.served {
            if matches!(outcome(here), ProbeOutcome::Reached(_)) {
                writeln!(out, "{word} {}", ProbeMessage::Serves(attempt.clone()))?;
            }
        }
        writeln!(out, "{word} {}", ProbeMessage::End)?;
        out.flush()
    }
}

fn answer(stream: io::Result<impl Write>, token: &str) {
    match stream {
        // A client that has disconnected needs no answer.
        Ok(mut stream) => drop(stream.write_all(token.as_bytes())),
        // Descriptors may become available later.
        Err(_) => thread::sleep(Duration::from_millis(10)),
    }
}

/// Returns the addresses of this network namespace except loopback and link-local ones.
fn own_addresses() -> Vec<IpAddr> {
    let read =
        |name: &str| fs::read_to_string(Path::new("/proc/net").join(name)).unwrap_or_default();
    let mut addresses = Vec::new();
    let mut leaf: Option<Ipv4Addr> = None;
    for line in read("fib_trie").lines().map(str::trim_start) {
        if let Some(address) = line.strip_prefix("|-- ") {
            leaf = address.parse().ok();
        } else if line == "/32 host LOCAL" {
            addresses.extend(leaf.filter(|address| !address.is_loopback()).map(IpAddr::from));
        }
    }
    for line in read("if_inet6").lines() {
        let fields: Vec<_> = line.split_whitespace().collect();
        if let [address, _, _, "00", ..] = fields[..] {
            addresses.extend(
                u128::from_str_radix(address, 16).map(|bits| IpAddr::from(Ipv6Addr::from(bits))),
            );
        }
    }
    addresses.sort_unstable();
    addresses.dedup();
    addresses
}
